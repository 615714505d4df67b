"""The DuckDB database of the views: made, opened, brought up to date a batch of events at a time, copied.

A batch and the position behind it are one transaction, so every event is folded exactly once, whenever the process
dies. One process may have the file open; importing this module opens nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from acs.storage.event_store import EventStore, happened_at
from acs.storage.views.kinds import KINDS
from acs.storage.views.schema import FOLDS, fingerprint, make_tables

BATCH_EVENTS = 20_000  # one transaction, well under a second
CONFIG: dict[str, Any] = {
    "threads": 2,
    "memory_limit": "1GiB",  # DuckDB's own would be most of the machine
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
BATCH = pa.schema({"position": pa.int64(), "topic": pa.string(), "aggregate_id": pa.string(), "state": pa.string()})

Read = Callable[..., list[dict[str, Any]]]

_log = logging.getLogger(__name__)


class ViewsDatabase:
    """The views of `store`, in the file `path` (None: in memory). Raises ViewsInUse. Views that are damaged, or of
    another version or store, are made again, empty, at position 0. Methods block; any thread may call them.
    """

    def __init__(self, store: EventStore, path: Path | None = None) -> None:
        self._store = store
        self._path = path
        self._writing = threading.Lock()
        self._connection = _connect(store, path)
        self._connection.register("batch", BATCH.empty_table())
        for name, select in KINDS.values():
            self._connection.execute(f"CREATE TEMP VIEW {name} AS {select}")
        self.position: int = self.read("SELECT position FROM projection")[0]["position"]  # of the last event folded

    def catch_up(self, batch: int = BATCH_EVENTS, until: datetime | None = None) -> int:
        """Folds up to `batch` events that the views have not seen, none from the first on that happened after `until`;
        how many there were.
        """
        stored = self._store.read_stored(self.position, batch)
        if until is not None:
            stored = list(itertools.takewhile(lambda row: happened_at(row[3]) <= until, stored))
        if stored:
            self.fold(stored)
        return len(stored)

    def fold(self, stored: Sequence[tuple[int, str, str, str]]) -> None:
        """The events after `position`, as `EventStore.read_stored` gives them: all of them or, when it raises, none."""
        positions, topics, aggregate_ids, states = zip(*stored, strict=True)
        kinds = [KINDS[topic][0] for topic in set(topics) if topic in KINDS]
        with self._writing:
            self._connection.register("batch", pa.table([positions, topics, aggregate_ids, states], BATCH))
            self._connection.execute("BEGIN")
            try:
                for fold in FOLDS:
                    if any(kind in fold for kind in kinds):
                        self._connection.execute(fold)
                moved = "UPDATE projection SET position = ?, last_event = ? WHERE position = ? RETURNING position"
                terms = [positions[-1], _digest(stored[-1]), self.position]
                if not self._connection.execute(moved, terms).fetchall():
                    raise RuntimeError(f"somebody else has moved the views from position {self.position}")
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self.position = positions[-1]

    def read(self, query: str, terms: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query of ours, by column. `terms`: what `$name` stands for in it."""
        with self.reading() as read:
            return read(query, terms)

    def cursor(self) -> Any:
        """A DuckDB connection to the views of its own, to be closed; a context."""
        return self._connection.cursor()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Read]:
        """`read` for several queries that see one and the same state, between two batches."""
        with self.cursor() as cursor:
            cursor.execute("BEGIN")

            def read(query: str, terms: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
                used = {
                    name: value for name, value in (terms or {}).items() if f"${name}" in query
                }  # no more are taken
                result = cursor.execute(query, used)
                columns = [column[0] for column in result.description]
                return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]

            yield read

    def copy_to(self, path: Path) -> int:
        """A file of its own with the views as they stand, new at `path`, mode 600; their position. Raises OSError."""
        assert self._path is not None, "views in memory have no file"
        path.touch(mode=0o600, exist_ok=False)
        with self._writing:
            self._connection.execute("CHECKPOINT")  # all of it is in the one file now
            shutil.copyfile(self._path, path)
            return self.position

    def close(self) -> None:
        self._connection.close()


def _connect(store: EventStore, path: Path | None) -> Any:
    if path is not None and path.exists():
        try:
            connection = duckdb.connect(path, config=CONFIG)
            if _is_current(connection, store):
                return connection
            connection.close()
            _log.warning("the views are of another version, or of other events; they are made again")
        except duckdb.Error as error:
            if _locked(path):
                raise ViewsInUse("Another process has the views open.") from error
            _log.warning("the views cannot be read (%s); they are made again", type(error).__name__)
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        path.unlink()
    connection = duckdb.connect(path or ":memory:", config=CONFIG)
    make_tables(connection)
    if path is not None:
        path.chmod(0o600)
    return connection


def _is_current(connection: Any, store: EventStore) -> bool:
    """Whether this SQL made the tables, and from this store's events: not from those of a backup put in its place."""
    position, last_event, made_by = connection.execute("FROM projection").fetchall()[0]
    if made_by != fingerprint():
        return False
    return position == 0 or [_digest(row) for row in store.read_stored(position - 1, 1)] == [last_event]


def _digest(stored: tuple[int, str, str, str]) -> str:
    return hashlib.sha256(repr(stored).encode()).hexdigest()


def _locked(path: Path) -> bool:
    """Whether another process has DuckDB's lock on the file. Not to be asked while we have it open ourselves."""
    with path.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class ViewsInUse(Exception):
    """Views have one owner at a time."""
