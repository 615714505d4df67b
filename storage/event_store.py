"""Where events are kept: one SQLite file, written ahead and synchronised in full, that only its owner may read.

The recorder leaves `synchronous` at FULL: when a save has returned, a power cut cannot undo it. One process writes: it
claims the store when it starts, every commit checks the claim, and a writer whose claim another has taken can commit
nothing any more. Readers open the same file and claim nothing. Importing this module opens nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast
from uuid import UUID, uuid4

import orjson
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, DomainEventProtocol
from eventsourcing.persistence import IntegrityError, JSONTranscoder, PersistenceError, StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder
from eventsourcing.utils import Environment, EnvType

A = TypeVar("A", bound=Aggregate)

STORE_FAULTS = (PersistenceError, sqlite3.Error)  # opening a connection, the library lets SQLite's own errors through
PAGE_EVENTS = 1000  # read at once when the log is followed: bounds memory, not the answer
LOCK_TIMEOUT_S = 5  # how long a write waits for another connection's transaction


Event = DomainEventProtocol[UUID]


class EventStore(Application[UUID]):
    """The library's Application over one file. What it adds raises the named errors below, never False."""

    name = "events"
    recorder: ClaimedRecorder

    def claim(self) -> None:
        """Become the one writer. Whoever was it before gets EventStoreConflict at its next commit."""
        try:
            self.recorder.claim(uuid4().hex)
        except STORE_FAULTS as error:
            _raise_unavailable(error)

    def save(self, *aggregates: Aggregate) -> list[int]:  # type: ignore[override]
        """Appends the pending events of all of them, as `append` does."""
        return self.append([event for aggregate in aggregates for event in aggregate.collect_events()])

    def append(self, events: Sequence[Event]) -> list[int]:
        """Stores events of any number of aggregates in one transaction; returns their positions when they are on disk.

        The library's `save` does the same at three times the cost. Raises EventStoreConflict and EventStoreUnavailable.
        """
        try:
            stored = [self.mapper.to_stored_event(event) for event in events]
            return list(self.recorder.insert_events(stored))
        except (IntegrityError, sqlite3.IntegrityError) as error:
            raise EventStoreConflict("Another writer is at work on the event store; nothing was stored.") from error
        except STORE_FAULTS as error:
            _raise_unavailable(error)

    def close(self) -> None:
        self.recorder.close()
        super().close()

    def load(self, kind: type[A], id: UUID) -> A:
        """The aggregate as its stored events make it. It must exist: an unknown id is a bug of the caller."""
        try:
            aggregate: Aggregate = self.repository.get(id)
        except STORE_FAULTS as error:
            _raise_unavailable(error)
        if not isinstance(aggregate, kind):
            raise TypeError(f"{id} is a {type(aggregate).__name__}, not a {kind.__name__}")
        return aggregate

    def head(self) -> int:
        """The position of the last stored event; 0 when there is none."""
        try:
            return self.recorder.max_notification_id() or 0
        except STORE_FAULTS as error:
            _raise_unavailable(error)

    def read_log(self, after: int) -> Iterator[tuple[int, Event]]:
        """(position, event) of every event after position `after`, in the order they were stored, page by page."""
        while True:
            try:
                page = self.recorder.select_notifications(start=after + 1, limit=PAGE_EVENTS)
            except STORE_FAULTS as error:
                _raise_unavailable(error)
            for notification in page:
                yield notification.id, self.mapper.to_domain_event(notification)
            if len(page) < PAGE_EVENTS:
                return
            after = page[-1].id

    def read_stored(self, after: int, limit: int) -> list[tuple[int, str, str, str]]:
        """(position, topic, id of the aggregate in hex, fields as JSON) of the first `limit` events after `after`.

        As they lie on the disk, eight times faster than `read_log`: for whoever wants columns, not objects.
        """
        table = self.recorder.events_table_name
        columns = "rowid, topic, originator_id, CAST(state AS TEXT)"
        statement = f"SELECT {columns} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
        try:
            with self.recorder.datastore.transaction(commit=False) as cursor:
                cursor.execute(statement, [after, limit])
                return [tuple(row) for row in cursor.fetchall()]
        except STORE_FAULTS as error:
            _raise_unavailable(error)

    def construct_transcoder(self) -> JSONTranscoder:
        transcoder = QuickTranscoder()
        self.register_transcodings(transcoder)
        return transcoder

    def construct_env(self, name: str, env: EnvType | None = None) -> Environment:
        return Environment(name, dict(env or {}))  # the library would let any variable of the process override ours


