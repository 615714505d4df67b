"""Jobs through `kill -9` of everything that has a part in them: each ends exactly once, none is lost, none is charged
twice. What is believed is the events.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server.killing import INGRESS, LEDGER, RECOVERY_S, REPLICA, RUNNER, SERVER, Killed
from server.waiting import within

from acs.events.ids import JOB, show
from acs.events.job import Job
from acs.events.ledger import Ledger

pytestmark = pytest.mark.server

PATH = "/completion-jobs"
ENDS = (Job.Succeeded, Job.Failed, Job.Cancelled)
RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)


class Submitting:
    """Clients that submit Jobs without a pause, each under an Idempotency-Key, and send again what was not answered.
    Some Jobs they cancel at once, and take it as it comes.
    """

    def __init__(self, world: World, clients: int = 4) -> None:
        self.ids: list[str] = []
        self._world = world
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Submitting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _submit(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            key = f"{self._world.server.process.pid}-{client}-{number}"
            body = {"model": "fake", "prompt": key, "max_tokens": 1 + number % 40}
            while not self._over.is_set():
                with contextlib.suppress(httpx.TransportError):
                    answer = self._world.ask("POST", PATH, json=body, headers={"Idempotency-Key": key})
                    if answer.status_code == 202:
                        self.ids.append(answer.json()["id"])
                        if number % 7 == 0:
                            self._world.ask("POST", f"{PATH}/{self.ids[-1]}/cancel")
                        break
                    assert answer.status_code in (409, 429, 502, 503), answer.text
                time.sleep(0.1)


class World(Killed):
    def finished(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            pages = [self.ask("GET", f"{PATH}?limit=1&status={status}") for status in ("queued", "running")]
            return all(page.status_code == 200 and not page.json()["data"] for page in pages)
        return False

    def judge(self, ids: list[str]) -> collections.Counter[str]:
        """By the events; how the Jobs ended."""
        events = self.events()
        ends = {kind: [e for e in events if isinstance(e, kind)] for kind in (Job.Created, ENDS, RESOLVED)}
        submitted = {show(JOB, event.originator_id): event for event in ends[Job.Created]}
        ended = {show(JOB, event.originator_id): event for event in ends[ENDS]}
        resolved = {event.hold_id: event for event in ends[RESOLVED]}
        assert set(ids) <= set(submitted), "none that was answered with 202 is lost"
        assert len(ends[ENDS]) == len(ended) == len(submitted), "each ends exactly once"
        assert set(ended) == set(submitted)
        assert len(ends[RESOLVED]) == len(resolved) == len(submitted), "each Hold is resolved exactly once"
        for job_id, end in ended.items():
            hold = resolved[submitted[job_id].hold_id]
            assert isinstance(end, Job.Succeeded) == (isinstance(hold, Ledger.HoldSettled) and hold.http_status == 200)
        return collections.Counter(type(end).__name__ for end in ended.values())


@pytest.fixture
def world(tmp_path: Path, models_dir: Path) -> Iterator[World]:
    world = World(tmp_path, models_dir)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: world.server.stop())
        yield world


def story(world: World, kills: list[str], pause_s: float) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    with Submitting(world) as submitting:
        within(RECOVERY_S, lambda: submitting.ids)
        for what in kills:
            before = len(submitting.ids)
            time.sleep(rng.random() * pause_s)  # the moment is the point
            world.kill(what)
            within(RECOVERY_S, lambda: len(submitting.ids) > before + 10)  # noqa: B023
    within(RECOVERY_S, world.finished)
    outcomes = world.judge(submitting.ids)
    print(f"{len(submitting.ids)} Jobs, {len(kills)} kills: {dict(outcomes)}")
    assert "Failed" not in outcomes


def test_jobs_live_through_the_death_of_every_part_of_the_server(world: World) -> None:
    story(world, [RUNNER, LEDGER, REPLICA, SERVER, INGRESS], 0.5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_jobs_live_through_forty_deaths(world: World) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    story(
        world,
        rng.choices(
            [RUNNER, LEDGER, REPLICA, INGRESS, SERVER], (4, 4, 4, 2, 1), k=int(os.environ.get("ACS_TEST_KILLS", "40"))
        ),
        3,
    )
