"""Where requests are let in and out: each command judged at once on the ledger's memory, answered when it is on disk.

A command never waits for a slot: a request that must wait is told so, and is answered again when its turn has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from acs.events.hold import HoldStatus
from acs.events.ids import BRANCH, HARVEST, JOB, KEY, made_at, parse
from acs.events.ledger import REMEMBERED, ChargeExceedsHold, UnknownHold
from acs.events.refused import Refused
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import (
    Command,
    Granted,
    Kept,
    Open,
    Refusal,
    Release,
    Reply,
    Resolved,
    Settle,
    Standing,
    Stored,
    Waiting,
)
from acs.platform.ledger.job_queue import JobTicket
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.refusals import KeyNotAccepted, refusal_of
from acs.platform.ledger.traffic import QUEUE_FULL_RETRY_S, Ticket, Traffic
from acs.storage.event_store import Event

Answer = Callable[[Reply], None]
UNKNOWN = "unknown"


class Desk:
    def __init__(self, memory: Memory, traffic: Traffic, commits: Commits, now: Callable[[], datetime]) -> None:
        """`now`: the time of day. Holds that are open already take their slots."""
        self._table = memory.table
        self._books = books = memory.books
        self._repeats = memory.repeats
        self._traffic = traffic
        self._commits = commits
        self._now = now
        for hold_id, (_, hold) in books.open_holds.items():
            if not any(parse(kind, hold.owner) for kind in (JOB, BRANCH, HARVEST)):  # a Job takes its slot when it runs
                traffic.start(hold_id, hold.key_id, hold.model)

    def handle(self, owner: str, command: Command, answer: Answer) -> None:
        """`owner` sent it. A command that comes again is answered as before and applied once."""
        if isinstance(command, Open):
            self._open(owner, command, answer)
        else:
            self._resolve(command, answer)
            self.call_next()

    def owners(self) -> set[str]:
        """Of open Holds and waiting requests."""
        waiting = {ticket.owner for ticket in self._traffic.tickets.values()}
        return waiting | {hold.owner for _, hold in self._books.open_holds.values()}

    def give_up(self, owner: str) -> None:
        """The process is gone: its waiting requests leave, its open Holds expire."""
        for ticket in list(self._traffic.tickets.values()):
            if ticket.owner == owner:
                self._traffic.leave(ticket.order.hold_id)
        for hold_id, (_, hold) in list(self._books.open_holds.items()):
            if hold.owner == owner:
                self._traffic.end(hold_id)
                events = [*self._books.expire(hold_id, self._now()), *self._repeats.end(hold_id, self._now(), None)]
                self._commits.add(events)
        self.call_next()

    def refuse_overdue(self) -> None:
        """Requests that have waited too long. To be called every second or so."""
        for ticket in self._traffic.overdue():
            ticket.answer(
                Refusal(ticket.order.hold_id, "queue_full", "The request has waited too long.", QUEUE_FULL_RETRY_S)
            )

    def note_budgets(self, account_id: str, stored: Callable[[], None]) -> None:
        """A standing budget of the account, or of a key of it, has changed."""
        self._commits.add(self._books.note_budgets(account_id, self._now()), stored)

    def call_next(self) -> None:
        """Whoever may run now is let in. To be called whenever a slot has become free or a Job waits for one."""
        while (ticket := self._traffic.next()) is not None:
            if isinstance(ticket, JobTicket):
                ticket.start(ticket.job_id)
            else:
                self._let_in(ticket)

    def judge_key(self, order: Open) -> None:
        """The ingress has judged the key by its copy; this is the truth. Raises KeyNotAccepted."""
        id = parse(KEY, order.key_id)
        row = self._table.key(id) if id else None
        standing = self._table.standing_of(row) if row else None
        if standing is not Standing.ACCEPTED:
            raise KeyNotAccepted(standing or UNKNOWN)

    def judge_later_work(self, order: Open) -> Kept | None:
        """Of what is to run in the background: None: its Hold may be placed. Otherwise the answer of an earlier request
        that was the same. Raises Refused. How much of it an account may have is for whoever takes it.
        """
        self.judge_key(order)
        if (kept := self._repeats.judge(order.key, None, self._now())) is not None:
            return kept
        self._traffic.judge_rate(order.key_id)
        self._books.judge(order, self._now())
        return None

    def resolved(self, command: Settle | Release) -> tuple[HoldStatus, Sequence[Event]]:
        if isinstance(command, Release):
            return self._books.release(command, self._now())
        try:
            return self._books.settle(command, self._now())
        except ChargeExceedsHold:  # a wrong number is not charged, and not passed over either: the caller is told
            wrong = Release(command.hold_id, command.account_id, "charge_exceeds_hold", 500)
            return self._books.release(wrong, self._now())

    # Inside

    def _open(self, owner: str, order: Open, answer: Answer) -> None:
        if order.hold_id in self._traffic.tickets:
            self._traffic.tickets[order.hold_id].answer = answer
            return answer(Waiting(order.hold_id))
        stands = self._books.status_of(order.hold_id, order.account_id)
        if stands is HoldStatus.OPEN:
            return self._grant_again(order, answer)
        if stands is not None:
            return self._once_stored(answer, Resolved(order.hold_id, stands))
        if self._now() - made_at(order.hold_id) > REMEMBERED:  # it may have been resolved, and been forgotten since
            return answer(Resolved(order.hold_id, UNKNOWN))
        try:
            self.judge_key(order)
            waiting = self._traffic.waiting_under(order.key)
            if (kept := self._repeats.judge(order.key, waiting, self._now())) is not None:
                return self._once_stored(answer, Stored(order.hold_id, kept))
            if self._traffic.admit(order):
                self._grant(owner, order, answer)
            else:
                self._books.judge(order, self._now())
                self._traffic.wait(order, owner, answer)
                answer(Waiting(order.hold_id))
            self._traffic.count(order.key_id)
        except Refused as refused:
            answer(refusal_of(order, refused))

    def _grant(self, owner: str, order: Open, answer: Answer) -> None:
        hold, events = self._books.place(order, owner, self._now())
        events = [*events, *self._repeats.begin(order.key, order.hold_id, self._now())]
        self._traffic.start(order.hold_id, order.key_id, order.model)
        granted = Granted(order.hold_id, hold.quote.max_tokens)
        if order.at_once:
            answer(granted)
            self._commits.add_unhurried(events)
        else:
            self._commits.add(events, lambda: answer(granted))

    def _grant_again(self, order: Open, answer: Answer) -> None:
        """The answer was lost on its way, or is still to come."""
        _, hold = self._books.open_holds[order.hold_id]
        self._once_stored(answer, Granted(order.hold_id, hold.quote.max_tokens))

    def _once_stored(self, answer: Answer, reply: Reply) -> None:
        """What it says is known already, and may be on its way to the disk."""
        self._commits.add((), lambda: answer(reply))

    def _resolve(self, command: Settle | Release, answer: Answer) -> None:
        if command.hold_id in self._traffic.tickets:
            self._traffic.leave(command.hold_id)
            return answer(Resolved(command.hold_id, HoldStatus.RELEASED))
        try:
            status, events = self.resolved(command)
        except UnknownHold:
            return answer(Resolved(command.hold_id, UNKNOWN))
        free = isinstance(command, Release)
        events = [*events, *self._repeats.end(command.hold_id, self._now(), command.kept, free=free)]
        self._traffic.end(command.hold_id)
        self._commits.add(events, lambda: answer(Resolved(command.hold_id, status)))

    def _let_in(self, ticket: Ticket) -> None:
        """Judged once more: much may have happened while it waited."""
        try:
            self.judge_key(ticket.order)
            self._grant(ticket.owner, ticket.order, ticket.answer)
        except Refused as refused:
            ticket.answer(refusal_of(ticket.order, refused))