class QuickTranscoder(JSONTranscoder):
    """The library's own text, read and written by orjson: most of a replay is this. Values other than JSON's own stand
    only at the top level of our events.
    """

    def encode(self, obj: dict[str, Any]) -> bytes:
        plain = {name: self._encode_obj(value) if type(value) in self.types else value for name, value in obj.items()}
        return orjson.dumps(plain)

    def decode(self, data: bytes) -> dict[str, Any]:
        decoded: dict[str, Any] = orjson.loads(data)
        for name, value in decoded.items():
            if type(value) is dict:
                decoded[name] = self._decode_obj(value)
        return decoded


class ClaimedRecorder(SQLiteApplicationRecorder):
    """The library's recorder, and a row that names the writer: moved by every commit, so that a second writer is found
    out at its first, even one busy with other aggregates.
    """

    token = ""
    writing: sqlite3.Connection | None = None
    convert_originator_id = staticmethod(lru_cache(maxsize=10_000)(UUID))  # few aggregates make most of a log

    def construct_create_table_statements(self) -> list[str]:
        table = "CREATE TABLE IF NOT EXISTS writer (id INTEGER PRIMARY KEY CHECK (id = 1), token TEXT, commits INTEGER)"
        return [*super().construct_create_table_statements(), table]

    def claim(self, token: str) -> None:
        """Commits then go over a connection of their own: to take one from the library's pool, through its layers of
        transaction, costs more than all that SQLite does.
        """
        self.close()
        path = self.datastore.pool.db_name
        self.writing = sqlite3.connect(path, LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self.writing.execute("INSERT OR REPLACE INTO writer VALUES (1, ?, 0)", [token])
        self.token = token

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        if self.writing is None:
            raise IntegrityError("the store is not claimed")
        execute = self.writing.execute
        with self.writing:
            execute("BEGIN IMMEDIATE")
            if not execute("UPDATE writer SET commits = commits + 1 WHERE token = ?", [self.token]).rowcount:
                raise IntegrityError("the store is claimed by another writer")
            return [execute(self.insert_events_statement, _row(event)).lastrowid or 0 for event in stored_events]

    def close(self) -> None:
        if self.writing is not None:
            self.writing.close()


def _row(event: StoredEvent) -> tuple[str, int, str, bytes]:
    return cast(UUID, event.originator_id).hex, event.originator_version, event.topic, event.state


def happened_at(state: str) -> datetime:
    """Of an event's fields as `read_stored` gives them."""
    return datetime.fromisoformat(orjson.loads(state)["timestamp"]["_data_"])


def open_event_store(path: Path) -> EventStore:
    """Makes the file (mode 600) and its folder where they are missing. Raises EventStoreUnavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite gives its -wal and -shm files the same mode
        os.chmod(path, 0o600)
    except OSError as error:
        _raise_unavailable(error)
    env = {
        "PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "SQLITE_DBNAME": str(path),
        "SQLITE_LOCK_TIMEOUT": str(LOCK_TIMEOUT_S),
        "APPLICATION_RECORDER_TOPIC": "acs.storage.event_store:ClaimedRecorder",
    }
    try:
        return EventStore(env)
    except STORE_FAULTS as error:
        _raise_unavailable(error)


def _raise_unavailable(error: Exception) -> NoReturn:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    raise EventStoreUnavailable(f"The event store cannot be used: {reason}.") from error


class EventStoreUnavailable(Exception):
    """The disk is full, the file cannot be opened or written, or it is not a database. What was asked may not be done.

    After a failed save whether the events were stored is known only by reading the log again.
    """


class EventStoreConflict(Exception):
    """The aggregate has events that this process had not seen: a second writer is at work."""
