"""Whether the views say what the events say: every event replayed by the aggregates themselves, every row compared.

The views are folded by SQL, this by Python, from nothing but the events: a fault of one shows against the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from acs.events.account import Account
from acs.events.api_key import ApiKey
from acs.events.harvest import Harvest
from acs.events.hold import Hold, HoldStatus
from acs.events.ids import ACCOUNT, HARVEST, JOB, KEY, LOOM, show
from acs.events.job import Job, JobStatus
from acs.events.ledger import Ledger
from acs.events.loom import Loom
from acs.events.loom_tree import NODE_STATUS, NodeRecord
from acs.events.platform_settings import PlatformSettings
from acs.storage.event_store import EventStore
from acs.storage.views.database import ViewsDatabase
from acs.storage.views.kinds import KINDS

PAGE_ROWS = 10_000  # handed to DuckDB at once
Row = dict[str, Any]

IDENTITY = {  # what tells rows of a table apart
    "accounts": ("account_id",),
    "keys": ("key_id",),
    "platform_settings": (),
    "ledgers": ("account_id", "month"),
    "key_ledgers": ("account_id", "month", "key_id"),
    "holds": ("hold_id",),
    "jobs": ("job_id",),
    "harvests": ("harvest_id",),
    "harvest_shards": ("harvest_id", "shard"),
    "planted_looms": ("loom_id",),
    "loom_branches": ("branch_id",),
    "made_nodes": ("node_id",),
    "late_settlements": ("hold_id", "asked_as", "noted_at"),
}
# The days, from the Holds as the events have them.
DAYS = """
SELECT placed_at::DATE AS day, account_id, key_id, model, sum(charged_tokens)::BIGINT AS charged_tokens,
    sum(charged_pico_usd)::BIGINT AS charged_pico_usd, count(*) FILTER (status = 'settled') AS requests
FROM expected_holds WHERE status <> 'open' GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class Difference:
    table: str
    row: str  # what names it: its ids, joined by a space
    column: str
    in_views: Any  # None: null, or no such row
    by_events: Any


def differences(store: EventStore, views: ViewsDatabase) -> Iterator[Difference]:
    """All of them. `views` is nobody else's and stays where it is: later events are left out. Raises BrokenLog."""
    with views.cursor() as cursor:
        expected = _replayed(store, views.position)
        while page := list(itertools.islice(expected, PAGE_ROWS)):
            for table in IDENTITY:
                if rows := [row for name, row in page if name == table]:
                    _insert(cursor, table, rows)
        for table, identity in IDENTITY.items():
            yield from _compared(cursor, table, identity)
        cursor.execute(f"CREATE TEMP TABLE expected_daily_usage AS {DAYS}")
        yield from _compared(cursor, "daily_usage", ("day", "account_id", "key_id", "model"))


def _insert(cursor: Any, table: str, rows: list[Row]) -> None:
    """Into a table of the columns that these rows have, of the types that the view's columns have."""
    columns = ", ".join(rows[0])
    cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS expected_{table} AS SELECT {columns} FROM {table} LIMIT 0")
    cursor.register("page", pa.Table.from_pylist(rows))
    cursor.execute(f"INSERT INTO expected_{table} FROM page")


def _compared(cursor: Any, table: str, identity: tuple[str, ...]) -> Iterator[Difference]:
    cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS expected_{table} AS FROM {table} LIMIT 0")
    columns = [column[0] for column in cursor.execute(f"FROM expected_{table} LIMIT 0").description]
    listed = ", ".join(columns)
    sides = []
    for one, other in ((table, f"expected_{table}"), (f"expected_{table}", table)):
        cursor.execute(f"SELECT {listed} FROM {one} EXCEPT ALL SELECT {listed} FROM {other}")
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        sides.append({" ".join(str(row[name]) for name in identity): row for row in rows})
    in_views, by_events = sides
    for row in sorted({*in_views, *by_events}):
        for column in columns:
            seen, right = in_views.get(row, {}).get(column), by_events.get(row, {}).get(column)
            if seen != right:
                yield Difference(table, row, column, seen, right)


