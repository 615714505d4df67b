"""The SQL that makes and fills the tables, from the files beside this one; and which SQL made those that are there."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from acs.storage.views.kinds import KINDS

HERE = Path(__file__).parent
SCHEMA = (HERE / "schema.sql").read_text(encoding="utf-8")
# What each batch is folded by, in this order. A fold runs when the batch has events of a kind that it names.
FOLDS = [
    (HERE / "fold" / f"{name}.sql").read_text(encoding="utf-8")
    for name in (
        *("accounts", "keys", "platform_settings", "ledgers", "holds", "late_settlements"),
        *("jobs", "harvests", "looms"),
    )
]
# What people ask; the rest is parts of these, or about the views themselves.
TABLES = (
    *("accounts", "keys", "platform_settings", "ledgers", "key_ledgers", "daily_usage"),
    *("holds", "charges", "requests", "jobs", "harvests", "harvest_shards", "late_settlements"),
    *("looms", "loom_branches", "loom_nodes", "loom_paths"),
)


def make_tables(connection: Any) -> None:
    """All of them, empty, or none."""
    connection.execute("BEGIN")
    connection.execute(SCHEMA)
    for what, comment in comments(SCHEMA):
        quoted = comment.replace("'", "''")
        connection.execute(f"COMMENT ON {what} IS '{quoted}'")
    connection.execute("INSERT INTO projection VALUES (0, NULL, ?)", [fingerprint()])
    connection.execute("INSERT INTO platform_settings VALUES (NULL)")
    connection.execute("COMMIT")


@cache
def fingerprint() -> str:
    """Of all that decides what the tables hold."""
    return hashlib.sha256(repr((SCHEMA, FOLDS, KINDS)).encode()).hexdigest()


def comments(schema: str) -> list[tuple[str, str]]:
    """What `schema` says after `--` behind a table, a view or a column: ("COLUMN holds.month", "whose ledger …")."""
    found, owner = [], ""
    for line in schema.splitlines():
        code, _, comment = line.partition(" -- ")
        if made := re.match(r"CREATE (TABLE|VIEW) (\w+)", code):
            owner = made[2]
            found.append((f"{made[1]} {owner}", comment))
        elif column := re.search(r" AS (\w+),$", code) or re.match(r"    (\w+)", code):
            found.append((f"COLUMN {owner}.{column[1]}", comment))
    return [(what, comment) for what, comment in found if comment]
