"""The ledger process: Holds opened and settled a second, on disk; time to open at a given rate; time to start.

    .venv/bin/python benchmarks/ledger.py [--seconds 5] [--holds 120000]

The ledger is the real actor under Ray, the link a LedgerClient over a real socket, as in an ingress. A caller is a
coroutine that opens a Hold, waits for the grant, settles it, waits for the charge, and begins again at once: so many
requests are under way. All callers share one link, as the requests of one ingress do. Callers and ledger share the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rivals import cpu_s_of

from acs.events.hold import Price
from acs.events.ids import HOLD, show, uuid7
from acs.platform.catalogue import Catalogue
from acs.platform.cli.client import ask
from acs.platform.ledger import checkpoint, memory
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger.contract import Open, Settle
from acs.platform.settings import SHIPPED_CATALOGUES, Settings
from acs.storage.event_store import open_event_store

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from history import History

CALLERS = (1, 8, 32)
OFFERED = 500  # pairs a second
PRICES = {"fake": Price(1_000, 2_000)}


@dataclass
class Ledger:
    client: LedgerClient
    pid: int
    store: Path
    account_id: str
    key_id: str
    opened_s: list[float] = field(default_factory=list)

    async def pair(self, since: float) -> None:
        """`since`: when it should have begun."""
        hold_id = show(HOLD, uuid7())
        order = Open(
            hold_id, self.account_id, self.key_id, hold_id[-16:], "fake", "completion", None, 20, 1, 64, 0, True
        )
        await self.client.open(order)
        self.opened_s.append(time.perf_counter() - since)
        await self.client.resolve(Settle(hold_id, self.account_id, 20, 30, 200))

    async def measure(self, title: str, work) -> None:  # type: ignore[no-untyped-def]
        """`work` runs pairs and returns the seconds that it took."""
        self.opened_s.clear()
        before = self._disk(), cpu_s_of(self.pid), time.process_time()
        took_s = await work()
        after = self._disk(), cpu_s_of(self.pid), time.process_time()
        pairs = len(self.opened_s)
        commits, events = (b - a for a, b in zip(before[0], after[0], strict=True))
        opened = sorted(self.opened_s)
        p50, p99 = (1000 * opened[int(share * (pairs - 1))] for share in (0.5, 0.99))
        print(
            f"{title:>16}: {pairs / took_s:6.0f} pairs/s  open p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  "
            f"{commits / took_s:5.0f} commits/s of {events / commits:5.1f} events  "
            f"CPU a pair: ledger {1e6 * (after[1] - before[1]) / pairs:4.0f} µs, "
            f"callers {1e6 * (after[2] - before[2]) / pairs:4.0f} µs",
            flush=True,
        )

    def _disk(self) -> tuple[int, int]:
        """(commits, events) that the store has seen."""
        with sqlite3.connect(self.store) as connection:
            (commits,) = connection.execute("SELECT commits FROM writer").fetchone()
            (events,) = connection.execute("SELECT max(rowid) FROM stored_events").fetchone()
        connection.close()
        return commits, events


async def load(settings: Settings, seconds: float) -> None:
    from acs.platform.ledger_actor import start_ledger

    actor = await asyncio.to_thread(start_ledger, settings, Catalogue.load(settings.catalogue))
    account = await asyncio.to_thread(ask, "account.create", name="Ada", email="ada@lab.org")
    key = await asyncio.to_thread(ask, "key.create", account=account["id"], name="laptop")
    for limit in ("budget.set", "spend_limit.set"):
        await asyncio.to_thread(ask, limit, account=account["id"], limit=str(10**15))

    async def endpoint() -> tuple[str, int, str]:
        found: tuple[str, int, str] = await actor.endpoint.remote()
        return found

    client = LedgerClient(endpoint)
    following = asyncio.create_task(client.follow())
    ledger = Ledger(client, await actor.pid.remote(), settings.event_store, account["id"], key["id"])
    await ledger.pair(time.perf_counter())
    for callers in CALLERS:
        await ledger.measure(f"{callers} callers", lambda callers=callers: closed_loop(ledger, callers, seconds))
    await ledger.measure(f"{OFFERED}/s offered", lambda: offered(ledger, 2 * seconds))
    following.cancel()


async def closed_loop(ledger: Ledger, callers: int, seconds: float) -> float:
    start = time.perf_counter()

    async def call() -> None:
        while (now := time.perf_counter()) < start + seconds:
            await ledger.pair(now)

    await asyncio.gather(*(call() for _ in range(callers)))
    return time.perf_counter() - start


async def offered(ledger: Ledger, seconds: float) -> float:
    """Pairs begin at their own times, however long those before them take; late ones count from when they were due."""
    start = time.perf_counter()
    pairs = []
    for number in range(int(seconds * OFFERED)):
        due = start + number / OFFERED
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        pairs.append(asyncio.create_task(ledger.pair(due)))
    await asyncio.gather(*pairs)
    return time.perf_counter() - start


def starts(folder: Path, holds: int) -> None:
    """How long a start takes to remember: from the log alone, and from a checkpoint as old as one gets."""
    store = open_event_store(folder / "past.sqlite")
    store.claim()
    past = History(running=200)
    for _ in range(holds // 1000):
        past.live(1000)
        past.store(store)
    head = store.head()
    whole = recalled(f"{head} events", store, folder / "none", head)
    checkpoint.write(folder / "young", head, whole.table, whole.encoded())
    recalled("a checkpoint", store, folder / "young", 0)
    store.close()


def recalled(title: str, store, path: Path, events: int) -> memory.Memory:  # type: ignore[no-untyped-def]
    wall, cpu = time.perf_counter(), time.process_time()
    found = memory.recall(store, path, PRICES)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rate = f", {events / wall:.0f} events/s, {1e6 * cpu / events:.1f} µs CPU an event" if events else ""
    print(f"a start from {title}: {wall:.2f} s{rate}", flush=True)
    return found


@contextmanager
def own_ray() -> Iterator[Settings]:
    """A Ray of its own, as the server starts one. It reads how it authenticates when it is imported."""
    folder = Path(tempfile.mkdtemp(prefix="acs-bench-"))
    (folder / "token").write_text(secrets.token_hex(32))
    fake = (SHIPPED_CATALOGUES / "fake.toml").read_text()
    (folder / "fake.toml").write_text(fake.replace("target_ongoing = 64", "target_ongoing = 1_000_000"))
    os.environ |= {
        "ACS_DATA": str(folder / "data"),
        "ACS_CATALOGUE": str(folder / "fake.toml"),
        "ACS_LIMIT_KEY_RUNNING": "1000000",
        "ACS_LIMIT_KEY_RATE_PER_MINUTE": "1000000000",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    import ray

    settings = Settings.from_environ()
    settings.data.mkdir()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield settings
    finally:
        ray.shutdown()
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--holds", type=int, default=120_000, help="in the past that a start reads")
    arguments = parser.parse_args()
    with own_ray() as settings:
        uvloop.run(load(settings, arguments.seconds))
    with tempfile.TemporaryDirectory() as folder:
        starts(Path(folder), arguments.holds)


if __name__ == "__main__":
    main()
