"""The views for one command: a copy of its own in a temporary folder, whether a server runs or not."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import duckdb

from acs.platform.cli.client import ask_views, server_runs
from acs.platform.cli.errors import CommandFailed
from acs.platform.settings import Settings
from acs.storage.event_store import EventStore, EventStoreUnavailable, open_event_store
from acs.storage.views.database import ViewsDatabase


@dataclass(frozen=True, slots=True)
class PrivateViews:
    store: EventStore  # the server's own: to be read
    views: ViewsDatabase  # nobody else's, with every event that was stored when they were asked for
    file: Path


@contextlib.contextmanager
def events(settings: Settings) -> Iterator[EventStore]:
    """The store, for reading. Raises CommandFailed."""
    if not settings.event_store.exists():
        raise CommandFailed(f"There are no events in {settings.data}: set ACS_DATA to the data folder of a server.")
    try:
        store = open_event_store(settings.event_store)
    except EventStoreUnavailable as error:
        raise CommandFailed(str(error)) from None
    try:
        yield store
    except EventStoreUnavailable as error:
        raise CommandFailed(str(error)) from None
    finally:
        store.close()


@contextlib.contextmanager
def private_views(settings: Settings, until: datetime | None = None) -> Iterator[PrivateViews]:
    """As they are now; with `until`, as they were then, from the events alone. Raises CommandFailed, and of it
    EventsDoNotAddUp.
    """
    with events(settings) as store, tempfile.TemporaryDirectory(prefix="acs-views-") as folder:
        file = Path(folder) / "views.duckdb"
        if until is None:
            _copy(settings, file)
        try:
            views = ViewsDatabase(store, file)
            head = store.head()
            while views.position < head and views.catch_up(until=until):
                pass
        except duckdb.Error as error:
            raise EventsDoNotAddUp(f"The views cannot be made from the events: {str(error).splitlines()[0]}") from None
        try:
            yield PrivateViews(store, views, file)
        finally:
            views.close()


class EventsDoNotAddUp(CommandFailed):
    """The store has events that nobody can have made."""


def _copy(settings: Settings, file: Path) -> None:
    """From the server that has them open, or, when none runs, what it left; nothing, when it left none."""
    if server_runs(settings):
        ask_views("snapshot", path=str(file))
        return
    for suffix in ("", ".wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{settings.views}{suffix}", f"{file}{suffix}")
