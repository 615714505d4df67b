"""The views among their askers, with a real store and a real projection."""

import asyncio
import os
import stat
from datetime import timedelta

import pytest
from history import History

from acs.events.ids import ACCOUNT, show
from acs.platform.views import service as service_module
from acs.platform.views.contract import NoSuchAccount, ViewsUnavailable
from acs.platform.views.door import answer
from acs.platform.views.service import ViewsService
from acs.storage.event_store import open_event_store
from acs.storage.views.database import ViewsDatabase


@pytest.fixture
def store(tmp_path):
    store = open_event_store(tmp_path / "events.sqlite")
    store.claim()
    yield store
    store.close()


@pytest.fixture
def history():
    history = History(running=5, step=timedelta(minutes=1))
    history.account()
    return history


@pytest.fixture
def died():
    return []


@pytest.fixture
async def service(store, tmp_path, died):
    service = ViewsService(store, ViewsDatabase(store, tmp_path / "views.duckdb"), died.append)
    yield service
    await asyncio.to_thread(service.close)


def halted(service, monkeypatch):
    """A projection that gets nowhere."""
    monkeypatch.setattr(service._views, "catch_up", lambda: 0)


async def test_usage_has_everything_that_was_stored_before_it_was_asked_for(service, history, store):
    account = history.accounts[0]
    for _ in range(5):
        history.live(3)
        history.store(store)
        usage = await service.usage(show(ACCOUNT, account.id), "2026-10")
        (ledger,) = history.ledgers
        assert (usage["held_tokens"], usage["charged_tokens"]) == (
            ledger.book.account.held,
            ledger.book.account.charged,
        )


async def test_who_waits_for_the_views_wakes_them(service, history, store, monkeypatch):
    """The projection itself looks only now and then."""
    monkeypatch.setattr(service_module, "GATHER_S", 1000)
    await service.reach(0)
    await asyncio.sleep(0)
    history.store(store)
    await service.reach(store.head())


async def test_views_that_do_not_get_there_in_time_say_how_far_behind_they_are(service, history, store, monkeypatch):
    halted(service, monkeypatch)
    history.store(store)
    with pytest.raises(ViewsUnavailable, match="3 events behind"):
        await service.reach(3, patience_s=0.01)


async def test_lag_counts_events_and_the_seconds_since_there_were_none(service, history, store, monkeypatch):
    history.store(store)
    await service.reach(3)
    lag = await service.lag()
    assert (lag.position, lag.events, lag.seconds) == (3, 0, 0.0)
    halted(service, monkeypatch)
    history.live(1)
    stored = history.store(store)
    lag = await service.lag()
    assert (lag.position, lag.events) == (3, stored)
    assert lag.seconds > 0


async def test_a_projection_that_fails_ends_the_process_and_not_only_itself(service, died, store, history, monkeypatch):
    def fail():
        raise RuntimeError("disk")

    monkeypatch.setattr(service._views, "catch_up", fail)
    service._wanted.set()
    await asyncio.to_thread(service._thread.join)
    assert [str(fault) for fault in died] == ["disk"]


async def test_a_snapshot_is_a_file_of_its_owners_with_all_that_was_stored(service, history, store, tmp_path):
    history.live(10)
    history.store(store)
    path = tmp_path / "snapshot.duckdb"
    assert await service.snapshot(path) == store.head()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    copy = ViewsDatabase(store, path)
    assert copy.position == store.head()
    assert copy.read("SELECT count(*) AS n FROM holds") == [{"n": 10}]


async def test_a_snapshot_replaces_no_file(service, tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(FileExistsError):
        await service.snapshot(tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "precious"


async def test_an_account_that_is_not_there_is_a_named_error(service):
    with pytest.raises(NoSuchAccount, match="acct_nobody"):
        await service.usage("acct_nobody", "2026-10")


async def test_the_operators_door_answers_in_json_and_never_raises(service, history, store, tmp_path):
    history.live(5)
    head = history.store(store)
    account = show(ACCOUNT, history.accounts[0].id)
    usage = await answer(service, b'{"do": "usage", "account": "%s", "month": "2026-10"}' % account.encode())
    assert usage["ok"]["charged_tokens"] == history.ledgers[0].book.account.charged
    everyone = await answer(service, b'{"do": "usage", "month": "2026-10"}')
    assert [row["account_id"] for row in everyone["ok"]] == [account]
    snapshot = b'{"do": "snapshot", "path": "%s"}' % os.fsencode(tmp_path / "copy")
    assert await answer(service, snapshot) == {"ok": head}
    assert await answer(service, snapshot) == {"error": "The copy cannot be written: File exists."}
    assert await answer(service, b'{"do": "lag"}') == {"ok": {"position": head, "events": 0, "seconds": 0.0}}
    assert "no account" in (await answer(service, b'{"do": "usage", "account": "x", "month": "2026-10"}'))["error"]
    for line in (b"", b"{", b"[]", b'{"do": "drop"}', b'{"do": "usage", "month": 5}'):
        assert "not understood" in (await answer(service, line))["error"]
    assert "failed" in (await answer(service, b'{"do": "usage", "account": "x", "month": "soon"}'))["error"]
