"""A made-up past: accounts, keys and Holds that end in every way, as events that the aggregates themselves made."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from acs.events.account import Account
from acs.events.api_key import ApiKey, new_secret
from acs.events.harvest import Harvest, HarvestStatus, Terms, WrittenShard
from acs.events.hold import HoldStatus, Quote
from acs.events.ids import ACCOUNT, BRANCH, HOLD, KEY, NODE, show, uuid7
from acs.events.job import Job, JobStatus
from acs.events.ledger import Ledger, month_of
from acs.events.loom import Loom
from acs.events.loom_tree import Content
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

    def grow(self, looms: int, steps: int = 40) -> None:
        """So many Looms go through so many of the things that can happen to a Loom."""
        for _ in range(looms):
            account = self.chance.choice(self.accounts)
            key = self.chance.choice(self.keys[account.id])
            self.now += self.step
            loom = Loom.create(
                uuid7(),
                self.now,
                account_id=show(ACCOUNT, account.id),
                key_id=show(KEY, key.id),
                model="toy",
                tokenizer_sha256="t" * 64,
                title_sha256=None,
                root_id=show(NODE, uuid7()),
                content_sha256="0" * 64,
                content_bytes=10,
                tokens=3,
                created_at=int(self.now.timestamp()),
            )
            self.keep(loom)
            for _ in range(steps):
                self.now += self.step
                self.change_loom(loom, account, key)
                self.keep(loom)
            if self.chance.random() < 0.2:
                loom.delete(self.now)
                self.keep(loom)

    def change_loom(self, loom: Loom, account: Account, key: ApiKey) -> None:
        """Its Branches are under Holds of the account's Ledger."""
        record = loom.record
        pending = [id for id in record.unfinished if record.branches[id].status is JobStatus.QUEUED]
        running = [id for id in record.unfinished if record.branches[id].status is JobStatus.RUNNING]
        match self.chance.randrange(8):
            case 0 | 1 | 2:
                done = [id for id, node in record.nodes.items() if record.status_of(node) == "done"]
                self.ask_branch(loom, self.chance.choice(done), account, key)
            case 3 | 4 if pending:
                loom.start(self.chance.choice(pending), "runner_1", self.now)
            case 5 | 6 if running:
                self.end_branch(loom, self.chance.choice(running))
            case 7 if len(record.nodes) > 5:
                loom.delete_nodes(record.subtrees([self.chance.choice(list(record.nodes)[1:])]), self.now)

    def ask_branch(self, loom: Loom, parent_id: str, account: Account, key: ApiKey) -> None:
        n = self.chance.randint(1, 4)
        hold_id = self.place(account, key, Quote(10, n, 8))
        self._open.pop()  # `end_branch` ends it
        loom.ask_branch(
            parent_id,
            self.now,
            branch_id=show(BRANCH, uuid7()),
            key_id=show(KEY, key.id),
            model="toy",
            hold_id=hold_id,
            request_id="req",
            parent_token=self.chance.choice((None, 2)),
            node_ids=[show(NODE, uuid7()) for _ in range(n)],
            path_tokens=10,
            path_logprob=self.chance.choice((None, -3.5)),
            request_sha256="1" * 64,
            asked_sha256="2" * 64,
            asked_bytes=2,
            created_at=int(self.now.timestamp()),
        )

    def end_branch(self, loom: Loom, branch_id: str) -> None:
        branch = loom.record.branches[branch_id]
        (ledger,) = [one for one in self._ledgers.values() if branch.hold_id in one.book.holds]
        match self.chance.randrange(5):
            case 0:
                return loom.note_failed_try(branch_id, "vllm_oom", 502, self.now)
            case 1:
                return loom.interrupt(branch_id, self.now)
            case 2:
                loom.fail(branch_id, 500, "internal_error", "3" * 64, self.now)
                ledger.release(branch.hold_id, "internal_error", 500, self.now)
            case _:
                contents = [Content(id, "4" * 64, 20, 5, "length", -1.25) for id in branch.node_ids]
                loom.grow(branch_id, contents, self.now)
                ledger.settle(branch.hold_id, 10, 5 * len(contents), 200, self.now)
        self.keep(ledger)

    def harvest(self, harvests: int) -> None:
        """So many go through the ways that one can go, each as far as chance will have it."""
        for _ in range(harvests):
            account = self.chance.choice(self.accounts)
            key = self.chance.choice(self.keys[account.id])
            self.now += self.step
            whose = show(ACCOUNT, account.id), show(KEY, key.id), "toy", show(HOLD, uuid7()), "req", "0" * 64
            harvest = Harvest.submit(uuid7(), self.now, Terms(*whose, 64, 900, 2, [1, 3], 8, "all", 57_600))
            while not harvest.record.expired and self.chance.random() < 0.9:
                self.now += self.step
                self.go_on_harvesting(harvest)
            self.keep(harvest)

    def go_on_harvesting(self, harvest: Harvest) -> None:
        record = harvest.record
        match record.status:
            case HarvestStatus.PENDING:
                if self.chance.random() < 0.8:
                    return harvest.start("runner_1", self.now)
                harvest.cancel("asked", self.now)
            case HarvestStatus.RUNNING:
                if len(record.shards) == record.terms.n_shards:
                    return harvest.finish("2" * 64, self.now)
                match self.chance.randrange(6):
                    case 0:
                        harvest.start("runner_2", self.now)
                    case 1:
                        harvest.fail("storage_full", self.now)
                    case 2:
                        harvest.cancel("asked", self.now)
                    case _:
                        number = len(record.shards)
                        shard = WrittenShard(f"shard-{number:05}-11111111.parquet", 450, 999, "1" * 64, 32, 450, 7, 8)
                        harvest.note_shard(number, shard, self.now)
            case _:
                harvest.expire(self.now)

    def keep(self, *aggregates: Account | ApiKey | Harvest | Loom | Job | Ledger | PlatformSettings) -> None:
        """Its events are of this moment."""
        for aggregate in aggregates:
            self.events += [dataclasses.replace(event, timestamp=self.now) for event in aggregate.collect_events()]

    def store(self, store: EventStore) -> int:
        """Appends what has happened; how many events it was. The store is claimed already."""
        stored, self.events = self.events, []
        store.append(stored)
        return len(stored)
