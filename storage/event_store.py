"""Where events are kept: one SQLite file, written ahead and synchronised in full, that only its owner may read.

The recorder is the library's own and leaves `synchronous` at FULL: when a save has returned, a power cut cannot undo
it. One process writes; it opens the store when it starts, and importing this module opens nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, DomainEventProtocol
from eventsourcing.persistence import IntegrityError, PersistenceError, Recording
from eventsourcing.utils import Environment, EnvType

A = TypeVar("A", bound=Aggregate)

STORE_FAULTS = (PersistenceError, sqlite3.Error)  # opening a connection, the library lets SQLite's own errors through
PAGE_EVENTS = 1000  # read at once when the log is followed: bounds memory, not the answer
LOCK_TIMEOUT_S = 5  # how long a write waits for another connection's transaction


class EventStore(Application[UUID]):
    """The library's Application over one file. `save` and `read_log` raise the named errors below, never False."""

    name = "events"

    def save(self, *objects: Any, **kwargs: Any) -> list[Recording[UUID]]:
        """Appends the pending events of all the aggregates in one transaction; returns when they are on disk."""
        try:
            return super().save(*objects, **kwargs)
        except IntegrityError as error:
            raise EventStoreConflict("Another writer changed the same aggregate; nothing was stored.") from error
        except STORE_FAULTS as error:
            _raise_unavailable(error)

    def load(self, kind: type[A], id: UUID) -> A:
        """The aggregate as its stored events make it. It must exist: an unknown id is a bug of the caller."""
        try:
            aggregate: Aggregate = self.repository.get(id)
        except STORE_FAULTS as error:
            _raise_unavailable(error)
        if not isinstance(aggregate, kind):
            raise TypeError(f"{id} is a {type(aggregate).__name__}, not a {kind.__name__}")
        return aggregate

    def read_log(self, after: int) -> Iterator[tuple[int, DomainEventProtocol[UUID]]]:
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

    def construct_env(self, name: str, env: EnvType | None = None) -> Environment:
        return Environment(name, dict(env or {}))  # the library would let any variable of the process override ours


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
