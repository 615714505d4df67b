"""The tables say what the events say, each event once, whatever the batches were and whenever the process died."""

import subprocess
import sys

import pytest
from history import START, History
from view_tables import caught_up, tables

from acs.events.hold import Quote
from acs.events.ids import ACCOUNT, KEY, show
from acs.storage.event_store import open_event_store
from acs.storage.views import database
from acs.storage.views.database import ViewsDatabase, ViewsInUse
from acs.storage.views.schema import SCHEMA


def test_every_hold_is_a_row_with_how_it_ended(history, views):
    rows = views.read("SELECT status, count(*) AS n FROM holds GROUP BY ALL ORDER BY n")
    assert {row["status"] for row in rows} == {"open", "settled", "released", "expired"}
    assert sum(row["n"] for row in rows) == 150
    for ledger in history.ledgers:
        for hold_id, hold in ledger.book.holds.items():
            (row,) = views.read("FROM holds WHERE hold_id = $id", {"id": hold_id})
            assert (row["status"], row["held_tokens"], row["resolved_at"]) == ("open", hold.tokens, None)


def test_the_books_are_those_of_the_aggregates(history, views):
    rows = {row["ledger_id"]: row for row in views.read("FROM ledgers")}
    assert len(rows) == len(history.ledgers) > len(history.accounts), "a month ended in between"
    for ledger in history.ledgers:
        book, row = ledger.book, rows[ledger.id.hex]
        assert (row["account_id"], row["month"]) == (book.account_id, book.month)
        assert (row["budget_tokens"], row["held_tokens"], row["charged_tokens"]) == (
            book.account.budget,
            book.account.held,
            book.account.charged,
        )
        of_keys = views.read(
            "FROM key_ledgers WHERE account_id = $account AND month = $month",
            {"account": book.account_id, "month": book.month},
        )
        assert {
            row["key_id"]: (row["budget_tokens"], row["held_tokens"], row["charged_tokens"]) for row in of_keys
        } == {key_id: (use.budget, use.held, use.charged) for key_id, use in book.keys.items()}


def test_accounts_and_keys_are_as_their_last_events_left_them(history, views):
    accounts = {row["account_id"]: row for row in views.read("FROM accounts")}
    keys = {row["key_id"]: row for row in views.read("FROM keys")}
    for account in history.accounts:
        row = accounts.pop(show(ACCOUNT, account.id))
        assert (row["name"], row["email"]) == (account.name, account.email)
        assert row["state"] == ("suspended" if account.suspended else "active")
        assert (row["budget_tokens"], row["spend_limit_micro_usd"]) == (
            account.budget_tokens,
            account.spend_limit_micro_usd,
        )
        for key in history.keys[account.id]:
            row = keys.pop(show(KEY, key.id))
            assert (row["name"], row["prefix"], row["budget_tokens"]) == (key.name, key.prefix, key.budget_tokens)
            assert row["state"] == ("disabled" if key.disabled else "active")
    assert (accounts, keys) == ({}, {})


def test_the_last_of_several_changes_in_one_batch_counts_and_unlimited_is_one_of_them(store):
    history = History()
    ada = history.account()
    for tokens in (5, None, 7, None):
        ada.set_budget(tokens)
    ada.suspend()
    ada.restore()
    (laptop, desk) = history.keys[ada.id]
    laptop.disable()
    laptop.enable()
    desk.disable()
    desk.revoke()
    history.keep(ada, laptop, desk)
    history.store(store)
    views = caught_up(store)
    assert views.read("SELECT state, budget_tokens FROM accounts") == [{"state": "active", "budget_tokens": None}]
    assert [row["state"] for row in views.read("SELECT state FROM keys ORDER BY created_at")] == ["active", "revoked"]


def test_every_charge_stands_in_daily_usage_on_the_day_its_hold_was_placed(views):
    of_charges = views.read(
        "SELECT placed_at::DATE AS day, account_id, key_id, model, count(*) AS requests, "
        "sum(charged_tokens) AS tokens, sum(charged_pico_usd) AS pico_usd FROM charges GROUP BY ALL ORDER BY ALL"
    )
    of_days = views.read(
        "SELECT day, account_id, key_id, model, requests, charged_tokens AS tokens, charged_pico_usd AS pico_usd "
        "FROM daily_usage WHERE requests > 0 ORDER BY ALL"
    )
    assert of_days == of_charges != []


def test_the_cost_of_a_charge_is_exact(store):
    history = History()
    ada = history.account()
    history.place(ada, history.keys[ada.id][0], Quote(7, 2, 5))
    (ledger,) = history.ledgers
    ((hold_id, _),) = ledger.book.holds.items()
    ledger.settle(hold_id, 7, 9, 200, history.now)
    history.keep(ledger)
    history.store(store)
    views = caught_up(store)
    (row,) = views.read("SELECT held_tokens, held_pico_usd, charged_tokens, charged_pico_usd FROM holds")
    assert row == {
        "held_tokens": 7 + 2 * 5,
        "held_pico_usd": 7 * 100_001 + 10 * 300_007,
        "charged_tokens": 7 + 9,
        "charged_pico_usd": 7 * 100_001 + 9 * 300_007,
    }
    (row,) = views.read("SELECT placed_at, resolved_at FROM holds")
    assert row["placed_at"] == (START + history.step).replace(tzinfo=None), "in UTC"


