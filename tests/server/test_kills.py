"""`kill -9` of each process of a server under load: errors of our shape and no other, recovery without a hand, no
request stuck, and nothing left that holds memory.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from server.load import MARK, Load
from server.logs import files_of_run, files_with
from server.running import Server, start_server
from server.waiting import within

from acs.platform.server import processes
from acs.platform.settings import SHIPPED_CATALOGUES

pytestmark = pytest.mark.server

RECOVERY_S = 360  # loading a model takes a minute, and more on a machine that is busy with other things
# What is killed: a part of its command line.
WORKER, CORE, REPLICA = "VLLM::Worker", "VLLM::EngineCore", "ServeReplica:model-"
INGRESS, LEDGER, HAPROXY, MANAGER = "ServeReplica:api:", "LedgerActor", "/bin/haproxy ", "HAProxyManager"
# An ingress takes the streams that it had begun with it, a proxy all that it serves: nobody is left to send the end.
CUT = {INGRESS: ("stream",), HAPROXY: ("stream", "whole", "unanswered")}
FRESH = {HAPROXY, MANAGER}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Server]:
    """The real engine behind two ingresses: as it runs on one CPU or one GPU, and with a worker process of its own."""
    folder = tmp_path_factory.mktemp("full")
    toy = (SHIPPED_CATALOGUES / "toy.toml").read_text()
    apart = toy.replace("[models.toy]", "[models.apart]").replace(
        "engine = {", 'engine = { distributed_executor_backend = "mp",'
    )
    (folder / "two.toml").write_text(toy + apart)
    env = {"ACS_MODELS": str(models_dir), "ACS_INGRESS_REPLICAS": "2", "ACS_LIMIT_BREAKER_OPEN_S": "1"}
    with start_server(folder / "data", catalogue=str(folder / "two.toml"), env=env) as server:
        yield server


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Server]:
    """The fake engine behind one ingress."""
    env = {"ACS_MODELS": str(models_dir), "ACS_LIMIT_BREAKER_OPEN_S": "1"}
    with start_server(tmp_path_factory.mktemp("single"), catalogue="fake", env=env) as server:
        yield server


def census(server: Server) -> collections.Counter[str]:
    """How many processes of each kind there are. A Ray actor's title ends in the method that it runs."""
    words = [process.cmdline.split() or [""] for process in server.processes()]
    kinds = [first.partition(".")[0] if first.startswith("ray::") else first for first, *_ in words]
    return collections.Counter(kind for kind in kinds if kind != "ray::IDLE")


def kill_one(server: Server, what: str, model: str) -> None:
    """Under load; returns when another is in its place, all is well, and nothing of the killed one is left."""
    before = census(server)
    load = Load(server, model, cut_allowed=CUT.get(what, ()), fresh=what in FRESH)
    with load:
        load.succeed_again(RECOVERY_S)
        victim, *dependents = whole_of(server, what, model)
        os.kill(victim, signal.SIGKILL)
        killed_at = time.monotonic()
        load.succeed_again(RECOVERY_S)
        served_again_s = time.monotonic() - killed_at
        within(RECOVERY_S, lambda: AsBefore.of(server, before, [victim, *dependents]))
        whole_again_s = time.monotonic() - killed_at
        load.succeed_again(RECOVERY_S)
    print(f"{what} of {model}: served again {served_again_s:.1f} s, whole {whole_again_s:.1f} s, {dict(load.counts)}")
    assert not load.violations, (len(load.violations), load.violations[:5])


def whole_of(server: Server, what: str, model: str) -> list[int]:
    """The pid of what is to be killed, then of all that must go, and be replaced, with it."""
    if what not in (WORKER, CORE, REPLICA):
        return [server.named(what)[0].pid]
    (replica,) = server.named(f"{REPLICA}{model}:")
    engine = {replica.pid: replica.cmdline} | {p.pid: p.command for p in processes.descendants(replica.pid)}
    (victim,) = [pid for pid, command in engine.items() if what in command]
    return [victim, *(pid for pid in engine if pid != victim)]


@dataclass(frozen=True)
class AsBefore:
    """True when it is. A helper process may have been on its way out before, such as the HAProxy of before a reload,
    which serves its last connections: of those, one has to be there.
    """

    alive: list[int]  # that had to go
    new: collections.Counter[str]
    gone: collections.Counter[str]
    now: collections.Counter[str]

    @classmethod
    def of(cls, server: Server, before: collections.Counter[str], doomed: list[int]) -> AsBefore:
        now = census(server)
        return cls(alive(doomed), now - before, before - now, now)

    def __bool__(self) -> bool:
        missed = [kind for kind in self.gone if kind.startswith(("ray::", "VLLM::")) or not self.now[kind]]
        return not (self.alive or self.new or missed)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if processes.read(pid) is not None]


@pytest.mark.engine
@pytest.mark.parametrize("what", [CORE, REPLICA])
def test_an_engine_that_is_killed_under_load_is_replaced(full: Server, what: str) -> None:
    kill_one(full, what, "toy")


@pytest.mark.engine
@pytest.mark.parametrize("what", [WORKER, *(pytest.param(what, marks=pytest.mark.soak) for what in (CORE, REPLICA))])
def test_an_engine_with_a_worker_of_its_own_that_is_killed_under_load_is_replaced(full: Server, what: str) -> None:
    kill_one(full, what, "apart")


@pytest.mark.engine
@pytest.mark.parametrize("what", [INGRESS, LEDGER, MANAGER, HAPROXY])
def test_a_process_in_front_that_is_killed_under_load_is_replaced(full: Server, what: str) -> None:
    kill_one(full, what, "toy")


@pytest.mark.soak  # the short form: an ingress of two here, the only one in test_holds and test_deaths
@pytest.mark.parametrize("what", [INGRESS, REPLICA])
def test_the_only_one_of_its_kind_that_is_killed_under_load_is_replaced(single: Server, what: str) -> None:
    kill_one(single, what, "fake")


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_kills_in_random_order(full: Server) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    for number in range(int(os.environ.get("ACS_TEST_KILLS", "40"))):
        print(f"kill {number}: ", end="")
        kill_one(full, rng.choice([WORKER, CORE, REPLICA, INGRESS, LEDGER, MANAGER, HAPROXY]), "apart")


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_kills_at_once(full: Server) -> None:
    kinds = [WORKER, CORE, REPLICA, INGRESS, LEDGER, MANAGER]
    for pair in zip(kinds, kinds[1:] + kinds[:1], strict=True):
        before = census(full)
        with Load(full, "apart", cut_allowed=("stream", "unanswered"), fresh=True) as load:
            load.succeed_again(RECOVERY_S)
            doomed = [whole_of(full, what, "apart")[0] for what in pair]
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
            within(RECOVERY_S, lambda: AsBefore.of(full, before, doomed))  # noqa: B023
            load.succeed_again(RECOVERY_S)
        assert not load.violations, (pair, load.violations[:5])


@pytest.mark.engine
def test_no_text_and_no_key_reached_a_log_while_engines_died(full: Server) -> None:
    """vLLM dumps what it was doing when its worker dies."""
    with httpx.Client(base_url=full.v1, headers=full.headers) as client:
        ids = client.post("/completions/tokenize", json={"model": "toy", "prompt": MARK}).json()["tokens"]
    assert sum(1 for _ in files_of_run(full)) > 10
    assert files_with(full, MARK, full.key, "sk-acs-", str(ids)[1:-1]) == []
