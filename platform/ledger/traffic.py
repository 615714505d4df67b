"""Who may run now, who waits, and who goes next: a key's running and waiting requests, its rate, a model's slots.

In memory alone. A key's requests to a model start in the order they came; accounts that wait for the same model take
turns. Jobs give way to the requests of clients that wait, but every tenth slot of a model goes to a Job that waits for
it. A free slot never stands beside a request that could take it: whoever frees one asks `next` until it has no more.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from acs.events.refused import Refused
from acs.platform.clock import Clock
from acs.platform.ledger.contract import IdempotencyKey, Open, Reply
from acs.platform.ledger.job_queue import JobQueue, JobTicket
from acs.platform.limits import Limits

WINDOW_S = 60.0
GRANTS_A_JOB = 10  # while Jobs wait, so many slots of a model that become free make one for a Job
QUEUE_FULL_RETRY_S = 5.0


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that waits. `answer` reaches whoever sent it."""

    order: Open
    owner: str
    answer: Callable[[Reply], None]
    since: float


@dataclass(slots=True)
class _Key:
    running: set[str] = field(default_factory=set)  # Hold ids
    waiting: Counter[str] = field(default_factory=Counter)  # by model
    started: deque[float] = field(default_factory=deque)  # of the last minute


class Traffic:
    def __init__(self, limits: Limits, slots: Mapping[str, int], clock: Clock) -> None:
        """`slots`: how many requests may run at once, by model."""
        self._limits = limits
        self._slots = slots
        self._clock = clock
        self._taken = dict.fromkeys(slots, 0)
        self._keys: dict[str, _Key] = {}
        # model → account → key → tickets; the account at the front is the next to be served
        self._queues: dict[str, OrderedDict[str, OrderedDict[str, deque[Ticket]]]] = {m: OrderedDict() for m in slots}
        self.tickets: dict[str, Ticket] = {}  # by Hold id, oldest first
        self._under: dict[str, Open] = {}  # Idempotency-Key → who waits under it
        self._running: dict[str, tuple[str | None, str]] = {}  # Hold id → (key, model)
        self._job_queues = {model: JobQueue() for model in slots}
        self._job_tickets: dict[str, JobTicket] = {}  # by Job id
        self._offered: frozenset[str] = frozenset()  # the models whose Jobs can be run now
        self._passed = dict.fromkeys(slots, 0)  # clients' requests that were let in since the last Job, while Jobs wait

    def judge_rate(self, key_id: str) -> None:
        """Raises RateLimited."""
        key = self._keys.setdefault(key_id, _Key())
        now = self._clock.now()
        while key.started and key.started[0] <= now - WINDOW_S:
            key.started.popleft()
        allowed = self._limits.key_rate_per_minute
        if len(key.started) >= allowed:
            raise RateLimited(
                f"The key has sent {len(key.started)} requests in a minute; {allowed} are allowed.",
                retry_after_s=key.started[0] + WINDOW_S - now,
            )

    def admit(self, order: Open) -> bool:
        """Whether the request may run at once; else there is room for it to wait. Raises RateLimited or QueueFull."""
        self.judge_rate(order.key_id)
        key, limits = self._keys[order.key_id], self._limits
        at_once = self._may_run(order.model, key) and not key.waiting[order.model]
        if not at_once and (waiting := key.waiting.total()) >= limits.key_waiting:
            raise QueueFull(
                f"{len(key.running)} requests of the key run and {waiting} wait; {limits.key_waiting} may wait.",
                retry_after_s=QUEUE_FULL_RETRY_S,
            )
        return at_once

    def count(self, key_id: str) -> None:
        """One more request of the key that was let in, to run or to wait."""
        self._keys[key_id].started.append(self._clock.now())

    def start(self, hold_id: str, key_id: str | None, model: str) -> None:
        """`key_id`: None for a Job, which takes a slot and none of its key's."""
        self._running[hold_id] = key_id, model
        if key_id is not None:
            self._keys.setdefault(key_id, _Key()).running.add(hold_id)
        self._taken[model] = self._taken.get(model, 0) + 1  # a Hold of an earlier catalogue's model counts too

    def end(self, hold_id: str) -> None:
        """A second end, and one of what never started, does nothing."""
        if hold_id in self._running:
            key_id, model = self._running.pop(hold_id)
            if key_id is not None:
                self._keys[key_id].running.discard(hold_id)
            self._taken[model] -= 1

    def wait(self, order: Open, owner: str, answer: Callable[[Reply], None]) -> None:
        ticket = Ticket(order, owner, answer, self._clock.now())
        self.tickets[order.hold_id] = ticket
        if order.key is not None:
            self._under[order.key.digest] = order
        self._keys[order.key_id].waiting[order.model] += 1
        lanes = self._queues[order.model].setdefault(order.account_id, OrderedDict())
        lanes.setdefault(order.key_id, deque()).append(ticket)

    def waiting_under(self, key: IdempotencyKey | None) -> Open | None:
        return self._under.get(key.digest) if key is not None else None

    def leave(self, hold_id: str) -> Ticket:
        """Take one out of the queue. Raises KeyError."""
        ticket = self.tickets.pop(hold_id)
        order = ticket.order
        if order.key is not None:
            del self._under[order.key.digest]
        self._keys[order.key_id].waiting[order.model] -= 1
        lanes = self._queues[order.model][order.account_id]
        lanes[order.key_id].remove(ticket)
        if not lanes[order.key_id]:
            del lanes[order.key_id]
        if not lanes:
            del self._queues[order.model][order.account_id]
        return ticket

    def wait_for_job(self, ticket: JobTicket, *, first: bool = False) -> None:
        """`first`: before its account's others. A Job of an earlier catalogue's model waits until that comes back."""
        self._job_tickets[ticket.job_id] = ticket
        if ticket.model in self._job_queues:
            self._job_queues[ticket.model].add(ticket, first=first)

    def leave_job(self, job_id: str) -> None:
        """One that does not wait does nothing."""
        ticket = self._job_tickets.pop(job_id, None)
        if ticket is not None and ticket.model in self._job_queues:
            self._job_queues[ticket.model].remove(ticket)

    def offer_jobs(self, models: Iterable[str]) -> None:
        """The models whose Jobs can be run from now on; Jobs of others wait, whatever slots are free."""
        self._offered = frozenset(models)

    def next(self) -> Ticket | JobTicket | None:
        """The ticket that may run now and whose turn it is, out of the queue; its account goes to the end of it."""
        for model, jobs in self._job_queues.items():
            job_may_run = bool(jobs) and model in self._offered and self._taken[model] < self._slots[model]
            job_is_due = job_may_run and self._passed[model] >= GRANTS_A_JOB - 1
            ticket = None if job_is_due else self._next_of_clients(model)
            if ticket is not None:
                self._passed[model] += 1 if jobs else 0
                return ticket
            if job_may_run:
                self._passed[model] = 0
                job = jobs.take()
                del self._job_tickets[job.job_id]
                return job
        return None

    def _next_of_clients(self, model: str) -> Ticket | None:
        accounts = self._queues[model]
        for account_id, lanes in accounts.items():
            ticket = next((tickets[0] for key, tickets in lanes.items() if self._may_run(model, self._keys[key])), None)
            if ticket is not None:
                accounts.move_to_end(account_id)
                lanes.move_to_end(ticket.order.key_id)
                return self.leave(ticket.order.hold_id)
        return None

    def overdue(self) -> Iterator[Ticket]:
        """Those that have waited too long, out of the queue."""
        while self.tickets:
            oldest = next(iter(self.tickets.values()))
            if self._clock.now() - oldest.since < self._limits.wait_s:
                return
            yield self.leave(oldest.order.hold_id)

    def _may_run(self, model: str, key: _Key) -> bool:
        return len(key.running) < self._limits.key_running and self._taken[model] < self._slots[model]


class TrafficRefusal(Refused):
    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(TrafficRefusal):
    pass


class QueueFull(TrafficRefusal):
    pass
