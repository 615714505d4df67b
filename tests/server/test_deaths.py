"""Jobs and Looms through `kill -9` of everything that has a part in them: each ends exactly once, none is lost, none is
charged twice. What is believed is the events.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.job_clients import Submitting
from server.killing import INGRESS, LEDGER, RECOVERY_S, REPLICA, RESOLVED, RUNNER, SERVER, Killed
from server.loom_clients import Branching
from server.waiting import within

pytestmark = pytest.mark.server


@pytest.fixture
def world(tmp_path: Path, models_dir: Path) -> Iterator[Killed]:
    limits = {"ACS_LIMIT_LOOM_NODES": "100000", "ACS_LIMIT_KEY_LOOM_WAITS": "1000"}
    world = Killed(tmp_path, models_dir, **limits)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: world.server.stop())
        yield world


def story(world: Killed, loom_clients: int, kills: list[str], pause_s: float) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    with Submitting(world) as jobs, Branching(world, loom_clients) as loom:
        within(RECOVERY_S, lambda: jobs.ids and len(loom.seen) > 10)
        for what in kills:
            had = len(jobs.ids), len(loom.asked)
            time.sleep(rng.random() * pause_s)  # the moment is the point
            world.kill(what)
            within(RECOVERY_S, lambda: gone_on(jobs, loom, had))  # noqa: B023
    within(RECOVERY_S, jobs.finished)
    loom.settle()
    events = world.events()
    holds = jobs.judge(events) | loom.judge(events)
    assert {event.hold_id for event in events if isinstance(event, RESOLVED)} == holds


def gone_on(jobs: Submitting, loom: Branching, had: tuple[int, int]) -> bool:
    return bool(loom.faults) or (len(jobs.ids) > had[0] + 10 and len(loom.asked) > had[1] + 20)


def test_jobs_and_looms_live_through_the_death_of_every_part_of_the_server(world: Killed) -> None:
    story(world, 8, [RUNNER, LEDGER, REPLICA, SERVER, INGRESS], 0.5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_jobs_and_fifty_clients_of_one_loom_live_through_forty_deaths(world: Killed) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    kills = rng.choices([RUNNER, LEDGER, REPLICA, INGRESS, SERVER], (4, 4, 4, 2, 1), k=40)
    story(world, 50, kills[: int(os.environ.get("ACS_TEST_KILLS", "40"))], 3)
