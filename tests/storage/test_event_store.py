import os
import sqlite3
import stat

import pytest

from acs.events.account import Account
from acs.storage import event_store
from acs.storage.event_store import EventStoreConflict, EventStoreUnavailable, open_event_store


def limit_pages(store, pages):
    """SQLite's own way of running out of room."""
    store.recorder.writing.execute(f"PRAGMA max_page_count = {pages}")


def fill(store):
    for _ in range(1000):
        store.save(account("x" * 64))


def account(name="Ada"):
    return Account.create(name=name, email="ada@lab.org")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "events.sqlite"


@pytest.fixture
def store(path):
    store = open_event_store(path)
    store.claim()
    yield store
    store.close()


def test_the_files_of_the_store_are_for_their_owner_only(store, path):
    store.save(account())
    files = list(path.parent.iterdir())
    assert len(files) == 3  # the write-ahead log and its index beside it
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_store_that_others_could_read_is_closed_to_them_when_it_is_opened(path):
    path.parent.mkdir()
    path.touch(mode=0o644)
    open_event_store(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_store_is_written_ahead_and_synchronised_in_full(store):
    with store.factory.datastore.transaction(commit=False) as cursor:
        cursor.execute("PRAGMA journal_mode")
        assert cursor.fetchone()[0] == "wal"
        cursor.execute("PRAGMA synchronous")
        assert cursor.fetchone()[0] == 2  # FULL


def test_the_log_is_read_in_order_across_pages_and_from_any_position(store, monkeypatch):
    monkeypatch.setattr(event_store, "PAGE_EVENTS", 2)
    for name in "abcde":
        store.save(account(name))
    assert [(position, event.name) for position, event in store.read_log(after=0)] == list(enumerate("abcde", start=1))
    assert [event.name for _, event in store.read_log(after=4)] == ["e"]
    assert list(store.read_log(after=5)) == []


def test_what_was_saved_is_there_when_the_store_is_opened_again(store, path):
    store.save(account())
    again = open_event_store(path)
    again.claim()
    assert [event.name for _, event in again.read_log(after=0)] == ["Ada"]
    again.close()


def test_all_aggregates_of_a_save_are_stored_or_none(store):
    ada = account()
    store.save(ada)
    stale = store.load(Account, ada.id)
    ada.suspend()
    store.save(ada)
    stale.suspend()
    with pytest.raises(EventStoreConflict):
        store.save(account("Bob"), stale)
    assert len(list(store.read_log(after=0))) == 2


def test_a_full_disk_is_a_named_error_and_the_store_works_again_when_there_is_room(store):
    limit_pages(store, 8)
    with pytest.raises(EventStoreUnavailable, match="full"):
        fill(store)
    stored = len(list(store.read_log(after=0)))
    limit_pages(store, 1_000_000)
    store.save(account())
    assert len(list(store.read_log(after=0))) == stored + 1


def test_what_is_not_a_database_is_a_named_error(path):
    path.parent.mkdir()
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(EventStoreUnavailable):
        open_event_store(path)


def test_a_folder_that_cannot_be_made_is_a_named_error_without_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EventStoreUnavailable) as raised:
        open_event_store(tmp_path / "file" / "events.sqlite")
    assert str(tmp_path) not in str(raised.value)


def test_variables_of_the_environment_do_not_move_the_store(path, monkeypatch):
    monkeypatch.setitem(os.environ, "PERSISTENCE_MODULE", "eventsourcing.popo")
    monkeypatch.setitem(os.environ, "EVENTS_SQLITE_DBNAME", ":memory:")
    store = open_event_store(path)
    store.claim()
    store.save(account())
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM stored_events").fetchone() == (1,)


def test_a_writer_whose_claim_another_has_taken_commits_nothing_more_not_even_about_other_aggregates(store, path):
    store.save(account())
    second = open_event_store(path)
    second.claim()
    with pytest.raises(EventStoreConflict):
        store.save(account("Bob"))
    second.save(account("Eve"))
    assert [event.name for _, event in second.read_log(0)] == ["Ada", "Eve"]
    second.close()


def test_a_commit_is_synchronised_in_full(store):
    assert store.recorder.writing.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store.recorder.writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_reader_claims_nothing_and_can_write_nothing(store, path):
    reader = open_event_store(path)
    with pytest.raises(EventStoreConflict):
        reader.save(account())
    store.save(account())
    assert reader.head() == 1
    reader.close()