def _replayed(store: EventStore, until: int) -> Iterator[tuple[str, Row]]:
    """(table, row): each Hold when it has ended, each Node when it was deleted; at the end all else."""
    aggregates: dict[UUID, Any] = {}
    event: Any
    aggregate: Any
    for position, event in store.read_log(0):
        if position > until:
            break
        if event.TOPIC not in KINDS:  # what the views have nothing of
            continue
        aggregate = aggregates.get(event.originator_id)
        match event:
            case Ledger.HoldSettled() | Ledger.HoldReleased() | Ledger.HoldExpired() if aggregate is not None:
                hold, charged = aggregate.book.holds.get(event.hold_id), aggregate.book.account.charged
                _follow(position, event, aggregate)
                yield "holds", _ended(aggregate, event, hold, aggregate.book.account.charged - charged)
            case Ledger.LateSettlementNoted() if aggregate is not None:
                _follow(position, event, aggregate)
                yield "late_settlements", _late(aggregate, event)
            case Loom.NodesDeleted() | Loom.Deleted() if aggregate is not None:
                nodes = dict(aggregate.record.nodes)
                _follow(position, event, aggregate)
                for node_id in nodes.keys() - aggregate.record.nodes.keys():
                    yield "made_nodes", _node(aggregate, node_id, nodes[node_id], _utc(event.timestamp))
            case _:
                aggregates[event.originator_id] = _follow(position, event, aggregate)
    for aggregate in aggregates.values():
        yield from _rows_of(aggregate)


def _follow(position: int, event: Any, aggregate: Any) -> Any:
    """The aggregate as the event leaves it."""
    try:
        return event.mutate(aggregate)
    except Exception as error:
        raise BrokenLog(
            f"Event {position:,}, {type(event).__qualname__}, cannot follow those before it ({type(error).__name__})."
        ) from error


def _ended(ledger: Ledger, event: Any, hold: Hold, charged_tokens: int) -> Row:
    status, resolved_at = ledger.book.resolved[event.hold_id]
    return {
        **_hold(ledger, event.hold_id, hold),
        "status": status.value,
        "charged_tokens": charged_tokens,
        "charged_pico_usd": event.cost_pico_usd if status is HoldStatus.SETTLED else 0,
        "resolved_at": _utc(resolved_at),
    }


def _late(ledger: Ledger, event: Ledger.LateSettlementNoted) -> Row:
    return {
        "hold_id": event.hold_id,
        "account_id": ledger.book.account_id,
        "resolved_as": event.resolved_as,
        "asked_as": event.asked_as,
        "prompt_tokens": event.prompt_tokens,
        "completion_tokens": event.completion_tokens,
        "noted_at": _utc(event.timestamp),
    }


def _hold(ledger: Ledger, hold_id: str, hold: Hold) -> Row:
    return {
        "hold_id": hold_id,
        "account_id": ledger.book.account_id,
        "month": ledger.book.month,
        "key_id": hold.key_id,
        "request_id": hold.request_id,
        "model": hold.model,
        "owner": hold.owner,
        "choices": hold.quote.choices,
        "max_tokens": hold.quote.max_tokens,
        "held_prompt_tokens": hold.quote.prompt_tokens,
        "held_tokens": hold.tokens,
        "placed_at": _utc(hold.placed_at),
        "status": HoldStatus.OPEN.value,
        "charged_tokens": 0,
        "charged_pico_usd": 0,
        "resolved_at": None,
    }


def _job(job: Job) -> Row:
    record = job.record
    return {
        "job_id": show(JOB, job.id),
        "account_id": record.account_id,
        "key_id": record.key_id,
        "model": record.model,
        "hold_id": record.hold_id,
        "request_id": record.request_id,
        "status": record.status.value,
        "runs": record.runs,
        "failed_tries": record.failed_tries,
        "http_status": record.http_status,
        "started_at": record.started_at and _utc(record.started_at),
        "finished_at": record.finished_at and _utc(record.finished_at),
    }


def _node(loom: Loom, node_id: str, node: NodeRecord, deleted_at: datetime | None) -> Row:
    return {
        "node_id": node_id,
        "loom_id": show(LOOM, loom.id),
        "branch_id": node.branch_id,
        "parent_id": node.parent_id,
        "parent_token": node.parent_token,
        "deleted_at": deleted_at,
    }


