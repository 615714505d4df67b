"""The real ledger, its store in a real file, on the loop of the test: no Ray, no socket."""

from __future__ import annotations

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
from acs.platform.ledger.contract import Command
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.memory import Memory, recall
from acs.platform.ledger.service import LedgerService
from acs.platform.ledger.traffic import Traffic
from acs.platform.limits import Limits
from acs.storage.event_store import EventStore, EventStoreUnavailable, open_event_store


@dataclasses.dataclass
class LocalLedger:
    memory: Memory
    accounts: Accounts
    desk: Desk
    traffic: Traffic
    writer: ThreadPoolExecutor
    failures: list[Exception]  # of commits

    def client(self) -> LedgerClient:
        """As an ingress has one, linked without a socket."""
        client = LedgerClient(_nowhere)
        desk = self.desk

        class Link:
            def send(self, command: Command) -> None:
                desk.handle(client.owner, command, lambda reply: client.take([reply]))

        client.attach(Link())
        return client

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
    traffic = Traffic(limits or Limits(), slots or {"toy": 1000}, clock or MonotonicClock())
    desk = Desk(memory, traffic, commits, now)
    try:
        yield LocalLedger(memory, Accounts(store, memory.table), desk, traffic, writer, failures)
    finally:
        writer.shutdown()
        store.close()


async def _nowhere() -> tuple[str, int, str]:
    raise AssertionError("a local ledger has no address")
