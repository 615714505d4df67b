"""A model that may go cold: it wakes for its first request, and gets a second replica when one is not enough."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from server.engine_word import EngineWord
from server.running import Server, start_server
from server.waiting import within

pytestmark = pytest.mark.server

CATALOGUE = """
[models.sleepy]
served_model_name = "acs/sleepy"
description = "The fake engine, slow, and cold until it is asked."
source = "toy:0"
created = 1764374400
owned_by = "acs"
engine_class = "fake"
engine = { max_model_len = 2048, step_s = 0.02 }
replicas = { min = 0, max = 2, target_ongoing = 2 }
resources = { num_cpus = 0.1 }
"""
REPLICA = "ServeReplica:model-sleepy"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scaling")
    (folder / "sleepy.toml").write_text(CATALOGUE)
    env = {"ACS_MODELS": str(models_dir)}
    with start_server(folder / "data", catalogue=str(folder / "sleepy.toml"), env=env) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.v1, headers=server.headers, timeout=120) as client:
        yield client


def status(client: httpx.Client) -> str:
    return str(client.get("/models").json()["data"][0]["status"])


def complete(client: httpx.Client, max_tokens: int) -> int:
    body = {"model": "sleepy", "prompt": "Wake up", "max_tokens": max_tokens, "ignore_eos": True}
    return client.post("/completions", json=body).status_code


def test_a_cold_model_wakes_for_its_first_request_which_waits(server: Server, client: httpx.Client) -> None:
    assert status(client) == "cold"
    assert server.named(REPLICA) == []
    assert complete(client, 2) == 200
    assert status(client) == "live"
    assert len(server.named(REPLICA)) == 1


def test_more_requests_than_one_replica_should_run_start_a_second_which_takes_its_share(
    server: Server, client: httpx.Client
) -> None:
    """Requests keep no ties to a replica: those that come after the second runs go to it."""
    over = threading.Event()

    def keep_asking() -> set[int]:
        statuses = set()
        while not over.is_set():
            statuses.add(complete(client, 50))
        return statuses

    with ThreadPoolExecutor(8) as clients, EngineWord(server) as engines:
        asking = [clients.submit(keep_asking) for _ in range(8)]
        try:
            within(90, lambda: len(server.named(REPLICA)) == 2)
            within(90, lambda: len(running := engines.running("sleepy")) == 2 and min(running) > 0)
        finally:
            over.set()
    assert set().union(*(done.result() for done in asking)) == {200}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_model_that_nobody_asks_goes_cold_again_and_wakes_again(server: Server, client: httpx.Client) -> None:
    assert complete(client, 2) == 200
    within(600, lambda: status(client) == "cold" and not server.named(REPLICA))
    assert complete(client, 2) == 200
