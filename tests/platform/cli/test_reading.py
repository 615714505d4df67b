"""`acs usage`, `events`, `query`, `export` and `verify` on a store without a server, and beside one."""

import asyncio
import csv
import io
import json
import os
import threading
from datetime import timedelta
from functools import partial

import duckdb
import pytest
from history import History
from view_tables import caught_up, tables

from acs.events.ids import ACCOUNT, KEY, show
from acs.platform import door
from acs.platform.cli import events as events_command
from acs.platform.cli.main import main
from acs.platform.views.door import answer
from acs.platform.views.service import ViewsService
from acs.storage.event_store import open_event_store
from acs.storage.views.database import ViewsDatabase
from acs.storage.views.schema import TABLES


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("ACS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def store(data):
    store = open_event_store(data / "events.sqlite")
    store.claim()
    yield store
    store.close()


@pytest.fixture
def history(store):
    history = History(running=5, step=timedelta(minutes=20))
    history.live(60)
    history.store(store)
    return history


@pytest.fixture
def ada(history):
    return show(ACCOUNT, history.accounts[0].id)


@pytest.fixture
def server(data, store, history, monkeypatch):
    """The views at their real door, in a thread of this process, and the lock that says that a server runs."""
    monkeypatch.setattr("acs.platform.cli.client.server_runs", lambda settings: True)
    monkeypatch.setattr("acs.platform.cli.usage.server_runs", lambda settings: True)
    monkeypatch.setattr("acs.platform.cli.private_views.server_runs", lambda settings: True)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start():
        service = ViewsService(store, ViewsDatabase(store, data / "views.duckdb"), lambda fault: None)
        return service, await door.serve(door.listen(data / "views.sock"), partial(answer, service))

    service, listening = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield data
    loop.call_soon_threadsafe(listening.close)
    service.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(params=["without a server", "with a server"])
def either(request, history):
    """A data folder with events, with and without a server."""
    return request.getfixturevalue("server") if request.param == "with a server" else None


@pytest.fixture
def acs(capsys):
    """Runs a command that must succeed; what it printed."""

    def run(*words: str) -> str:
        assert main(words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def files_of(folder):
    """But SQLite's notes on who reads."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


# -- usage


def test_usage_of_an_account_is_the_object_of_the_api(either, ada, history, acs):
    usage = json.loads(acs("usage", "--account", ada, "--month", "2026-10", "--json"))
    ledger = next(ledger for ledger in history.ledgers if ledger.book.account_id == ada)
    assert (usage["object"], usage["month"]) == ("usage", "2026-10")
    assert usage["charged_tokens"] == ledger.book.account.charged > 0


def test_usage_as_a_table_says_unlimited_and_has_keys_and_models(either, ada, acs):
    account, keys, models = acs("usage", "--account", ada, "--month", "2026-10").split("\n\n")
    assert account.splitlines()[0].split()[:3] == ["MONTH", "BUDGET", "TOKENS"]
    assert "unlimited" in account
    assert "laptop" in keys
    assert models.splitlines()[1].startswith("large ")


def test_usage_of_all_accounts_has_a_line_each(either, history, acs):
    rows = json.loads(acs("usage", "--month", "2026-10", "--json"))
    assert [row["account_id"] for row in rows] == [show(ACCOUNT, account.id) for account in history.accounts]
    assert len(acs("usage").splitlines()) == 1 + len(history.accounts)


def test_usage_at_a_time_is_what_the_events_were_then(either, history, ada, acs, store):
    at = history.now - timedelta(hours=10)
    then = [
        event
        for _, event in store.read_log(0)
        if event.timestamp <= at and event.originator_id in ledgers_of(history, ada)
    ]
    charged = sum(
        getattr(event, "prompt_tokens", 0) + event.completion_tokens for event in then if name(event) == "HoldSettled"
    )
    usage = json.loads(acs("usage", "--account", ada, "--month", "2026-10", "--at", at.isoformat(), "--json"))
    assert usage["charged_tokens"] == charged
    now = json.loads(acs("usage", "--account", ada, "--month", "2026-10", "--json"))
    assert 0 < charged < now["charged_tokens"]


def ledgers_of(history, account):
    return {ledger.id for ledger in history.ledgers if ledger.book.account_id == account}


def name(event):
    return type(event).__name__


def test_an_account_that_was_not_there_then_is_one_sentence(history, ada, capsys):
    assert main(["usage", "--account", ada, "--at", "2020-01-01"]) == 1
    assert capsys.readouterr().err == f"acs: There is no account {ada!r} then.\n"


# -- events


def test_events_are_json_lines_of_all_that_happened_without_a_secret(either, history, store, acs):
    printed = acs("events")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["position"] for line in lines] == list(range(1, store.head() + 1))
    assert all(list(line)[:3] == ["position", "at", "kind"] for line in lines)
    assert "digest" not in printed
    assert not any(key.digest in printed for keys in history.keys.values() for key in keys)


def test_events_of_an_account_are_those_of_its_keys_and_ledgers_too(history, ada, acs):
    lines = [json.loads(line) for line in acs("events", "--account", ada).splitlines()]
    kinds = {line["kind"] for line in lines}
    assert {"Account.Created", "ApiKey.Created", "Ledger.Created", "Ledger.HoldPlaced", "Ledger.HoldSettled"} <= kinds
    assert {line["account_id"] for line in lines} == {ada}
    keys = {show(KEY, key.id) for key in history.keys[history.accounts[0].id]}
    assert {line["key_id"] for line in lines if line["kind"] == "ApiKey.Created"} == keys


@pytest.mark.parametrize("kind", ["HoldExpired", "Ledger.HoldExpired"])
def test_events_of_a_kind(history, store, acs, kind):
    lines = [json.loads(line) for line in acs("events", "--kind", kind).splitlines()]
    assert {line["kind"] for line in lines} == {"Ledger.HoldExpired"}
    assert len(lines) == sum(name(event) == "HoldExpired" for _, event in store.read_log(0))


def test_events_between_two_times(history, store, acs):
    since, until = history.now - timedelta(hours=10), history.now - timedelta(hours=5)
    lines = acs("events", "--since", since.isoformat(), "--until", until.isoformat()).splitlines()
    wanted = [position for position, event in store.read_log(0) if since <= event.timestamp < until]
    assert [json.loads(line)["position"] for line in lines] == wanted != []


def test_following_shows_what_happens_next_and_ends_with_ctrl_c(history, store, capsys, monkeypatch):
    def something_happens(pause):
        if not history.events:
            history.place(history.accounts[0], history.keys[history.accounts[0].id][0], history.quote())
            history.store(store)
            history.events.append(None)
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(events_command.time, "sleep", something_happens)
    before = store.head()
    assert main(["events", "--follow", "--kind", "HoldPlaced"]) == 130
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["position"] > before


# -- query


def test_a_query_is_a_table_csv_json_or_parquet(either, tmp_path, acs):
    sql = "SELECT status, count(*) AS n, sum(held_tokens) AS tokens FROM holds GROUP BY ALL ORDER BY n"
    rows = json.loads(acs("query", sql, "--json"))
    assert sum(row["n"] for row in rows) == 60
    assert all(type(row["tokens"]) is int for row in rows)
    by_csv = list(csv.DictReader(io.StringIO(acs("query", sql, "--csv"))))
    assert by_csv == [{column: str(value) for column, value in row.items()} for row in rows]
    heading, *lines = acs("query", sql).splitlines()
    assert heading.split() == ["status", "n", "tokens"]
    assert [line.split() for line in lines] == [[str(value) for value in row.values()] for row in rows]
    assert acs("query", sql, "--parquet", str(tmp_path / "x.parquet")) == ""
    assert duckdb.sql(f"SELECT status, n FROM '{tmp_path}/x.parquet'").fetchall() == [
        (row["status"], row["n"]) for row in rows
    ]


def test_a_query_without_rows_still_has_its_columns(history, acs):
    assert acs("query", "SELECT hold_id, model FROM holds WHERE false") == "hold_id  model\n"
    assert json.loads(acs("query", "FROM holds WHERE false", "--json")) == []
    assert acs("query", "SELECT hold_id FROM holds WHERE false", "--csv") == "hold_id\n"


def test_a_query_from_standard_input(history, acs, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 1 AS one"))
    assert acs("query", "-") == "one\n1\n"


def test_values_of_every_type_are_printed(history, acs):
    values = (
        "NULL AS a, 1.5::DECIMAL(9, 2) AS b, DATE '2026-11-03' AS c, [1, 2] AS d, {'x': 1} AS e, '\\x00'::BLOB AS f"
    )
    assert json.loads(acs("query", f"SELECT {values}", "--json")) == [
        {"a": None, "b": 1.5, "c": "2026-11-03", "d": [1, 2], "e": {"x": 1}, "f": "00"}
    ]


def test_a_query_that_is_not_a_select_is_one_sentence(history, data, capsys):
    before = files_of(data)
    assert main(["query", "DELETE FROM holds"]) == 1
    assert capsys.readouterr().err == "acs: Only a SELECT is taken; this is DELETE.\n"
    assert files_of(data) == before


def test_an_endless_query_is_stopped(history, capsys, monkeypatch):
    monkeypatch.setenv("ACS_LIMIT_QUERY_S", "3")
    endless = "WITH RECURSIVE t(a) AS (SELECT 1 UNION ALL SELECT a FROM t) SELECT count(*) FROM t"
    assert main(["query", endless]) == 1
    assert capsys.readouterr().err == "acs: The query was stopped after 3 s (ACS_LIMIT_QUERY_S).\n"


def test_a_query_that_needs_too_much_memory_is_one_sentence(history, capsys, monkeypatch):
    monkeypatch.setenv("ACS_LIMIT_QUERY_MEMORY_BYTES", "50000000")
    assert main(["query", "SELECT list(a) FROM range(1_000_000_000) AS t(a)"]) == 1
    assert "more memory than 50,000,000 bytes" in capsys.readouterr().err


# -- export


def test_an_export_opens_in_any_duckdb(either, history, store, tmp_path, acs):
    folder = tmp_path / "history"
    assert "holds.parquet" in acs("export", str(folder))
    assert sorted(path.stem for path in folder.iterdir()) == sorted(["events", *TABLES])
    expected = tables(caught_up(store))
    for table in TABLES:
        result = duckdb.sql(f"FROM '{folder}/{table}.parquet'")
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.fetchall()]
        assert rows == expected[table], table
    events = duckdb.sql(f"SELECT position, kind, account_id, data FROM '{folder}/events.parquet'").fetchall()
    assert [event[0] for event in events] == list(range(1, store.head() + 1))
    placed = json.loads(next(data for _, kind, _, data in events if kind == "Ledger.HoldPlaced"))
    assert placed["owner"] == "ingress-1"
    assert not any("digest" in data for *_, data in events)


def test_an_export_goes_to_a_folder_that_is_not_there_yet(history, tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 1
    assert "already" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "no" / "where")]) == 1
    assert "cannot be written" in capsys.readouterr().err


# -- verify


def test_verify_finds_no_difference(either, store, capsys):
    assert main(["verify"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{store.head()} events replayed: no difference.\n")


def test_verify_finds_a_changed_row(history, store, data, capsys):
    views = caught_up(store, data / "views.duckdb")
    with views.cursor() as cursor:
        cursor.execute("UPDATE ledgers SET charged_tokens = charged_tokens + 1 WHERE month = '2026-10'")
    views.close()
    assert main(["verify", "--json"]) == 1
    out, _ = capsys.readouterr()
    found = json.loads(out)
    assert {(row["table"], row["column"]) for row in found} == {("ledgers", "charged_tokens")}
    assert all(row["in_views"] == row["by_events"] + 1 for row in found)


def test_verify_finds_an_event_that_cannot_have_been(history, store, capsys):
    with store.recorder.datastore.transaction(commit=True) as cursor:
        placed = "SELECT min(rowid) FROM stored_events WHERE topic LIKE '%HoldPlaced'"
        cursor.execute(f"DELETE FROM stored_events WHERE rowid = ({placed})")
    assert main(["verify"]) == 1
    assert "a Hold has ended that was not open" in capsys.readouterr().err


# -- without anything


@pytest.mark.parametrize("words", [["usage"], ["events"], ["query", "SELECT 1"], ["export", "x"], ["verify"]])
def test_without_events_one_sentence_says_where_to_look(data, capsys, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == (2 if words == ["verify"] else 1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("acs: There are no events in")
    assert "ACS_DATA" in err
    assert list(tmp_path.iterdir()) == []


def test_reading_without_a_server_leaves_its_files_as_they_were(history, store, data, acs, tmp_path):
    caught_up(store, data / "views.duckdb").close()
    store.close()
    before = files_of(data)
    for words in (["usage"], ["events"], ["query", "FROM holds"], ["verify"], ["export", str(tmp_path / "x")]):
        acs(*words)
    assert files_of(data) == before


def test_nothing_is_left_in_the_temporary_folder(either, acs, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for words in (["usage"], ["query", "FROM holds"], ["verify"]):
        acs(*words)
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize("word", ["--month", "--at"])
def test_what_is_not_a_time_or_a_month_is_refused(word, capsys):
    with pytest.raises(SystemExit):
        main(["usage", word, "soon"])
    assert "'soon' is not a" in capsys.readouterr().err
