"""A made-up past: accounts, keys and Holds that end in every way, as events that the aggregates themselves made."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from acs.events.account import Account
from acs.events.api_key import ApiKey, new_secret
from acs.events.hold import HoldStatus, Quote
from acs.events.ids import ACCOUNT, HOLD, KEY, show, uuid7
from acs.events.job import Job, JobStatus
from acs.events.ledger import Ledger, month_of
from acs.events.platform_settings import PlatformSettings
from acs.storage.event_store import Event, EventStore

START = datetime(2026, 10, 31, 12, tzinfo=UTC)
PRICES = {"prompt_micro_usd_per_million": 100_001, "completion_micro_usd_per_million": 300_007}


class History:
    """Time goes on by `step` with each Hold. `events` gathers what happens until it is stored."""

    def __init__(self, seed: int = 1, *, step: timedelta = timedelta(seconds=297), running: int = 24) -> None:
        self.chance = random.Random(seed)
        self.now = START
        self.step = step
        self.running = running  # Holds open at a time
        self.events: list[Event] = []
        self.accounts: list[Account] = []
        self.keys: dict[UUID, list[ApiKey]] = {}  # by account
        self._open: list[tuple[Ledger, str]] = []
        self._ended: list[tuple[Ledger, str]] = []
        self._ledgers: dict[UUID, Ledger] = {}

    @property
    def ledgers(self) -> list[Ledger]:
        return list(self._ledgers.values())

    def account(self, name: str = "Ada", keys: Sequence[str] = ("laptop", "desk")) -> Account:
        account = Account.create(name=name, email=f"{name.lower()}@lab.org")
        self.keep(account)
        self.accounts.append(account)
        self.keys[account.id] = []
        for key_name in keys:
            key = ApiKey.create(account_id=account.id, name=key_name, secret=new_secret())
            self.keep(key)
            self.keys[account.id].append(key)
        return account

    def ledger(self, account: Account) -> Ledger:
        """Of this moment's month; opened if it is not yet."""
        id = Ledger.id_of(account.id, month_of(self.now))
        if id not in self._ledgers:
            budgets = {show(KEY, key.id): key.budget_tokens for key in self.keys[account.id]}
            ledger = Ledger.open(
                show(ACCOUNT, account.id),
                account.id,
                self.now,
                account.budget_tokens,
                {key_id: tokens for key_id, tokens in budgets.items() if tokens is not None},
            )
            self._ledgers[id] = ledger
            self.keep(ledger)
        return self._ledgers[id]

    def place(self, account: Account, key: ApiKey, quote: Quote, *, model: str = "toy", user: str | None = None) -> str:
        self.now += self.step
        hold_id = show(HOLD, uuid7())
        ledger = self.ledger(account)
        ledger.place(
            hold_id,
            quote,
            key_id=show(KEY, key.id),
            request_id=hold_id[-16:],
            model=model,
            kind="completion",
            owner="ingress-1",
            user=user,
            timestamp=self.now,
            **PRICES,
        )
        self.keep(ledger)
        self._open.append((ledger, hold_id))
        return hold_id

    def quote(self) -> Quote:
        return Quote(self.chance.randint(1, 900), self.chance.randint(1, 4), self.chance.randint(1, 64))

    def end(self, which: int = -1) -> None:
        """An open Hold settles, fails or is lost; sometimes an ended one is asked to end again."""
        ledger, hold_id = self._open.pop(which)
        hold = ledger.book.holds[hold_id]
        match self.chance.choices(("settle", "release", "expire"), (0.9, 0.06, 0.04))[0]:
            case "settle":
                written = self.chance.randint(0, hold.quote.completion_tokens)
                ledger.settle(hold_id, hold.quote.prompt_tokens, written, self.chance.choice((200, None)), self.now)
            case "release":
                ledger.release(hold_id, "vllm_engine_dead", 502, self.now)
            case "expire":
                ledger.expire(hold_id, self.now)
                self._ended.append((ledger, hold_id))
        if self._ended and self.chance.random() < 0.2:
            late, late_id = self._ended.pop()
            if late_id in late.book.resolved and late.status_of(late_id) is HoldStatus.EXPIRED:
                late.settle(late_id, 1, 1, 200, self.now)
                self.keep(late)
        self.keep(ledger)

    def change_something(self) -> None:
        """What an operator does now and then."""
        account = self.chance.choice(self.accounts)
        key = self.chance.choice(self.keys[account.id])
        tokens = self.chance.choice((None, 10**9, 2 * 10**9))
        match self.chance.randrange(5):
            case 0:
                account.set_budget(tokens)
                self.ledger(account).change_budget(None, tokens, self.now)
            case 1:
                key.set_budget(tokens)
                self.ledger(account).change_budget(show(KEY, key.id), tokens, self.now)
            case 2:
                account.set_spend_limit(tokens)
            case 3:
                (account.restore if account.suspended else account.suspend)()
            case 4:
                key.rename(f"key {self.chance.randrange(100)}")
                (key.enable if key.disabled else key.disable)()
        self.keep(account, key, self.ledger(account))

    def live(self, holds: int) -> None:
        """So many Holds are placed, and all but the last `running` end."""
        if not self.accounts:
            platform = PlatformSettings()
            platform.set_spend_limit(10**9)
            self.keep(platform)
            for name in ("Ada", "Bob", "Eve"):
                self.account(name)
        for _ in range(holds):
            account = self.chance.choice(self.accounts)
            key = self.chance.choice(self.keys[account.id])
            self.place(account, key, self.quote(), model=self.chance.choice(("toy", "large")), user="someone")
            if len(self._open) > self.running:
                self.end(self.chance.randrange(len(self._open)))
            if self.chance.random() < 0.01:
                self.change_something()

    def work(self, jobs: int) -> None:
        """So many Jobs go through the ways that a Job can go, each as far as chance will have it."""
        for _ in range(jobs):
            account = self.chance.choice(self.accounts)
            key = self.chance.choice(self.keys[account.id])
            self.now += self.step
            job = Job.submit(
                uuid7(),
                self.now,
                account_id=show(ACCOUNT, account.id),
                key_id=show(KEY, key.id),
                model="toy",
                hold_id=show(HOLD, uuid7()),
                request_id="req",
                request_sha256="0" * 64,
                created_at=int(self.now.timestamp()),
            )
            while not job.record.expired and self.chance.random() < 0.9:
                self.now += self.step
                self.go_on(job)
            self.keep(job)

    def go_on(self, job: Job) -> None:
        result = ("1" * 64, self.chance.randint(100, 1000), self.now)
        match job.record.status:
            case JobStatus.QUEUED:
                self.chance.choice((job.start, job.start, job.start, job.cancel))("runner_1", self.now)
            case JobStatus.RUNNING:
                match self.chance.randrange(5):
                    case 0:
                        job.note_failed_try("vllm_oom", 502, self.now)
                    case 1:
                        job.interrupt(self.now)
                    case 2:
                        job.fail(502, "vllm_oom", *result)
                    case 3:
                        job.succeed(200, *result)
                    case 4:
                        job.cancel("asked", self.now)
            case _:
                job.expire(self.now)

    def keep(self, *aggregates: Account | ApiKey | Job | Ledger | PlatformSettings) -> None:
        """Its events are of this moment."""
        for aggregate in aggregates:
            self.events += [dataclasses.replace(event, timestamp=self.now) for event in aggregate.collect_events()]

    def store(self, store: EventStore) -> int:
        """Appends what has happened; how many events it was. The store is claimed already."""
        stored, self.events = self.events, []
        store.append(stored)
        return len(stored)
