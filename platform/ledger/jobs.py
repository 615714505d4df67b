"""The ledger's memory of Jobs: those that have not ended, and those whose results are kept. A fold of the log.

Each command appends the Job's own event; its Hold's goes into the same commit (`acs.platform.ledger.job_runs`). What is
kept are records, 1.1 KB each; the aggregate is made of one when a command needs it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from acs.events.ids import JOB, parse, show
from acs.events.job import Job, JobRecord, JobStatus
from acs.events.refused import Refused
from acs.platform.ledger.job_contract import Finish, JobView
from acs.storage.event_store import Event


class Jobs:
    """Job ids are those people see (`job_…`)."""

    def __init__(self) -> None:
        self._records: dict[str, JobRecord] = {}
        self._versions: dict[str, int] = {}
        self._of_account: dict[str, list[str]] = {}  # ids, which sort by the time they were made
        self._unfinished: dict[str, set[str]] = {}  # account → ids
        self._ended: dict[str, None] = {}  # ids, in the order in which they ended

    def apply(self, event: Any) -> None:
        """One event of a Job, as the log has it."""
        job_id = show(JOB, event.originator_id)
        job = event.mutate(self._job(job_id) if job_id in self else None)
        self.keep(job_id, job.version, job.record)

    def everything(self) -> Iterator[tuple[str, int, JobRecord]]:
        """(id, version, record), for a checkpoint: first those that have ended, in the order in which they did."""
        for job_id in [*self._ended, *self.unfinished()]:
            yield job_id, self._versions[job_id], self._records[job_id]

    def keep(self, job_id: str, version: int, record: JobRecord) -> None:
        """As its events up to `version` made it."""
        self._versions[job_id] = version
        if job_id not in self:
            self._records[job_id] = record
            insort(self._of_account.setdefault(record.account_id, []), job_id)
        unfinished = self._unfinished.setdefault(record.account_id, set())
        if not record.status.ended:
            unfinished.add(job_id)
        elif not record.expired:
            unfinished.discard(job_id)
            self._ended.setdefault(job_id)
        else:
            self._forget(job_id, record.account_id)

    def unfinished(self) -> list[str]:
        """In the order in which they were submitted."""
        return sorted(itertools.chain(*self._unfinished.values()))

    def judge_capacity(self, account_id: str, allowed: int) -> None:
        """Raises JobCapacityReached when the account may have no more that have not ended."""
        unfinished = len(self._unfinished.get(account_id, ()))
        if unfinished >= allowed:
            raise JobCapacityReached(f"The account has {unfinished} unfinished Jobs; {allowed} are allowed.")

    def running(self) -> list[tuple[str, JobRecord]]:
        jobs = [(job_id, self._records[job_id]) for job_id in self.unfinished()]
        return [(job_id, record) for job_id, record in jobs if record.status is JobStatus.RUNNING]

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._records

    def __getitem__(self, job_id: str) -> JobRecord:
        """Of one that is known to be there."""
        return self._records[job_id]

    def get(self, job_id: str) -> JobRecord | None:
        """None: there is none, or its result has expired."""
        return self._records.get(job_id)

    def newest_first(self, account_id: str, after: str | None) -> Iterator[tuple[str, JobRecord]]:
        """Those of the account; `after`: only those made before this one, which need not be there any more."""
        ids = self._of_account.get(account_id, [])
        end = len(ids) if after is None else bisect_left(ids, after)
        return ((ids[i], self._records[ids[i]]) for i in range(end - 1, -1, -1))

    def ended_before(self, moment: datetime, limit: int) -> Iterator[tuple[str, JobRecord]]:
        """Oldest first, `limit` at most."""
        for job_id in list(itertools.islice(self._ended, limit)):
            record = self._records[job_id]
            assert record.finished_at is not None
            if record.finished_at >= moment:
                return
            yield job_id, record

    # Commands: each returns the events it appended

    def submit(self, job_id: str, now: datetime, **fields: object) -> Sequence[Event]:
        """`fields`: those of Job.Created."""
        return self._appended(Job.submit(_uuid(job_id), now, **fields))

    def start(self, job_id: str, runner: str, now: datetime) -> Sequence[Event]:
        return self._changed(job_id, lambda job: job.start(runner, now))

    def note_failed_try(self, job_id: str, code: str, http_status: int, now: datetime) -> Sequence[Event]:
        return self._changed(job_id, lambda job: job.note_failed_try(code, http_status, now))

    def interrupt(self, job_id: str, now: datetime) -> Sequence[Event]:
        return self._changed(job_id, lambda job: job.interrupt(now))

    def end(self, told: Finish, now: datetime) -> Sequence[Event]:
        """By the Completion's own status."""
        status, result = told.http_status, (told.result_sha256, told.result_bytes)
        assert status is not None
        if status == 200:
            return self._changed(told.job_id, lambda job: job.succeed(status, *result, now))
        return self._changed(told.job_id, lambda job: job.fail(status, told.code, *result, now))

    def cancel(self, job_id: str, reason: str, now: datetime) -> Sequence[Event]:
        return self._changed(job_id, lambda job: job.cancel(reason, now))

    def expire(self, job_id: str, now: datetime) -> Sequence[Event]:
        return self._changed(job_id, lambda job: job.expire(now))

    # Inside

    def _changed(self, job_id: str, change: Callable[[Job], None]) -> Sequence[Event]:
        job = self._job(job_id)
        change(job)
        return self._appended(job)

    def _appended(self, job: Job) -> Sequence[Event]:
        events = job.collect_events()
        self.keep(show(JOB, job.id), job.version, job.record)
        return events

    def _job(self, job_id: str) -> Job:
        return Job.restored(_uuid(job_id), self._versions[job_id], self._records[job_id])

    def _forget(self, job_id: str, account_id: str) -> None:
        del self._records[job_id], self._versions[job_id], self._ended[job_id]
        ids = self._of_account[account_id]
        del ids[bisect_left(ids, job_id)]


def view(job_id: str, record: JobRecord, kept: timedelta) -> JobView:
    """`kept`: how long a result is, from the end of its Job."""
    finished_at = record.finished_at
    return JobView(
        id=job_id,
        status=record.status.value,
        model=record.model,
        created_at=record.created_at,
        started_at=_seconds(record.started_at),
        finished_at=_seconds(finished_at),
        http_status=record.http_status,
        expires_at=None if finished_at is None else _seconds(finished_at + kept),
        result_sha256=record.result_sha256,
        result_bytes=record.result_bytes,
    )


def page(
    jobs: Iterable[tuple[str, JobRecord]], limit: int, status: str | None, kept: timedelta
) -> tuple[list[JobView], bool]:
    """The first `limit` of those in this status, and whether there are more."""
    wanted = None if status is None else JobStatus(status)
    found: list[JobView] = []
    for job_id, record in jobs:
        if wanted is None or record.status is wanted:
            if len(found) == limit:
                return found, True
            found.append(view(job_id, record, kept))
    return found, False


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def _uuid(job_id: str) -> UUID:
    id = parse(JOB, job_id)
    assert id is not None, "the ingress made it"
    return id


class JobCapacityReached(Refused):
    pass
