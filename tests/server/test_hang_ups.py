"""A client that closes its connection, through the whole stack: its generation ends in vLLM at once, by vLLM's word."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest
from server.engine_word import EngineWord
from server.waiting import within

pytestmark = [pytest.mark.server, pytest.mark.engine]

AT_ONCE_S = 15  # what is asked for would take minutes; on a loaded machine "at once" may take seconds
CASES = [
    pytest.param({"stream": True, "n": 256}, id="in a stream"),
    pytest.param({"n": 256}, id="waiting for a whole answer"),
    pytest.param({"stream": True, "n": 1024}, id="in a stream of 1024 choices"),
    pytest.param({"n": 1024}, id="waiting for 1024 choices"),
]


@pytest.fixture(scope="module")
def engines(server):
    with EngineWord(server) as word:
        yield word


@pytest.fixture
def client(server):
    """A connection of its own, on which one long request is sent: client(n=256) -> socket."""
    opened = []

    def ask(**fields):
        body = {"model": "toy", "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, **fields}
        content = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        opened.append(connection)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: acs\r\nAuthorization: Bearer {server.key}\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return connection

    yield ask
    for connection in opened:
        connection.close()


def is_idle(engines):
    return not any(engines.has_work("toy")) and not any(engines.running("toy"))


@pytest.mark.parametrize("fields", CASES)
def test_the_generation_of_a_client_that_hangs_up_ends_at_once(client, engines, fields):
    within(60, lambda: is_idle(engines))
    connection = client(**fields)
    if fields.get("stream"):
        received = b""
        while received.count(b"data: ") < 300:
            received += connection.recv(65536)
    within(60, lambda: engines.running("toy") == [fields["n"]])
    assert engines.has_work("toy") == [True]
    connection.close()
    began = time.monotonic()
    within(AT_ONCE_S, lambda: is_idle(engines))
    print(f"idle {time.monotonic() - began:.2f} s after the client closed")


@pytest.mark.parametrize("fields", CASES)
def test_a_client_that_is_gone_at_once_leaves_nothing_running(client, engines, server, fields):
    client(**fields).close()
    body = {"model": "toy", "prompt": "Once", "max_tokens": 1}
    assert httpx.post(server.v1 + "/completions", json=body, headers=server.headers, timeout=60).status_code == 200
    within(AT_ONCE_S, lambda: is_idle(engines))


def test_a_client_that_stops_reading_and_then_hangs_up_leaves_nothing_running(client, engines):
    """Its answer backs up through every buffer between it and the engine."""
    connection = client(stream=True, n=256, logprobs=20)
    within(60, lambda: engines.running("toy") == [256])
    connection.recv(1024)
    connection.close()
    within(AT_ONCE_S, lambda: is_idle(engines))


def test_others_go_on_when_a_client_hangs_up(client, engines, server):
    within(60, lambda: is_idle(engines))
    body = {"model": "toy", "prompt": "Once", "max_tokens": 400, "n": 16, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.v1 + "/completions", json=body, headers=server.headers, timeout=120) as answer:
        parts = answer.iter_bytes()
        received = next(parts)
        gone = client(n=256)
        within(60, lambda: engines.running("toy")[0] > 256)
        gone.close()
        received += b"".join(parts)
    assert received.count(b'"finish_reason":"length"') == 16
    assert received.endswith(b"data: [DONE]\n\n")
    within(AT_ONCE_S, lambda: is_idle(engines))
