"""How Jobs, and Branches like them, run and end: their turns, the one runner, tries that fail, runs that are stopped or
lost.

A Job's Hold is resolved in the commit that ends it. The runner is told what to run when the Job's start is on disk, and
told again when its link or this ledger comes back, so that nothing is lost on the way. A run is known by its number:
what is said of one that no longer counts changes nothing. When the runner is gone, what it ran waits at the front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from acs.events.job import JobStatus
from acs.events.loom_tree import BranchRecord
from acs.platform.clock import Clock
from acs.platform.ledger.background import Background, Record
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import Release, Settle
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.erasing import Erase, erasing
from acs.platform.ledger.job_contract import Finish, RunJob, StopJob, Work
from acs.platform.ledger.job_queue import JobTicket
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.runner_link import RunnerLink
from acs.platform.ledger.traffic import Traffic
from acs.platform.limits import Limits
from acs.storage.event_store import Event

Ended = Callable[[bool], None]  # is told whether what was to be cancelled ended so
RETRY_GROWTH = 4  # each pause before another try is so many times the one before
ASKED, ACCOUNT_SUSPENDED = "asked", "account_suspended"  # why something was cancelled


class JobRuns:
    def __init__(
        self,
        desk: Desk,
        memory: Memory,
        traffic: Traffic,
        commits: Commits,
        limits: Limits,
        clock: Clock,
        now: Callable[[], datetime],
        erase: Erase,
    ) -> None:
        """What was queued or running goes on: queued Jobs wait for their turn, running ones keep their slots until
        their runner is heard of. `erase`: requests and results that nobody needs any more.
        """
        self._desk = desk
        self._jobs, self._books, self._table = Background(memory.jobs, memory.looms), memory.books, memory.table
        self._traffic = traffic
        self._commits = commits
        self._limits = limits
        self._clock = clock
        self._now = now
        self._erase = erase
        self._link: RunnerLink[Work] = RunnerLink(clock, limits.owner_lease_s)
        self._stopping: dict[str, list[Ended]] = {}  # running Jobs that are to be cancelled
        self._paused: dict[str, float] = {}  # Jobs that wait for another try → when
        for job_id in self._jobs.unfinished():
            record = self._jobs[job_id]
            if record.status is JobStatus.RUNNING:
                traffic.start(record.hold_id, None, record.model)
            else:
                self.queue(job_id)

    # Called for whoever submits and cancels. Each may leave a slot free: `Desk.call_next` is to be called then.

    def queue(self, job_id: str, *, first: bool = False) -> None:
        """It waits for its turn. `first`: before its account's others."""
        record = self._jobs[job_id]
        self._traffic.wait_for_job(JobTicket(job_id, record.account_id, record.model, self._start), first=first)

    def cancel(self, job_id: str, ended: Ended) -> None:
        """One that has not ended. A running one is stopped first; it may end otherwise before it is."""
        record = self._jobs[job_id]
        if record.status is JobStatus.RUNNING:
            self._stopping.setdefault(job_id, []).append(ended)
            self._commits.add((), self._telling(job_id, StopJob(job_id, record.runs)))
        else:
            self._cancelled(job_id, ASKED)
            ended(True)

    # Called for the runner

    def came(self, name: str, tell: Callable[[Work], None]) -> None:
        self._link.came(name, tell)
        for job_id, record in self._jobs.running():
            if record.runner == name:
                self._tell_to_run(job_id, ())
            else:
                self._interrupt(job_id)

    def left(self, name: str) -> None:
        if self._link.left(name):
            self._traffic.offer_jobs(())

    def offers(self, name: str, models: Iterable[str]) -> None:
        if name == self._link.runner:
            self._traffic.offer_jobs(models)

    def finish(self, name: str, told: Finish) -> None:
        record = self._jobs.get(told.job_id)
        if record is None or (record.runs, record.runner) != (told.run, name):
            return self._commits.add((), erasing(self._erase, *told.addresses))  # somebody else's run counts
        if record.status is not JobStatus.RUNNING:  # told again
            return
        stopping = told.job_id in self._stopping
        if told.http_status is None:
            used = Settle(record.hold_id, record.account_id, told.prompt_tokens, told.completion_tokens, None)
            self._cancelled(told.job_id, ASKED, used)
        elif told.retryable and stopping:
            self._cancelled(told.job_id, ASKED)
        elif told.retryable and record.failed_tries + 1 < self._limits.job_tries:
            self._pause(record, told)
        else:
            self._answered(record, told)
        self._commits.add((), erasing(self._erase, *self._jobs.unwanted(told)))

    def look_after(self) -> None:
        """To be called every second or so: Jobs whose runner stays away, and tries that are due."""
        now = self._clock.now()
        if self._link.stays_away:
            for job_id, _ in self._jobs.running():
                self._interrupt(job_id)
        for job_id in [job_id for job_id, due in self._paused.items() if due <= now]:
            del self._paused[job_id]
            self.queue(job_id, first=True)

    # Inside

    def _start(self, job_id: str) -> None:
        """Its turn has come."""
        record = self._jobs[job_id]
        assert self._link.runner is not None, "no Job has its turn without an offer"
        if self._table.account_is_suspended(record.account_id):
            return self._cancelled(job_id, ACCOUNT_SUSPENDED)
        self._traffic.start(record.hold_id, None, record.model)
        self._tell_to_run(job_id, self._jobs.start(job_id, self._link.runner, self._now()))

    def _tell_to_run(self, job_id: str, events: Sequence[Event]) -> None:
        """Once these are on disk."""
        record, quote = self._jobs[job_id], self._books.open_holds[self._jobs[job_id].hold_id][1].quote
        whose = record.account_id, record.key_id, record.request_id, record.request_sha256
        node_ids = record.node_ids if isinstance(record, BranchRecord) else []
        work = RunJob(job_id, record.runs, *whose, quote.prompt_tokens, quote.max_tokens, node_ids)
        self._commits.add(events, self._telling(job_id, work))
        if job_id in self._stopping:
            self._commits.add((), self._telling(job_id, StopJob(job_id, record.runs)))

    def _telling(self, job_id: str, work: Work) -> Callable[[], None]:
        return self._link.telling(self._jobs[job_id], work)

    def _pause(self, record: Record, told: Finish) -> None:
        """Its slot is free meanwhile."""
        assert told.http_status is not None
        self._traffic.end(record.hold_id)
        self._paused[told.job_id] = self._clock.now() + self._limits.job_retry_s * RETRY_GROWTH**record.failed_tries
        failed = self._jobs.note_failed_try(told.job_id, told.code or "", told.http_status, self._now())
        self._commits.add(failed, erasing(self._erase, told.result_sha256))

    def _interrupt(self, job_id: str) -> None:
        """Its runner is gone; what it had done by then counts for nothing."""
        if job_id in self._stopping:
            return self._cancelled(job_id, ASKED)
        self._traffic.end(self._jobs[job_id].hold_id)
        self._commits.add(self._jobs.interrupt(job_id, self._now()))
        self.queue(job_id, first=True)

    def _answered(self, record: Record, told: Finish) -> None:
        """With the Completion's own status."""
        assert told.http_status is not None
        whose, resolution = (record.hold_id, record.account_id), None
        if told.http_status == 200:
            resolution = Settle(*whose, told.prompt_tokens, told.completion_tokens, 200)
        ended = self._jobs.end(told, self._now())
        self._end(
            told.job_id, record, ended, resolution or Release(*whose, told.code or "unavailable", told.http_status)
        )

    def _cancelled(self, job_id: str, reason: str, used: Settle | None = None) -> None:
        record = self._jobs[job_id]
        nothing = Release(record.hold_id, record.account_id, "cancelled", None)
        self._end(job_id, record, self._jobs.cancel(job_id, reason, self._now()), used or nothing)

    def _end(self, job_id: str, record: Record, ended: Sequence[Event], resolution: Settle | Release) -> None:
        """Each way to end leads here: the Job's end and its Hold's in one commit."""
        _, resolved = self._desk.resolved(resolution)
        self._traffic.end(record.hold_id)
        self._traffic.leave_job(job_id)
        self._paused.pop(job_id, None)
        self._commits.add([*ended, *resolved], erasing(self._erase, record.request_sha256))
        for tell in self._stopping.pop(job_id, ()):
            tell(record.status is JobStatus.CANCELLED)
