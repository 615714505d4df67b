"""The DuckDB database of the views: made, opened, filled a batch of events at a time, copied.

A batch and the position behind it are one transaction, so every event is folded exactly once, whenever the process
dies. One process may have the file open; importing this module opens nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from acs.storage.event_store import EventStore
from acs.storage.views.kinds import KINDS

BATCH_EVENTS = 20_000  # one transaction, well under a second
HERE = Path(__file__).parent
SCHEMA = (HERE / "schema.sql").read_text()
# What each batch is folded by, in this order; a fold runs when the batch has events of a kind that it names.
FOLDS = [
    (HERE / "fold" / f"{name}.sql").read_text()
    for name in ("accounts", "keys", "platform_settings", "ledgers", "holds", "late_settlements")
]
CONFIG: dict[str, Any] = {
    "threads": 2,
    "memory_limit": "1GiB",  # DuckDB's own would be most of the machine
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}

Read = Callable[..., list[dict[str, Any]]]

_log = logging.getLogger(__name__)


class ViewsDatabase:
    """`path` None: in memory. Raises ViewsInUse. What was made by other SQL than this, or is damaged, is made again,
    empty, at position 0. Methods block; they may be called from several threads.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._writing = threading.Lock()
        self._connection = _connect(path)
        self._connection.register("batch", _columns([]))
        for name, select in KINDS.values():
            self._connection.execute(f"CREATE TEMP VIEW {name} AS {select}")
        self.position: int = self.read("SELECT position FROM projection")[0]["position"]

    def read(self, query: str, terms: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query of ours, by column. `terms`: what `$name` stands for in it."""
        with self.reading() as read:
            return read(query, terms)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Read]:
        """`read` for several queries that see one and the same state."""
        with self._connection.cursor() as cursor:
            cursor.execute("BEGIN")

            def read(query: str, terms: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
                used = {name: value for name, value in (terms or {}).items() if f"${name}" in query}
                result = cursor.execute(query, used)
                columns = [column[0] for column in result.description]
                return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]

            yield read

    def catch_up(self, store: EventStore, batch: int = BATCH_EVENTS) -> int:
        """Folds up to `batch` events that the views have not seen; how many there were."""
        stored = store.read_stored(self.position, batch)
        if stored:
            self.fold(stored)
        return len(stored)

    def fold(self, stored: Sequence[tuple[int, str, str, str]]) -> None:
        """The events after `position`, as `EventStore.read_stored` gives them: all of them or, when it raises, none."""
        last = stored[-1][0]
        with self._writing:
            self._connection.execute("BEGIN")
            try:
                self._fold(stored)
                moved = "UPDATE projection SET position = ? WHERE position = ? RETURNING position"
                if not self._connection.execute(moved, [last, self.position]).fetchall():
                    raise RuntimeError(f"somebody else has moved the views from position {self.position}")
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self.position = last

    def _fold(self, stored: Sequence[tuple[int, str, str, str]]) -> None:
        self._connection.register("batch", _columns(stored))
        kinds = {KINDS[topic][0] for topic in {topic for _, topic, _, _ in stored} if topic in KINDS}
        for fold in FOLDS:
            if any(kind in fold for kind in kinds):
                self._connection.execute(fold)

    def copy_to(self, path: Path) -> int:
        """A file of its own with the views as they stand, new at `path`; its position. Raises OSError."""
        assert self._path is not None, "views in memory have no file"
        with self._writing:
            self._connection.execute("CHECKPOINT")  # all of it is in the one file now
            shutil.copyfile(self._path, path)
            return self.position

    def close(self) -> None:
        self._connection.close()


def _columns(stored: Sequence[tuple[int, str, str, str]]) -> pa.Table:
    schema = pa.schema(
        {"position": pa.int64(), "topic": pa.string(), "aggregate_id": pa.string(), "state": pa.string()}
    )
    columns = zip(*stored, strict=True) if stored else [[]] * 4
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def _connect(path: Path | None) -> Any:
    if path is None:
        return _made(duckdb.connect(config=CONFIG))
    if path.exists():
        try:
            connection = duckdb.connect(path, config=CONFIG)
            if connection.execute("SELECT made_by FROM projection").fetchall() == [(fingerprint(),)]:
                return connection
            connection.close()
            _log.warning("the views were made by another version; they are made again")
        except duckdb.Error as error:
            if _locked(path):
                raise ViewsInUse("Another process has the views open.") from error
            _log.warning("the views cannot be read (%s); they are made again", type(error).__name__)
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        path.unlink()
    return _made(duckdb.connect(path, config=CONFIG))


def _made(connection: Any) -> Any:
    connection.execute("BEGIN")
    connection.execute(SCHEMA)
    for comment in comments(SCHEMA):
        connection.execute(comment)
    connection.execute("INSERT INTO projection VALUES (0, ?)", [fingerprint()])
    connection.execute("INSERT INTO platform_settings VALUES (NULL)")
    connection.execute("COMMIT")
    return connection


@cache
def fingerprint() -> str:
    """Of all that decides what the tables hold."""
    return hashlib.sha256(repr((SCHEMA, FOLDS, KINDS)).encode()).hexdigest()


def comments(schema: str) -> list[str]:
    """COMMENT statements for what `schema` says after `--` behind a table, a view or a column."""
    statements, owner = [], ""
    for line in schema.splitlines():
        code, _, comment = line.partition(" -- ")
        if made := re.match(r"CREATE (TABLE|VIEW) (\w+)", code):
            owner = made[2]
            statements.append((f"{made[1]} {owner}", comment))
        elif column := re.search(r"(\w+),$", code if " AS " in code else re.sub(r"(\w+).*", r"\1,", code)):
            statements.append((f"COLUMN {owner}.{column[1]}", comment))
    return [
        f"COMMENT ON {what} IS '{comment.replace(chr(39), chr(39) * 2)}'" for what, comment in statements if comment
    ]


def _locked(path: Path) -> bool:
    """Whether another process has DuckDB's lock on the file. Not to be asked while we have it open ourselves."""
    with path.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class ViewsInUse(Exception):
    pass
