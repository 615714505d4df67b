from datetime import timedelta

import pytest
from history import History
from view_tables import caught_up

from acs.storage.event_store import open_event_store


@pytest.fixture
def store(tmp_path):
    store = open_event_store(tmp_path / "events.sqlite")
    store.claim()
    yield store
    store.close()


@pytest.fixture
def history(store):
    """150 Holds over a month's turn, stored."""
    history = History(running=10, step=timedelta(minutes=10))
    history.live(150)
    history.store(store)
    return history


@pytest.fixture
def views(history, store):
    """In memory, up to date with `history`."""
    views = caught_up(store)
    yield views
    views.close()
