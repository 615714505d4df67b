"""Where Harvests are submitted, looked at, waited for and cancelled, beside the desks of requests and of Jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from acs.events.harvest import HarvestStatus
from acs.events.refused import Refused
from acs.platform.clock import Clock
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import Kept
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.erasing import Erase
from acs.platform.ledger.harvest_capacity import judge_capacity
from acs.platform.ledger.harvest_contract import (
    AskKept,
    AskPace,
    BrowseHarvests,
    CancelHarvest,
    EndHarvest,
    EndWait,
    FileTold,
    HarvestCommand,
    HarvestNoted,
    HarvestReply,
    HarvestsTold,
    HarvestTold,
    HarvestWork,
    KeptTold,
    LookAtFile,
    LookAtHarvest,
    NoteShard,
    PaceTold,
    SubmitHarvest,
    WaitForHarvest,
)
from acs.platform.ledger.harvest_runs import HarvestRuns
from acs.platform.ledger.harvest_views import page, sha256_of, view
from acs.platform.ledger.harvests import REMEMBERED
from acs.platform.ledger.job_contract import Repeated, SubmitRefused
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.refusals import refusal_of
from acs.platform.ledger.traffic import Traffic
from acs.platform.ledger.waits import Waits
from acs.platform.limits import Limits
from acs.storage.event_store import Event

Answer = Callable[[HarvestReply | Repeated | SubmitRefused], None]
PACE_HARVESTS = 3  # the last ones of a model, of which an estimate is made
EXPIRED_AT_ONCE = 100  # that one look may let expire, so that it stays short


class HarvestDesk:
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
        """Harvests that were running go on when their runner, or another, is heard of."""
        self._desk = desk
        self._runs = HarvestRuns(desk, memory, commits, limits, clock, now, erase)
        self._harvests, self._books, self._repeats = memory.harvests, memory.books, memory.repeats
        self._table = memory.table
        self._traffic = traffic
        self._commits = commits
        self._limits = limits
        self._now = now
        self._kept = timedelta(seconds=limits.harvest_kept_s)
        self._waits = Waits(clock, limits.key_harvest_waits, limits.platform_harvest_waits)
        self._harvests.on_change = self._waits.changed

    def handle(self, owner: str, command: HarvestCommand, answer: Answer) -> None:
        """`owner` sent it. A command that comes again is answered as before and applied once."""
        match command:
            case LookAtHarvest():
                self._tell_of(command, answer)
            case WaitForHarvest():
                self._wait(owner, command, answer)
            case EndWait():
                self._waits.end((owner, command.ask))
            case BrowseHarvests():
                listed = self._harvests.newest_first(command.account_id, command.after)
                shown = page(listed, command.limit, command.status, self._kept)
                self._tell(answer, HarvestsTold(command.ask, *shown))
            case SubmitHarvest():
                self._submit(command, answer)
            case CancelHarvest():
                self._cancel(command, answer)
            case AskPace():
                pace = self._harvests.pace_of(command.model, PACE_HARVESTS)
                self._tell(answer, PaceTold(command.ask, pace))
            case LookAtFile():
                self._tell(answer, FileTold(command.ask, self._sha256_of(command)))
            case NoteShard():
                self._tell(answer, HarvestNoted(command.ask, self._runs.note_shard(owner, command)))
            case EndHarvest():
                self._tell(answer, HarvestNoted(command.ask, self._runs.end(owner, command)))
            case AskKept():
                self._tell(answer, KeptTold(command.ask, self._harvests.with_files()))

    def runner_came(self, name: str, tell: Callable[[HarvestWork], None]) -> None:
        self._runs.came(name, tell)

    def runner_left(self, name: str) -> None:
        self._runs.left(name)

    def offers(self, name: str, models: Sequence[str]) -> None:
        """The runner can run those of these models now."""
        self._runs.offers(name, models)

    def look_after(self) -> None:
        """To be called every second or so: what is due, and files that have been kept long enough."""
        self._runs.look_after()
        now = self._now()
        for harvest_id in self._harvests.ended_before(now - self._kept, EXPIRED_AT_ONCE):
            self._commits.add(self._harvests.expire(harvest_id, now))
        self._harvests.forget(now - REMEMBERED, EXPIRED_AT_ONCE)
        self._waits.look_after()

    # Inside

    def _submit(self, command: SubmitHarvest, answer: Answer) -> None:
        order = command.order
        if command.harvest_id not in self._harvests:
            try:
                if (kept := self._judged(command)) is not None:
                    return answer(Repeated(command.ask, kept))
            except Refused as refused:
                return answer(SubmitRefused(command.ask, refusal_of(order, refused)))
            self._commits.add(self._taken(command))
            self._traffic.count(order.key_id)
            self._runs.start_some()
        self._tell_of(LookAtHarvest(command.ask, order.account_id, command.harvest_id), answer)

    def _judged(self, command: SubmitHarvest) -> Kept | None:
        """None: it may be taken. Otherwise the answer of an earlier request that was the same. Raises Refused."""
        order = command.order
        if (kept := self._desk.judge_later_work(order)) is not None:
            return kept
        judge_capacity(self._harvests, command.terms, self._limits, self._now())
        return None

    def _taken(self, command: SubmitHarvest) -> Sequence[Event]:
        order, now = command.order, self._now()
        _, placed = self._books.place(order, command.harvest_id, now)
        submitted = self._harvests.submit(command.harvest_id, command.terms, now)
        return [*placed, *submitted, *self._repeats.answered(order.key, order.hold_id, now, command.answer)]

    def _cancel(self, command: CancelHarvest, answer: Answer) -> None:
        looked = LookAtHarvest(command.ask, command.account_id, command.harvest_id)
        record = self._harvests.get(command.harvest_id)
        if record is None or record.terms.account_id != command.account_id or record.status.ended:
            return self._tell_of(looked, answer, was_ended=True)
        self._runs.cancel(command.harvest_id, lambda cancelled: self._tell_of(looked, answer, was_ended=not cancelled))
        self._runs.start_some()

    def _wait(self, owner: str, command: WaitForHarvest, answer: Answer) -> None:
        """One whose status is another already is answered at once, by whoever called us, and counts for nothing."""
        looked = LookAtHarvest(command.ask, command.account_id, command.harvest_id)
        record = self._harvests.get(command.harvest_id)
        if record is None or record.status.value != command.seen:
            return self._tell_of(looked, answer)
        terms = (owner, command.ask), command.harvest_id, command.key_id, command.wait_s
        if not self._waits.add(*terms, lambda: self._tell_of(looked, answer)):
            self._tell_of(looked, answer, declined=True)

    def _sha256_of(self, command: LookAtFile) -> str | None:
        record = self._harvests.get(command.harvest_id)
        if record is None or record.status is not HarvestStatus.DONE or record.expired:
            return None
        if self._table.account_is_suspended(record.terms.account_id):
            return None
        return sha256_of(record, command.file)

    def _tell_of(
        self, looked: LookAtHarvest, answer: Answer, *, was_ended: bool = False, declined: bool = False
    ) -> None:
        """As it stands now, once that is on disk."""
        record = self._harvests.get(looked.harvest_id)
        known = record is not None and record.terms.account_id == looked.account_id
        shown = view(looked.harvest_id, record, self._kept) if record is not None and known else None
        self._tell(answer, HarvestTold(looked.ask, shown, was_ended, declined))

    def _tell(self, answer: Answer, reply: HarvestReply) -> None:
        """Once all that it rests on is on disk."""
        self._commits.add((), lambda: answer(reply))
