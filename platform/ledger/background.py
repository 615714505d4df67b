"""What runs in the background, by its id: Jobs and Branches, each in a memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from acs.events.ids import BRANCH
from acs.events.job import JobRecord
from acs.events.loom_tree import BranchRecord
from acs.platform.ledger.job_contract import Finish
from acs.platform.ledger.jobs import Jobs
from acs.platform.ledger.looms import Looms
from acs.storage.event_store import Event

Record = JobRecord | BranchRecord


class Background:
    """An id says by its first letters what it is of."""

    def __init__(self, jobs: Jobs, looms: Looms) -> None:
        self._jobs = jobs
        self._looms = looms

    def __getitem__(self, id: str) -> Record:
        return self._of(id)[id]

    def get(self, id: str) -> Record | None:
        return self._of(id).get(id)

    def unfinished(self) -> list[str]:
        """In the order in which they were asked for."""
        return sorted([*self._jobs.unfinished(), *self._looms.unfinished()], key=lambda id: id.partition("_")[2])

    def running(self) -> list[tuple[str, Record]]:
        return [*self._jobs.running(), *self._looms.running()]

    def start(self, id: str, runner: str, now: datetime) -> Sequence[Event]:
        return self._of(id).start(id, runner, now)

    def note_failed_try(self, id: str, code: str, http_status: int, now: datetime) -> Sequence[Event]:
        return self._of(id).note_failed_try(id, code, http_status, now)

    def interrupt(self, id: str, now: datetime) -> Sequence[Event]:
        return self._of(id).interrupt(id, now)

    def end(self, told: Finish, now: datetime) -> Sequence[Event]:
        return self._of(told.job_id).end(told, now)

    def unwanted(self, told: Finish) -> list[str]:
        """Addresses of blobs that came with the end of a run, and that nobody needs as things stand now."""
        return self._looms.unwanted(told) if self._of(told.job_id) is self._looms else []

    def cancel(self, id: str, reason: str, now: datetime) -> Sequence[Event]:
        return self._of(id).cancel(id, reason, now)

    def _of(self, id: str) -> Jobs | Looms:
        return self._looms if id.startswith(f"{BRANCH}_") else self._jobs
