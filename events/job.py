"""A Job: one Completion that runs on the server after its client has gone, and whose result is kept for a while.

    queued → running → succeeded | failed
       ↑________|          a try that failed and may be tried again, or a runner that died
    queued | running → cancelled

Its Hold is placed in the commit that submits it and resolved in the one that ends it. Texts are in blobs: the events
carry their addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from eventsourcing.domain import Aggregate


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


@dataclass(slots=True)
class JobRecord:
    """All that a Job remembers."""

    account_id: str
    key_id: str
    model: str
    hold_id: str
    request_id: str  # of the request that submitted it
    request_sha256: str  # the address of a blob
    created_at: int  # Unix seconds, as its client was told
    status: JobStatus = JobStatus.QUEUED
    runs: int = 0  # how often it was started; the number of the last run
    failed_tries: int = 0
    runner: str | None = None  # who runs it, or ran it last
    started_at: datetime | None = None  # of the last run
    finished_at: datetime | None = None
    http_status: int | None = None  # of the Completion
    result_sha256: str | None = None  # the address of a blob; None for a cancelled one
    result_bytes: int = 0
    expired: bool = False  # kept long enough: nobody finds it any more


class Job(Aggregate):
    TOPIC = "acs.events.job:Job"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.job:Job.Created"
        account_id: str
        key_id: str
        model: str
        hold_id: str
        request_id: str
        request_sha256: str
        created_at: int

        def apply(self, job: Job) -> None:
            job.record = JobRecord(
                self.account_id,
                self.key_id,
                self.model,
                self.hold_id,
                self.request_id,
                self.request_sha256,
                self.created_at,
            )

    class Started(Aggregate.Event):
        TOPIC = "acs.events.job:Job.Started"
        run: int  # 1, 2, …
        runner: str

        def apply(self, job: Job) -> None:
            record = job.record
            record.status, record.started_at = JobStatus.RUNNING, self.timestamp
            record.runs, record.runner = self.run, self.runner

    class TryFailed(Aggregate.Event):
        """In a way that is worth another try: it waits for its turn again."""

        TOPIC = "acs.events.job:Job.TryFailed"
        code: str  # an error's
        http_status: int

        def apply(self, job: Job) -> None:
            job.record.status = JobStatus.QUEUED
            job.record.failed_tries += 1

    class Interrupted(Aggregate.Event):
        """Its runner is gone: it waits for its turn again. No try of its own has failed."""

        TOPIC = "acs.events.job:Job.Interrupted"

        def apply(self, job: Job) -> None:
            job.record.status = JobStatus.QUEUED

    class Succeeded(Aggregate.Event):
        TOPIC = "acs.events.job:Job.Succeeded"
        http_status: int
        result_sha256: str
        result_bytes: int

        def apply(self, job: Job) -> None:
            job.end(JobStatus.SUCCEEDED, self)

    class Failed(Aggregate.Event):
        TOPIC = "acs.events.job:Job.Failed"
        http_status: int
        code: str | None  # an error's
        result_sha256: str
        result_bytes: int

        def apply(self, job: Job) -> None:
            job.end(JobStatus.FAILED, self)

    class Cancelled(Aggregate.Event):
        TOPIC = "acs.events.job:Job.Cancelled"
        reason: str  # asked, account_suspended

        def apply(self, job: Job) -> None:
            job.record.status, job.record.finished_at = JobStatus.CANCELLED, self.timestamp

    class ResultExpired(Aggregate.Event):
        """It has been kept long enough: from now on nobody finds it, and its blobs go."""

        TOPIC = "acs.events.job:Job.ResultExpired"

        def apply(self, job: Job) -> None:
            job.record.expired = True

    def __init__(self) -> None:  # the record is made by the first event
        self.record: JobRecord

    @classmethod
    def submit(cls, id: UUID, now: datetime, **fields: object) -> Job:
        """`fields`: those of Created."""
        return cls._create(cls.Created, id=id, timestamp=now, **fields)

    @classmethod
    def restored(cls, id: UUID, version: int, record: JobRecord) -> Job:
        """As its events up to `version` made it."""
        job = cls.__new__(cls)
        job.__base_init__(id, version, datetime.now(UTC))
        job.record = record
        return job

    # Commands. Whether each may be done is seen from `record.status` by the caller, the ledger's Jobs.

    def start(self, runner: str, now: datetime) -> None:
        """Of a queued one."""
        self.trigger_event(self.Started, run=self.record.runs + 1, runner=runner, timestamp=now)

    def note_failed_try(self, code: str, http_status: int, now: datetime) -> None:
        """Of a running one."""
        self.trigger_event(self.TryFailed, code=code, http_status=http_status, timestamp=now)

    def interrupt(self, now: datetime) -> None:
        """Of a running one."""
        self.trigger_event(self.Interrupted, timestamp=now)

    def succeed(self, http_status: int, result_sha256: str, result_bytes: int, now: datetime) -> None:
        """Of a running one."""
        result = {"http_status": http_status, "result_sha256": result_sha256, "result_bytes": result_bytes}
        self.trigger_event(self.Succeeded, **result, timestamp=now)

    def fail(self, http_status: int, code: str | None, result_sha256: str, result_bytes: int, now: datetime) -> None:
        """Of a running one."""
        result = {"http_status": http_status, "result_sha256": result_sha256, "result_bytes": result_bytes}
        self.trigger_event(self.Failed, **result, code=code, timestamp=now)

    def cancel(self, reason: str, now: datetime) -> None:
        """Of one that has not ended."""
        self.trigger_event(self.Cancelled, reason=reason, timestamp=now)

    def expire(self, now: datetime) -> None:
        """Of one that has ended."""
        self.trigger_event(self.ResultExpired, timestamp=now)

    # Inside events

    def end(self, status: JobStatus, event: Any) -> None:
        """For the events only."""
        record = self.record
        record.status, record.finished_at, record.http_status = status, event.timestamp, event.http_status
        record.result_sha256, record.result_bytes = event.result_sha256, event.result_bytes