def test_each_late_settlement_is_a_row_and_changes_no_charge(history, store):
    views = caught_up(store)
    late = views.read("FROM late_settlements")
    noted = [event for _, event in store.read_log(0) if type(event).__name__ == "LateSettlementNoted"]
    assert len(late) == len(noted) > 0
    assert {row["resolved_as"] for row in late} == {"expired"}
    (stands,) = views.read("SELECT DISTINCT status FROM holds SEMI JOIN late_settlements USING (hold_id)")
    assert stands == {"status": "expired"}


@pytest.mark.parametrize("batch", [2, 61])
def test_the_batches_do_not_show_in_the_tables(history, store, views, batch):
    assert tables(caught_up(store, batch=batch)) == tables(views)


def test_deleted_and_made_again_the_tables_are_the_same_row_for_row(history, store, tmp_path):
    path = tmp_path / "views.duckdb"
    views = caught_up(store, path, batch=100)
    before = tables(views)
    views.close()
    path.unlink()
    assert tables(caught_up(store, path)) == before


def test_opened_again_the_views_go_on_from_their_position(history, store, tmp_path):
    path = tmp_path / "views.duckdb"
    views = ViewsDatabase(store, path)
    views.catch_up(100)
    views.close()
    again = ViewsDatabase(store, path)
    assert again.position == 100
    while again.catch_up():
        pass
    assert tables(again) == tables(caught_up(store))


def test_a_batch_that_cannot_be_folded_leaves_no_trace(history, store, views):
    before = tables(views)
    position, topic, ledger, state = store.read_stored(store.head() - 1, 1)[0]
    for bad in ("{}", state.replace('"hold_id":"hold_', '"hold_id":"hold_of_nobody_')):
        with pytest.raises(database.duckdb.Error):
            views.fold([(position + 1, topic, ledger, bad)])
    assert tables(views) == before
    assert views.position == store.head()


def test_a_reader_sees_one_state_while_batches_come(history, store):
    views = ViewsDatabase(store)
    views.catch_up(100)
    with views.reading() as read:
        before = read("SELECT count(*) AS n FROM holds")
        views.catch_up(100)
        assert read("SELECT count(*) AS n FROM holds") == before


def test_views_of_another_version_are_made_again(history, store, tmp_path, monkeypatch):
    path = tmp_path / "views.duckdb"
    caught_up(store, path).close()
    monkeypatch.setattr(database, "fingerprint", lambda: "another")
    assert ViewsDatabase(store, path).position == 0


def test_views_of_other_events_are_made_again(history, store, tmp_path):
    """A backup of the store was put in its place."""
    path = tmp_path / "views.duckdb"
    caught_up(store, path).close()
    other = open_event_store(tmp_path / "backup.sqlite")
    other.claim()
    history.events = [event for _, event in store.read_log(0)][:-1]
    history.store(other)
    assert ViewsDatabase(other, path).position == 0


@pytest.mark.parametrize("damage", [b"not a database", b""])
def test_damaged_views_are_made_again(history, store, tmp_path, damage):
    path = tmp_path / "views.duckdb"
    path.write_bytes(damage)
    assert tables(caught_up(store, path)) == tables(caught_up(store))


def test_views_that_another_process_has_open_are_left_alone(history, store, tmp_path):
    path = tmp_path / "views.duckdb"
    caught_up(store, path).close()
    program = f"""
import pathlib, sys
from acs.storage.views.database import ViewsDatabase
from acs.storage.event_store import open_event_store
folder = pathlib.Path({str(tmp_path)!r})
views = ViewsDatabase(open_event_store(folder / "events.sqlite"), folder / "views.duckdb")
print(flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ViewsInUse):
            ViewsDatabase(store, path)
        other.stdin.close()
    assert ViewsDatabase(store, path).position == store.head()


def test_a_copy_has_the_same_rows_while_the_original_goes_on(history, store, tmp_path):
    views = caught_up(store, tmp_path / "views.duckdb")
    position = views.copy_to(tmp_path / "copy.duckdb")
    before = tables(views)
    history.live(50)
    history.store(store)
    views.catch_up()
    copy = ViewsDatabase(store, tmp_path / "copy.duckdb")
    assert (copy.position, tables(copy)) == (position, before)


def test_what_the_schema_says_beside_a_table_or_column_is_its_comment(views):
    (table,) = views.read("SELECT comment FROM duckdb_tables() WHERE table_name = 'ledgers'")
    assert table["comment"] == "an account's book of one calendar month"
    said = {
        (row["table_name"], row["column_name"]): row["comment"]
        for row in views.read("SELECT table_name, column_name, comment FROM duckdb_columns() WHERE comment IS NOT NULL")
    }
    assert said["ledgers", "charged_pico_usd"] == "10⁻¹² dollars, exact"
    assert said["holds", "charged_tokens"] == "0 unless settled"
    lines = [line for line in SCHEMA.splitlines() if " -- " in line and line.startswith("    ")]
    assert len(said) == len(lines)


def test_no_table_has_a_digest_or_a_text(views):
    columns = {row["column_name"] for row in views.read("SELECT column_name FROM duckdb_columns() WHERE NOT internal")}
    assert not columns & {"digest", "secret", "prompt", "text", "answer"}
