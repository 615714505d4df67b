"""All that the ledger remembers, and how it comes to: from the last checkpoint, then from the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from acs.events.harvest import Harvest
from acs.events.hold import Price
from acs.events.idempotency import IdempotentRequest
from acs.events.job import Job
from acs.events.ledger import Ledger
from acs.events.loom import Loom
from acs.platform.ledger import checkpoint
from acs.platform.ledger.books import Books
from acs.platform.ledger.harvests import Harvests
from acs.platform.ledger.jobs import Jobs
from acs.platform.ledger.key_table import KeyTable
from acs.platform.ledger.looms import Looms
from acs.platform.ledger.repeats import Repeats
from acs.storage.event_store import Event, EventStore

CHECKPOINT_EVENTS = 100_000  # about two seconds of a start

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Memory:
    store: EventStore
    checkpoint: Path
    table: KeyTable
    books: Books
    repeats: Repeats
    jobs: Jobs
    harvests: Harvests
    looms: Looms
    replayed: int = field(default=0)  # events read from the log at the start

    def storing(self, events: Sequence[Event]) -> Callable[[], None]:
        """What stores a batch, to be run on the writer's thread. To be called when the books know these events and none
        after them. Every `CHECKPOINT_EVENTS` events it leaves a checkpoint too.
        """
        self.replayed += len(events)
        books = None
        if self.replayed >= CHECKPOINT_EVENTS:
            self.replayed = 0
            books = self.encoded()

        def store() -> None:
            positions = self.store.append(events)
            if books is not None:
                self._write_checkpoint(positions[-1], books)

        return store

    def encoded(self) -> bytes:
        """For a checkpoint: all but the table. To be called between two commands."""
        return checkpoint.encode_books(self.books, self.repeats, self.jobs, self.harvests, self.looms)

    def _write_checkpoint(self, position: int, books: bytes) -> None:
        try:
            checkpoint.write(self.checkpoint, position, self.table, books)
        except OSError as error:  # the events are stored; the next start takes longer
            _log.warning("The ledger's checkpoint cannot be written: %s", error.strerror)


def recall(store: EventStore, path: Path, prices: Mapping[str, Price]) -> Memory:
    """`path`: of the checkpoint. Raises EventStoreUnavailable."""
    table = KeyTable()
    books = Books(table, prices)
    repeats, jobs, harvests, looms = Repeats(), Jobs(), Harvests(), Looms()
    memory = Memory(store, path, table, books, repeats, jobs, harvests, looms)
    after = checkpoint.read(path, store.head(), table, books, repeats, jobs, harvests, looms)
    for position, event in store.read_log(after):
        if isinstance(event, Ledger.Event):
            books.apply(event)
        elif isinstance(event, IdempotentRequest.Event):
            repeats.apply(event)
        elif isinstance(event, Job.Event):
            jobs.apply(event)
        elif isinstance(event, Harvest.Event):
            harvests.apply(event)
        elif isinstance(event, Loom.Event):
            looms.apply(event)
        else:
            table.apply(position, event)
        memory.replayed += 1
    return memory
