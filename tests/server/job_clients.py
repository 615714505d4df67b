"""Clients of a server whose parts are killed, which submit Jobs; and what the events must say of those Jobs."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from typing import Any

import httpx
from server.killing import RESOLVED, Killed

from acs.events.ids import JOB, show
from acs.events.job import Job
from acs.events.ledger import Ledger

PATH = "/completion-jobs"
ENDS = (Job.Succeeded, Job.Failed, Job.Cancelled)


class Submitting:
    """Clients that submit Jobs without a pause, each under an Idempotency-Key, and send again what was not answered.
    Some Jobs they cancel at once, and take it as it comes.
    """

    def __init__(self, world: Killed, clients: int = 4) -> None:
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

    def finished(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            pages = [self._world.ask("GET", f"{PATH}?limit=1&status={status}") for status in ("queued", "running")]
            return all(page.status_code == 200 and not page.json()["data"] for page in pages)
        return False

    def judge(self, events: list[Any]) -> set[str]:
        """By the events: each Job ends exactly once, none is lost, none fails or is charged twice. Their Holds."""
        created = {show(JOB, event.originator_id): event for event in events if isinstance(event, Job.Created)}
        ends = [event for event in events if isinstance(event, ENDS)]
        ended = {show(JOB, event.originator_id): event for event in ends}
        holds = {event.hold_id: job_id for job_id, event in created.items()}
        resolved = [event for event in events if isinstance(event, RESOLVED) and event.hold_id in holds]
        assert set(self.ids) <= set(created), "none that was answered with 202 is lost"
        assert len(ends) == len(created)
        assert set(ended) == set(created), "each ends exactly once"
        assert len(resolved) == len({event.hold_id for event in resolved}) == len(holds), "each Hold is resolved once"
        for hold in resolved:
            succeeded = isinstance(ended[holds[hold.hold_id]], Job.Succeeded)
            assert succeeded == (isinstance(hold, Ledger.HoldSettled) and hold.http_status == 200)
        outcomes = collections.Counter(type(end).__name__ for end in ends)
        print(f"{len(self.ids)} Jobs: {dict(outcomes)}")
        assert "Failed" not in outcomes
        return set(holds)
