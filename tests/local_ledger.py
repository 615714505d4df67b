"""The real ledger, its store in a real file, on the loop of the test: no Ray, no socket."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acs.events.hold import Price
from acs.events.ids import ACCOUNT, KEY, show
from acs.platform.clock import Clock, MonotonicClock
from acs.platform.ledger.accounts import Accounts
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import RUNNER, Command
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.harvest_contract import HarvestCommand, HarvestWork
from acs.platform.ledger.harvest_desk import HarvestDesk
from acs.platform.ledger.job_contract import JobCommand, Offer, Work
from acs.platform.ledger.job_desk import JobDesk
from acs.platform.ledger.job_runs import JobRuns
from acs.platform.ledger.loom_contract import LoomCommand
from acs.platform.ledger.loom_desk import LoomDesk
from acs.platform.ledger.memory import Memory, recall
from acs.platform.ledger.service import LedgerService
from acs.platform.ledger.traffic import Traffic
from acs.platform.ledger.waits import Waits
from acs.platform.limits import Limits
from acs.storage.blobs import Blobs
from acs.storage.event_store import EventStore, EventStoreUnavailable, open_event_store


class Line:
    """A link without a socket."""

    def __init__(self, ledger: LocalLedger, client: LedgerClient) -> None:
        self._ledger = ledger
        self._client = client

    def send(self, command: Command | JobCommand | HarvestCommand | LoomCommand) -> None:
        ledger = self._ledger
        desk: Any = ledger.desk
        if isinstance(command, JobCommand):
            desk = ledger.job_desk
        elif isinstance(command, HarvestCommand):
            desk = ledger.harvest_desk
        elif isinstance(command, LoomCommand):
            desk = ledger.loom_desk
        desk.handle(self._client.owner, command, lambda reply: self._client.take([reply]))
        if isinstance(command, Offer):
            ledger.harvest_desk.offers(self._client.owner, command.models)


@dataclasses.dataclass
class LocalLedger:
    memory: Memory
    accounts: Accounts
    desk: Desk
    job_desk: JobDesk
    harvest_desk: HarvestDesk
    loom_desk: LoomDesk
    traffic: Traffic
    commits: Commits
    writer: ThreadPoolExecutor
    failures: list[Exception]  # of commits
    job_blobs: Blobs
    harvest_plans: Blobs
    loom_blobs: Blobs

    def client(self) -> LedgerClient:
        """As an ingress has one, linked without a socket."""
        client = LedgerClient(_nowhere)
        client.attach(Line(self, client))
        return client

    def runner_client(self, on_work: Callable[[Work | HarvestWork], None]) -> LedgerClient:
        """As the runner of Jobs has one."""
        client = LedgerClient(_nowhere, RUNNER, on_work)
        self.link_runner(client)
        return client

    def link_runner(self, client: LedgerClient) -> None:
        for desk in (self.job_desk, self.harvest_desk):
            desk.runner_came(client.owner, lambda work: client.take([work]))
        client.attach(Line(self, client))

    async def stored(self) -> None:
        """Returns when all that it was told so far is on disk."""
        stored = asyncio.Event()
        self.commits.add((), stored.set)
        await stored.wait()

    def commits_fail_after(self, count: int) -> None:
        """The next `count` batches are stored; what comes after them never is."""
        append = self.memory.store.append

        def failing(events: Any) -> list[int]:
            nonlocal count
            count -= 1
            if count < 0:
                raise EventStoreUnavailable("The event store cannot be used: the disk is full.")
            return append(events)

        self.memory.store.append = failing  # type: ignore[method-assign]

    def account(self, name: str = "Ada") -> str:
        return show(ACCOUNT, self.accounts.create_account(name, "ada@lab.org").id)

    def key(self, account_id: str, name: str = "laptop") -> tuple[str, str]:
        """(its id, its secret)"""
        new = self.accounts.create_key(account_id, name)
        return show(KEY, new.row.id), new.secret

    def events(self, kind: type | tuple[type, ...] = object) -> list[Any]:
        """Those stored, in order."""
        return [event for _, event in self.memory.store.read_log(0) if isinstance(event, kind)]


def accounts_of(store: EventStore) -> Accounts:
    """As a ledger that starts on the store has them."""
    store.claim()
    return Accounts(store, recall(store, Path("/nonexistent"), {}).table)


def service_of(store: EventStore, lease_s: float, clock: Clock) -> LedgerService:
    """The operator's half of a ledger that starts on the store."""
    store.claim()
    memory = recall(store, Path("/nonexistent"), {})
    writer = ThreadPoolExecutor(max_workers=1)
    commits = Commits(memory.storing, writer, lambda fault: None)
    desk = Desk(memory, Traffic(Limits(), {}, clock), commits, lambda: datetime.now(UTC))
    return LedgerService(Accounts(store, memory.table), desk, writer, lease_s, clock)


@contextmanager
def local_ledger(
    folder: Path,
    *,
    limits: Limits | None = None,
    slots: Mapping[str, int] | None = None,
    prices: Mapping[str, Price] | None = None,
    clock: Clock | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[LocalLedger]:
    store = open_event_store(folder / "events.sqlite")
    store.claim()
    memory = recall(store, folder / "ledger.checkpoint", prices or {"toy": Price()})
    writer = ThreadPoolExecutor(max_workers=1)
    failures: list[Exception] = []
    commits = Commits(memory.storing, writer, failures.append)
    limits, clock = limits or Limits(), clock or MonotonicClock()
    traffic = Traffic(limits, slots or {"toy": 1000}, clock)
    desk = Desk(memory, traffic, commits, now)
    jobs, plans = Blobs(folder / "jobs", 1e6), Blobs(folder / "plans", 1e6)
    looms = Blobs(folder / "looms", 1e6)

    def erase(sha256: str) -> None:
        jobs.erase(sha256)
        looms.erase(sha256)

    runs = JobRuns(desk, memory, traffic, commits, limits, clock, now, erase)
    job_desk = JobDesk(desk, runs, memory, traffic, commits, limits, now, jobs.erase)
    harvest_desk = HarvestDesk(desk, memory, traffic, commits, limits, clock, now, plans.erase)
    waits = Waits(clock, limits.key_loom_waits, limits.platform_loom_waits)
    loom_desk = LoomDesk(desk, runs, memory, traffic, commits, waits, limits, now, looms.erase)
    desks = desk, job_desk, harvest_desk, loom_desk
    blobs = jobs, plans, looms
    try:
        yield LocalLedger(memory, Accounts(store, memory.table), *desks, traffic, commits, writer, failures, *blobs)
    finally:
        writer.shutdown()
        store.close()


async def _nowhere() -> tuple[str, int, str]:
    raise AssertionError("a local ledger has no address")
