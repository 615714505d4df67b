from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from acs.platform.server import environment
from acs.platform.server.environment import ServerRun
from acs.platform.server.ports import RAY_AGENTS
from acs.platform.settings import Settings

NODE_ID = "f" * 56  # Serve puts a folder of this length between its own and its sockets
SOCKET_PATH_BYTES = 107


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environ({"ACS_DATA": str(tmp_path / ("d" * 100)), "ACS_PORT": "8123"})


@pytest.fixture
def run(settings: Settings) -> ServerRun:
    settings.data.mkdir()
    return environment.begin(settings, {"PATH": "/bin", "RAY_SERVE_HAPROXY_NBTHREAD": "7"})


def test_sockets_fit_however_long_the_data_folders_path_is(run: ServerRun) -> None:
    for name in ("RAY_SERVE_HAPROXY_SOCKET_PATH", "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH"):
        path = Path(run.environ[name])
        while_it_binds = f"{path.parent / NODE_ID / path.name}.4194304.tmp"
        assert len(while_it_binds) <= SOCKET_PATH_BYTES
    run.discard(keep_logs=False)


def test_ray_asks_for_a_token_that_only_the_owner_reads(run: ServerRun) -> None:
    token = Path(run.environ["RAY_AUTH_TOKEN_PATH"])
    assert run.environ["RAY_AUTH_MODE"] == "token"
    assert len(token.read_text()) >= 32
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(run.scratch.stat().st_mode) == 0o700
    run.discard(keep_logs=False)


def test_nothing_tells_anyone_outside(run: ServerRun) -> None:
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}.items():
        assert run.environ[name] == value
    run.discard(keep_logs=False)


def test_a_change_of_ingresses_leaves_every_stream_the_time_that_it_may_take(run: ServerRun) -> None:
    assert int(run.environ["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) > run.settings.limits.stream_deadline_s
    run.discard(keep_logs=False)


def test_an_operator_may_choose_what_is_a_choice(run: ServerRun) -> None:
    assert run.environ["RAY_SERVE_HAPROXY_NBTHREAD"] == "7"
    assert run.environ["PATH"] == "/bin"
    run.discard(keep_logs=False)


def test_no_port_is_given_twice(run: ServerRun) -> None:
    ports = {name: int(value) for name, value in run.environ.items() if name.endswith("_PORT") and int(value) > 0}
    assert len(set(ports.values())) == len(ports)
    run.discard(keep_logs=False)


def test_a_run_that_has_not_opened_its_ports_yet_keeps_them_from_others(run: ServerRun) -> None:
    """Two servers started at the same moment would else find the same block free."""
    first = int(run.environ["RAY_SERVE_HAPROXY_METRICS_PORT"])
    with pytest.raises(OSError, match="in use"), socket.create_server(("", first + 15)):
        pass
    assert [int(port) for port in run.environ[RAY_AGENTS].split()] == list(range(first + 4, first + 8))
    run.discard(keep_logs=False)


def test_a_run_that_failed_keeps_rays_logs(run: ServerRun) -> None:
    session = run.scratch / "session_1" / "logs"
    session.mkdir(parents=True)
    (run.scratch / "session_latest").symlink_to(run.scratch / "session_1")
    (session / "raylet.out").write_text("why")
    run.discard(keep_logs=True)
    assert not run.scratch.exists()
    assert (run.settings.logs_dir / "ray" / "raylet.out").read_text() == "why"


def test_the_next_run_removes_what_a_killed_one_left(run: ServerRun) -> None:
    """`discard` was never called."""
    (run.scratch / "left").write_text("x")
    again = environment.begin(run.settings, {})
    assert not run.scratch.exists()
    assert again.instance != run.instance
    again.discard(keep_logs=False)


def test_a_link_that_leads_elsewhere_is_not_followed(settings: Settings, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    settings.run_dir.mkdir(parents=True)
    (settings.run_dir / "scratch").symlink_to(precious)
    environment.begin(settings, {}).discard(keep_logs=False)
    assert precious.is_dir()
