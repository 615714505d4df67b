"""A server that joins a Ray cluster (`RAY_ADDRESS`): what it leaves there when it ends, and to whom."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server.running import Server, free_port, launch, start_server
from server.waiting import within

from acs.platform.server import environment, processes
from acs.platform.settings import SHIPPED_CATALOGUES

pytestmark = pytest.mark.server

START_S = 300.0
ACTORS = """
import json, ray
ray.init(log_to_driver=False)
print(json.dumps(ray.util.list_named_actors(all_namespaces=True)))
"""


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """What a process must be told to join it."""
    folder = Path(tempfile.mkdtemp(prefix="acs-test-", dir="/tmp"))  # short: Ray's sockets lie in it
    (folder / "token").write_text(secrets.token_hex(32))
    guard = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_USAGE_STATS_ENABLED": "0"}
    base = {name: value for name, value in os.environ.items() if not name.startswith(("ACS_", "RAY_"))}
    ours = (environment._DEFAULTS | environment._QUIET).items()
    as_in_ray_cluster_yaml = {name: value for name, value in ours if not name.startswith("RAY_SERVE_")}
    port, log = free_port(), folder / "log"
    options = ["--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder / 'ray'}", "--num-cpus=8"]
    options += ["--include-dashboard=false", f"--object-store-memory={100 * 1024**2}"]
    options += [f"--{name}={free_port()}" for name in ("ray-client-server-port", "dashboard-agent-listen-port")]
    ray = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", "--head", "--block", *options],
        env={**base, **as_in_ray_cluster_yaml, **guard, "SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"},
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        within(START_S, lambda: "Ray runtime started" in log.read_text() or ray.poll() is not None)
        assert ray.poll() is None, log.read_text()
        yield guard | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        below = processes.descendants(ray.pid)
        ray.kill()
        ray.wait()
        processes.end(lambda: [p for p in below if processes.alive(p)], patience_s=1)
        shutil.rmtree(folder)


def named_actors(cluster: dict[str, str]) -> list[dict[str, str]]:
    asked = subprocess.run(
        [sys.executable, "-c", ACTORS], env={**os.environ, **cluster}, capture_output=True, text=True
    )
    found: list[dict[str, str]] = json.loads(asked.stdout)
    return found


def completes(server: Server, model: str, key: str) -> bool:
    body = {"model": model, "prompt": "Once", "max_tokens": 2}
    return httpx.post(
        f"{server.v1}/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30
    ).is_success


def test_what_a_killed_server_left_in_a_cluster_is_ended_before_the_next_one_starts(
    cluster: dict[str, str], tmp_path: Path, models_dir: Path
) -> None:
    killed = start_server(tmp_path / "data", catalogue="fake", env=cluster | {"ACS_MODELS": str(models_dir)})
    assert completes(killed, "fake", killed.key)
    killed.stop(signal.SIGKILL)
    assert {actor["name"] for actor in named_actors(cluster)} >= {"ledger", "views", "SERVE_CONTROLLER_ACTOR"}

    env = {**os.environ, **cluster, "ACS_DATA": str(killed.data), "ACS_STOP_GRACE_S": "0.2"}
    before_a_start = [sys.executable, "-P", "-m", "acs.serve_apps.cluster"]
    subprocess.run(before_a_start, env=env, check=True, capture_output=True)
    assert named_actors(cluster) == []


@pytest.mark.soak  # a minute, five on a busy machine: two starts and a Ray of its own
def test_a_server_in_a_cluster_starts_with_its_own_settings_after_a_kill_and_leaves_nothing_there(
    cluster: dict[str, str], tmp_path: Path, models_dir: Path
) -> None:
    env = cluster | {"ACS_MODELS": str(models_dir)}
    killed = start_server(tmp_path / "data", catalogue="fake", env=env)
    key = killed.key
    assert completes(killed, "fake", key)
    killed.stop(signal.SIGKILL)
    assert {actor["name"] for actor in named_actors(cluster)} >= {"ledger", "views", "SERVE_CONTROLLER_ACTOR"}

    changed = tmp_path / "changed.toml"
    changed.write_text((SHIPPED_CATALOGUES / "fake.toml").read_text().replace("[models.fake]", "[models.changed]"))
    with start_server(tmp_path / "data", catalogue=str(changed), env=env) as server:
        assert server.port != killed.port
        assert completes(server, "changed", key)  # the ledger knows the model, and its accounts
        with pytest.raises(httpx.ConnectError):
            httpx.get(killed.base)

        stranger = launch(tmp_path / "other", catalogue="fake", env=env)
        assert stranger.process.wait(START_S) == 1
        within(5, lambda: f"acs: The server of {tmp_path / 'data'} on " in stranger.output)
        assert completes(server, "changed", key)

        assert server.stop(timeout_s=120) == 0
    assert "acs: " not in server.output
    assert server.processes() == []
    assert named_actors(cluster) == []
