"""Where Jobs are submitted, looked at and cancelled, beside the desk that lets clients' requests in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from acs.events.refused import Refused
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import Kept, Open
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.erasing import Erase, erasing
from acs.platform.ledger.job_contract import (
    Browse,
    Cancel,
    Finish,
    JobCommand,
    JobReply,
    JobsTold,
    JobTold,
    LookAt,
    Noted,
    Offer,
    Repeated,
    Submit,
    SubmitRefused,
    Work,
)
from acs.platform.ledger.job_runs import JobRuns
from acs.platform.ledger.jobs import page, view
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.refusals import refusal_of
from acs.platform.ledger.traffic import Traffic
from acs.platform.limits import Limits
from acs.storage.event_store import Event

Answer = Callable[[JobReply], None]
CANCELLED = Kept(200, "", 0)  # what a repetition is given is the Job, which changes no more
EXPIRED_AT_ONCE = 1000  # results that one look may let expire, so that it stays short


class JobDesk:
    def __init__(
        self,
        desk: Desk,
        runs: JobRuns,
        memory: Memory,
        traffic: Traffic,
        commits: Commits,
        limits: Limits,
        now: Callable[[], datetime],
        erase: Erase,
    ) -> None:
        self._desk = desk
        self._runs = runs
        self._jobs, self._books, self._repeats = memory.jobs, memory.books, memory.repeats
        self._traffic = traffic
        self._commits = commits
        self._limits = limits
        self._now = now
        self._erase = erase
        self._kept = timedelta(seconds=limits.job_kept_s)

    def handle(self, owner: str, command: JobCommand, answer: Answer) -> None:
        """`owner` sent it. A command that comes again is answered as before and applied once."""
        match command:
            case LookAt():
                return self._tell_of(command, command.account_id, answer)
            case Browse():
                return self._tell_page(command, answer)
            case Submit():
                self._submit(command, answer)
            case Cancel():
                self._cancel(command, answer)
            case Offer():
                self._runs.offers(owner, command.models)
            case Finish():
                self._runs.finish(owner, command)
                self._commits.add((), lambda: answer(Noted(command.ask)))
        self._desk.call_next()

    def runner_came(self, name: str, tell: Callable[[Work], None]) -> None:
        self._runs.came(name, tell)
        self._desk.call_next()

    def runner_left(self, name: str) -> None:
        self._runs.left(name)

    def look_after(self) -> None:
        """To be called every second or so: what is due, and results that have been kept long enough."""
        self._runs.look_after()
        self._desk.call_next()
        for job_id, record in self._jobs.ended_before(self._now() - self._kept, EXPIRED_AT_ONCE):
            self._commits.add(self._jobs.expire(job_id, self._now()), erasing(self._erase, record.result_sha256))

    # Inside

    def _submit(self, command: Submit, answer: Answer) -> None:
        order = command.order
        if command.job_id not in self._jobs:
            try:
                if (kept := self._judged(order)) is not None:
                    return answer(Repeated(command.ask, kept))
            except Refused as refused:
                return answer(SubmitRefused(command.ask, refusal_of(order, refused)))
            self._commits.add(self._taken(command))
            self._traffic.count(order.key_id)
            self._runs.queue(command.job_id)
        self._tell_of(command, order.account_id, answer)

    def _judged(self, order: Open) -> Kept | None:
        """None: the Job may be taken. Otherwise the answer of an earlier request that was the same. Raises Refused."""
        if (kept := self._desk.judge_later_work(order)) is not None:
            return kept
        self._jobs.judge_capacity(order.account_id, self._limits.account_jobs)
        return None

    def _taken(self, command: Submit) -> Sequence[Event]:
        order, now = command.order, self._now()
        _, placed = self._books.place(order, command.job_id, now)
        submitted = self._jobs.submit(
            command.job_id,
            now,
            account_id=order.account_id,
            key_id=order.key_id,
            model=order.model,
            hold_id=order.hold_id,
            request_id=order.request_id,
            request_sha256=command.request_sha256,
            created_at=command.created_at,
        )
        return [*placed, *submitted, *self._repeats.answered(order.key, order.hold_id, now, command.answer)]

    def _cancel(self, command: Cancel, answer: Answer) -> None:
        record = self._jobs.get(command.job_id)
        if record is None or record.account_id != command.account_id or record.status.ended:
            return self._tell_of_cancelled(command, answer, was_ended=True)

        def ended(cancelled: bool) -> None:
            if cancelled and self._repeats.judge(command.key, None, self._now()) is None:
                self._commits.add(self._repeats.answered(command.key, command.job_id, self._now(), CANCELLED))
            self._tell_of_cancelled(command, answer, was_ended=not cancelled)

        self._runs.cancel(command.job_id, ended)

    def _tell_of_cancelled(self, command: Cancel, answer: Answer, *, was_ended: bool) -> None:
        """`was_ended`: before it was asked for, unless it was asked for under the same Idempotency-Key."""
        repeated = was_ended and self._repeats.judge(command.key, None, self._now()) is not None
        self._tell_of(command, command.account_id, answer, was_ended=was_ended, repeated=repeated)

    def _tell_of(
        self,
        command: Submit | LookAt | Cancel,
        account_id: str,
        answer: Answer,
        *,
        was_ended: bool = False,
        repeated: bool = False,
    ) -> None:
        """As it stands now, once that is on disk."""
        record = self._jobs.get(command.job_id)
        known = record is not None and record.account_id == account_id
        shown = view(command.job_id, record, self._kept) if record is not None and known else None
        self._commits.add((), lambda: answer(JobTold(command.ask, shown, was_ended, repeated)))

    def _tell_page(self, command: Browse, answer: Answer) -> None:
        listed = self._jobs.newest_first(command.account_id, command.after)
        told = JobsTold(command.ask, *page(listed, command.limit, command.status, self._kept))
        self._commits.add((), lambda: answer(told))