def _loom(loom: Loom) -> Iterator[tuple[str, Row]]:
    record, loom_id = loom.record, show(LOOM, loom.id)
    planted = {"loom_id": loom_id, "account_id": record.account_id, "model": record.model, "version": loom.version}
    yield "planted_looms", planted
    for branch_id, branch in record.branches.items():
        cancelled = branch.status is JobStatus.CANCELLED
        yield (
            "loom_branches",
            {
                "branch_id": branch_id,
                "loom_id": loom_id,
                "account_id": branch.account_id,
                "key_id": branch.key_id,
                "model": branch.model,
                "hold_id": branch.hold_id,
                "request_id": branch.request_id,
                "nodes": len(branch.node_ids),
                "status": "cancelled" if cancelled else NODE_STATUS[branch.status],
                "runs": branch.runs,
                "failed_tries": branch.failed_tries,
            },
        )
    for node_id, node in record.nodes.items():
        yield "made_nodes", _node(loom, node_id, node, None)


def _harvest(harvest: Harvest) -> Iterator[tuple[str, Row]]:
    record, terms, harvest_id = harvest.record, harvest.record.terms, show(HARVEST, harvest.id)
    of_terms = ("account_id", "key_id", "model", "hold_id", "request_id", "n_prompts", "n_tokens", "n_shards")
    yield (
        "harvests",
        {
            "harvest_id": harvest_id,
            **{name: getattr(terms, name) for name in (*of_terms, "layers", "width", "positions", "max_bytes")},
            "status": record.status.value,
            "runs": record.runs,
            "word": record.word,
            "submitted_at": _utc(record.submitted_at),
            "started_at": record.started_at and _utc(record.started_at),
            "finished_at": record.finished_at and _utc(record.finished_at),
        },
    )
    for number, shard in record.shards.items():
        yield (
            "harvest_shards",
            {
                "harvest_id": harvest_id,
                "shard": number,
                "file": shard.file,
                "n_rows": shard.rows,
                "bytes": shard.bytes,
                "sha256": shard.sha256,
                "n_prompts": shard.prompts,
                "n_tokens": shard.tokens,
                "forward_ms": shard.forward_ms,
                "write_ms": shard.write_ms,
            },
        )


def _rows_of(aggregate: Any) -> Iterator[tuple[str, Row]]:
    match aggregate:
        case Account():
            state = "suspended" if aggregate.suspended else "active"
            row: Row = {"account_id": show(ACCOUNT, aggregate.id), "name": aggregate.name, "email": aggregate.email}
            row |= {"state": state, "budget_tokens": aggregate.budget_tokens}
            yield "accounts", row | {"spend_limit_micro_usd": aggregate.spend_limit_micro_usd}
        case ApiKey():
            state = "revoked" if aggregate.revoked else "disabled" if aggregate.disabled else "active"
            row = {"key_id": show(KEY, aggregate.id), "account_id": show(ACCOUNT, aggregate.account_id)}
            row |= {"name": aggregate.name, "prefix": aggregate.prefix, "state": state}
            yield "keys", row | {"budget_tokens": aggregate.budget_tokens}
        case Job():
            yield "jobs", _job(aggregate)
        case Harvest():
            yield from _harvest(aggregate)
        case Loom():
            yield from _loom(aggregate)
        case PlatformSettings():
            yield "platform_settings", {"spend_limit_micro_usd": aggregate.spend_limit_micro_usd}
        case Ledger():
            book = aggregate.book
            whose = {"account_id": book.account_id, "month": book.month}
            for table, of, use in (
                ("ledgers", {}, book.account),
                *(("key_ledgers", {"key_id": key_id}, use) for key_id, use in book.keys.items()),
            ):
                tokens = {"budget_tokens": use.budget, "held_tokens": use.held, "charged_tokens": use.charged}
                yield table, {**whose, **of, **tokens}
            for hold_id, hold in book.holds.items():
                yield "holds", _hold(aggregate, hold_id, hold)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


class BrokenLog(Exception):
    """The store has an event that its aggregate cannot have made."""
