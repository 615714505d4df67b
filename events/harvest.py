"""A Harvest: the residual stream of many prompts, read by a model and written to files that are kept for a while.

    pending → running → done | failed
    pending | running → cancelled

Its Hold is placed in the commit that submits it and resolved in the one that ends it. A shard's rows exist for readers
only once its `ShardWritten` is stored; whoever goes on after a crash reads from these events what is left to do. The
prompts are a blob: the events carry its address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from eventsourcing.domain import Aggregate


class HarvestStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (HarvestStatus.PENDING, HarvestStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class Terms:
    """What was asked for, as it was judged when it was submitted."""

    account_id: str
    key_id: str
    model: str
    hold_id: str
    request_id: str  # of the request that submitted it
    plan_sha256: str  # the address of a blob: the prompts' tokens, how they are cut into shards, the directions
    n_prompts: int
    n_tokens: int
    n_shards: int
    layers: list[int]  # ascending
    width: int  # numbers a Layer and row
    positions: str  # all, last, mean: the rows that are kept of a prompt
    max_bytes: int  # of all rows as float32: the files are not larger


@dataclass(frozen=True, slots=True)
class WrittenShard:
    file: str
    rows: int
    bytes: int
    sha256: str
    prompts: int
    tokens: int  # read for it
    forward_ms: int  # from its first chunk's start to its last chunk's end, in the model
    write_ms: int


@dataclass(slots=True)
class HarvestRecord:
    """All that a Harvest remembers."""

    terms: Terms
    submitted_at: datetime
    status: HarvestStatus = HarvestStatus.PENDING
    runs: int = 0  # how often it was started; the number of the last run
    fruitless: int = 0  # runs since the last one that wrote a shard
    runner: str | None = None  # who runs it, or ran it last
    started_at: datetime | None = None  # of its first run
    finished_at: datetime | None = None
    shards: dict[int, WrittenShard] = field(default_factory=dict)  # by number, from 0
    manifest_sha256: str | None = None
    word: str | None = None  # why it failed or was cancelled
    expired: bool = False  # its files are gone

    @property
    def prompts_done(self) -> int:
        return sum(shard.prompts for shard in self.shards.values())

    @property
    def tokens_done(self) -> int:
        return sum(shard.tokens for shard in self.shards.values())

    @property
    def bytes_done(self) -> int:
        return sum(shard.bytes for shard in self.shards.values())


class Harvest(Aggregate):
    TOPIC = "acs.events.harvest:Harvest"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.harvest:Harvest.Created"
        account_id: str
        key_id: str
        model: str
        hold_id: str
        request_id: str
        plan_sha256: str
        n_prompts: int
        n_tokens: int
        n_shards: int
        layers: list[int]
        width: int
        positions: str
        max_bytes: int

        def apply(self, harvest: Harvest) -> None:
            terms = Terms(**{name: getattr(self, name) for name in Terms.__dataclass_fields__})
            harvest.record = HarvestRecord(terms, self.timestamp)

    class Started(Aggregate.Event):
        """By its first runner, or by another that goes on where the one before it stopped."""

        TOPIC = "acs.events.harvest:Harvest.Started"
        run: int  # 1, 2, …
        runner: str

        def apply(self, harvest: Harvest) -> None:
            record = harvest.record
            record.status, record.runs, record.runner = HarvestStatus.RUNNING, self.run, self.runner
            record.fruitless += 1
            record.started_at = record.started_at or self.timestamp

    class ShardWritten(Aggregate.Event):
        """The file is whole and on disk; from now on its rows are there for readers."""

        TOPIC = "acs.events.harvest:Harvest.ShardWritten"
        number: int
        file: str
        rows: int
        bytes: int
        sha256: str
        prompts: int
        tokens: int
        forward_ms: int
        write_ms: int

        def apply(self, harvest: Harvest) -> None:
            shard = WrittenShard(**{name: getattr(self, name) for name in WrittenShard.__dataclass_fields__})
            harvest.record.shards[self.number] = shard
            harvest.record.fruitless = 0

    class Done(Aggregate.Event):
        TOPIC = "acs.events.harvest:Harvest.Done"
        manifest_sha256: str

        def apply(self, harvest: Harvest) -> None:
            harvest.end(HarvestStatus.DONE, self.timestamp, None)
            harvest.record.manifest_sha256 = self.manifest_sha256

    class Failed(Aggregate.Event):
        TOPIC = "acs.events.harvest:Harvest.Failed"
        word: str  # what went wrong: storage_full, storage_unavailable, runner_lost, or an error's code

        def apply(self, harvest: Harvest) -> None:
            harvest.end(HarvestStatus.FAILED, self.timestamp, self.word)

    class Cancelled(Aggregate.Event):
        TOPIC = "acs.events.harvest:Harvest.Cancelled"
        reason: str  # asked, account_suspended

        def apply(self, harvest: Harvest) -> None:
            harvest.end(HarvestStatus.CANCELLED, self.timestamp, self.reason)

    class FilesExpired(Aggregate.Event):
        """They have been kept long enough: from now on nobody may read them, and they go."""

        TOPIC = "acs.events.harvest:Harvest.FilesExpired"

        def apply(self, harvest: Harvest) -> None:
            harvest.record.expired = True

    def __init__(self) -> None:  # the record is made by the first event
        self.record: HarvestRecord

    @classmethod
    def submit(cls, id: UUID, now: datetime, terms: Terms) -> Harvest:
        fields = {name: getattr(terms, name) for name in Terms.__dataclass_fields__}
        return cls._create(cls.Created, id=id, timestamp=now, **fields)

    @classmethod
    def restored(cls, id: UUID, version: int, record: HarvestRecord) -> Harvest:
        """As its events up to `version` made it: for a checkpoint."""
        harvest = cls.__new__(cls)
        harvest.__base_init__(id, version, record.submitted_at)
        harvest.record = record
        return harvest

    # Commands. Whether each may be done is seen from `record.status` by the caller, the ledger.

    def start(self, runner: str, now: datetime) -> None:
        """Of one that has not ended."""
        self.trigger_event(self.Started, run=self.record.runs + 1, runner=runner, timestamp=now)

    def note_shard(self, number: int, shard: WrittenShard, now: datetime) -> None:
        """Of a running one. One that is noted already stays as it is: a shard's file is committed once."""
        if number not in self.record.shards:
            fields = {name: getattr(shard, name) for name in WrittenShard.__dataclass_fields__}
            self.trigger_event(self.ShardWritten, number=number, **fields, timestamp=now)

    def finish(self, manifest_sha256: str, now: datetime) -> None:
        """Of a running one that has all its shards."""
        self.trigger_event(self.Done, manifest_sha256=manifest_sha256, timestamp=now)

    def fail(self, word: str, now: datetime) -> None:
        """Of a running one."""
        self.trigger_event(self.Failed, word=word, timestamp=now)

    def cancel(self, reason: str, now: datetime) -> None:
        """Of one that has not ended."""
        self.trigger_event(self.Cancelled, reason=reason, timestamp=now)

    def expire(self, now: datetime) -> None:
        """Of one that has ended."""
        self.trigger_event(self.FilesExpired, timestamp=now)

    # Inside events

    def end(self, status: HarvestStatus, moment: datetime, word: str | None) -> None:
        """For the events only."""
        record = self.record
        record.status, record.finished_at, record.word = status, moment, word
