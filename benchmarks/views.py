"""The views: how fast they are made from nothing, how far they lie behind while events come, what an answer costs.

.venv/bin/python benchmarks/views.py [--events 200000]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from acs.events.account import Account
from acs.events.api_key import ApiKey, new_secret
from acs.events.hold import Quote
from acs.events.ids import ACCOUNT, HOLD, KEY, show, uuid7
from acs.events.ledger import Ledger
from acs.platform.views.service import ViewsService
from acs.storage.event_store import Event, EventStore, open_event_store
from acs.storage.views.database import ViewsDatabase
from acs.storage.views.usage import usage_of

ACCOUNTS, KEYS_OF_EACH, OPEN = 100, 3, 64
TERMS = {"kind": "completion", "owner": "ingress", "user": None}
PRICES = {"prompt_micro_usd_per_million": 100_000, "completion_micro_usd_per_million": 300_000}


class Traffic:
    """Holds that are placed and settled, of a hundred accounts with three keys each, as the aggregates make them."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._now = datetime(2026, 11, 1, tzinfo=UTC)
        self.accounts = [Account.create(name=f"account {i}", email="a@lab.org") for i in range(ACCOUNTS)]
        keys = {a.id: [self._key(a) for _ in range(KEYS_OF_EACH)] for a in self.accounts}
        self._events: list[Event] = [e for a in self.accounts for x in (a, *keys[a.id]) for e in x.collect_events()]
        self._ledgers = [
            (Ledger.open(show(ACCOUNT, a.id), a.id, self._now, None, {}), [show(KEY, k.id) for k in keys[a.id]])
            for a in self.accounts
        ]
        self._open: list[tuple[Ledger, str]] = []

    def _key(self, account: Account) -> ApiKey:
        return ApiKey.create(account_id=account.id, name="key", secret=new_secret())

    def pairs(self, count: int) -> list[Event]:
        """So many Holds placed, and as many settled once some are open."""
        for _ in range(count):
            self._now += timedelta(milliseconds=2)
            ledger, keys = self._chance.choice(self._ledgers)
            hold_id = show(HOLD, uuid7())
            key_id, model = self._chance.choice(keys), f"model-{self._chance.randrange(3)}"
            ids = {"key_id": key_id, "request_id": hold_id[-16:], "model": model}
            ledger.place(hold_id, Quote(50, 1, 64), timestamp=self._now, **ids, **TERMS, **PRICES)
            self._open.append((ledger, hold_id))
            self._events += ledger.collect_events()
            if len(self._open) > OPEN:
                ledger, hold_id = self._open.pop(self._chance.randrange(OPEN))
                ledger.settle(hold_id, 50, self._chance.randrange(65), 200, self._now)
                self._events += ledger.collect_events()
        events, self._events = self._events, []
        return events


def generate(store: EventStore, traffic: Traffic, events: int) -> None:
    store.claim()
    while store.head() < events:
        store.append(traffic.pairs(1000))


def rebuild(store: EventStore, folder: Path) -> None:
    """From an empty file to the last event."""
    path = folder / "rebuilt.duckdb"
    began, cpu = time.perf_counter(), time.process_time()
    views = ViewsDatabase(store, path)
    while views.catch_up():
        pass
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    views.close()
    print(f"rebuild: {store.head():,} events in {seconds:.2f} s, {store.head() / seconds:,.0f} a second;", end=" ")
    print(f"{cpu / store.head() * 1e6:.1f} µs of a core an event, {path.stat().st_size / 1e6:.1f} MB")


def answers(store: EventStore, folder: Path, traffic: Traffic) -> None:
    views = ViewsDatabase(store, folder / "rebuilt.duckdb")
    taken = []
    for account in traffic.accounts:
        began = time.perf_counter()
        usage_of(views, show(ACCOUNT, account.id), "2026-11")
        taken.append(time.perf_counter() - began)
    views.close()
    print(f"usage of an account, views up to date: p50 {statistics.median(taken) * 1e3:.1f} ms, worst", end=" ")
    print(f"{max(taken) * 1e3:.1f} ms")


async def projection(store: EventStore, folder: Path, traffic: Traffic, pairs_a_second: int, seconds: float) -> None:
    """Lag, and what a reader who needs every event waits, while this process writes too."""
    service = ViewsService(store, ViewsDatabase(store, folder / "rebuilt.duckdb"), lambda fault: None)
    await service.reach(store.head(), patience_s=60)
    account = show(ACCOUNT, traffic.accounts[0].id)
    lags, waits, cpu, began = [], [], time.process_time(), time.perf_counter()
    written, writing_cpu = 0, 0.0
    while (elapsed := time.perf_counter() - began) < seconds:
        due = int(elapsed * pairs_a_second) - written
        if due:
            before = time.process_time()
            events = traffic.pairs(due)
            writing_cpu += time.process_time() - before
            await asyncio.to_thread(store.append, events)
            written += due
        lags.append((await service.lag()).events)
        if len(lags) % 20 == 0:
            asked = time.perf_counter()
            await service.usage(account, "2026-11")
            waits.append(time.perf_counter() - asked)
        await asyncio.sleep(0.02)
    cores = (time.process_time() - cpu - writing_cpu) / (time.perf_counter() - began)
    await asyncio.to_thread(service.close)
    print(
        f"projection at {written / seconds:,.0f} pairs a second: lag p50 {statistics.median(lags):,.0f} events,",
        end=" ",
    )
    print(
        f"worst {max(lags):,}; a usage that waits for every event p50 {statistics.median(waits) * 1e3:.0f} ms,", end=" "
    )
    print(f"worst {max(waits) * 1e3:.0f} ms; {cores:.2f} cores, storing included")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, traffic = Path(name), Traffic()
        store = open_event_store(folder / "events.sqlite")
        generate(store, traffic, args.events)
        for _ in range(3):
            (folder / "rebuilt.duckdb").unlink(missing_ok=True)
            rebuild(store, folder)
        answers(store, folder, traffic)
        for pairs_a_second in (0, 100, 1000):
            asyncio.run(projection(store, folder, traffic, pairs_a_second, args.seconds))
        store.close()


if __name__ == "__main__":
    main()
