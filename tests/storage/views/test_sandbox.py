"""Somebody's SQL can read the views, and nothing else can it do. Each attempt runs as `acs query` runs it."""

import subprocess
import sys

import duckdb
import pyarrow as pa
import pytest
from history import History
from view_tables import caught_up

from acs.storage.event_store import open_event_store
from acs.storage.views.sandbox import NotOneSelect, the_select

MEMORY_BYTES, RESULT_BYTES = 100_000_000, 10_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sandbox")
    store = open_event_store(folder / "events.sqlite")
    store.claim()
    history = History(running=5)
    history.live(50)
    history.store(store)
    caught_up(store, folder / "views.duckdb").close()
    store.close()
    (folder / "secret.csv").write_text("a\nsecret\n")
    return folder


@pytest.fixture
def run(folder, tmp_path):
    """(exit status, what it wrote, what it said), and that the copy and the folder are as they were."""

    def run(sql, memory_bytes=MEMORY_BYTES):
        file = folder / "views.duckdb"
        before = {path: path.read_bytes() for path in folder.iterdir()}
        with (tmp_path / "result").open("w+b") as result:
            ran = subprocess.run(
                [sys.executable, "-m", "acs.storage.views.sandbox", file, str(memory_bytes), str(RESULT_BYTES)],
                input=sql.encode(),
                stdout=result,
                stderr=subprocess.PIPE,
                cwd=tmp_path,
                timeout=60,
            )
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == ["result"]
        return ran.returncode, tmp_path / "result", ran.stderr.decode()

    return run


def rows_of(result):
    with result.open("rb") as file:
        return pa.ipc.open_stream(file).read_all().to_pylist()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n FROM holds",
        "select count(*) n from holds;",
        "FROM holds SELECT count(*) AS n",
        "WITH placed AS (FROM holds) SELECT count(*) AS n FROM placed -- and a comment; or two",
    ],
)
def test_a_select_gives_its_rows(run, sql):
    status, result, said = run(sql)
    assert (status, said, rows_of(result)) == (0, "", [{"n": 50}])


@pytest.mark.parametrize("sql", ["SHOW TABLES", "DESCRIBE holds", "SUMMARIZE holds", "VALUES (1)", "FROM requests"])
def test_what_helps_to_find_ones_way_is_a_select_too(run, sql):
    status, result, _ = run(sql)
    assert status == 0
    assert rows_of(result)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO accounts FROM accounts",
        "UPDATE ledgers SET charged_tokens = 0",
        "DELETE FROM ended_holds",
        "CREATE TABLE mine (a INT)",
        "CREATE TEMP TABLE mine (a INT)",
        "DROP TABLE accounts",
        "COPY accounts TO 'accounts.csv'",
        "COPY (FROM accounts) TO 'accounts.parquet' (FORMAT parquet)",
        "COPY accounts FROM 'secret.csv'",
        "EXPORT DATABASE 'here'",
        "ATTACH 'other.duckdb'",
        "DETACH views",
        "USE memory",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '100GB'",
        "RESET memory_limit",
        "PRAGMA memory_limit = '100GB'",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "CHECKPOINT",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE accounts",
        "",
        ";",
        "-- nothing",
    ],
)
def test_whatever_is_not_one_select_is_refused(sql):
    with pytest.raises(NotOneSelect, match="SELECT is taken"):
        the_select(duckdb.connect(), sql)


def test_a_refusal_is_one_sentence_and_exit_status_1(run):
    status, result, said = run("DROP TABLE accounts")
    assert (status, said, result.stat().st_size) == (1, "Only a SELECT is taken; this is DROP.\n", 0)


def test_a_checkpoint_that_calls_itself_a_select_changes_nothing(run):
    assert run("FROM checkpoint()")[0] == 0


@pytest.mark.parametrize(
    "sql",
    [
        "FROM '{folder}/secret.csv'",
        "FROM read_csv('{folder}/secret.csv')",
        "FROM read_text('{folder}/secret.csv')",
        "FROM read_blob('/etc/passwd')",
        "FROM read_json('{folder}/secret.csv')",
        "FROM read_parquet('{folder}/*.parquet')",
        "FROM glob('{folder}/*')",
        "FROM read_duckdb('{folder}/views.duckdb')",
        "FROM sniff_csv('{folder}/secret.csv')",
        "FROM query('FROM read_text(''{folder}/secret.csv'')')",
        "FROM 'https://example.org/x.parquet'",
        "FROM read_csv('https://example.org/x.csv')",
        "FROM sqlite_scan('{folder}/events.sqlite', 'stored_events')",
        "SELECT getenv('HOME')",
        "FROM query('DROP TABLE accounts')",
        "FROM force_checkpoint()",
        "SELECT set_config('memory_limit', '100GB')",
    ],
)
def test_a_select_reaches_no_file_and_no_network_and_changes_nothing(run, folder, sql):
    status, result, said = run(sql.format(folder=folder))
    assert status == 1, rows_of(result)
    assert "secret\n" not in said
    assert said.count("\n") == 1


def test_its_settings_are_locked_and_the_process_has_no_variables_to_tell(run):
    status, result, _ = run(
        "SELECT name, value FROM duckdb_settings() "
        "WHERE name IN ('enable_external_access', 'lock_configuration', 'temp_directory')"
    )
    assert status == 0
    assert {row["name"]: row["value"] for row in rows_of(result)} == {
        "enable_external_access": "false",
        "lock_configuration": "true",
        "temp_directory": "",
    }


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(a) FROM range(1_000_000_000) AS t(a)",
        "SELECT count(*) FROM (SELECT DISTINCT hash(a) FROM range(1_000_000_000) AS t(a))",
        "SELECT string_agg(repeat('x', 1000), '') FROM range(10_000_000)",
        "SELECT repeat('x', 4_000_000_000)",
        "SELECT a FROM range(1_000_000_000) AS t(a) ORDER BY hash(a)",
    ],
)
def test_what_takes_too_much_memory_is_stopped(run, sql):
    status, _, said = run(sql)
    assert status == 1
    assert said == f"The query needs more memory than {MEMORY_BYTES:,} bytes.\n"


def test_what_gives_too_much_is_stopped(run):
    status, result, said = run("SELECT a, a::VARCHAR AS b FROM range(1_000_000_000) AS t(a)")
    assert (status, said) == (1, "The result is larger than allowed; ask for fewer rows or columns.\n")
    assert result.stat().st_size <= RESULT_BYTES


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT nothing FROM holds", 'Referenced column "nothing" not found'),
        ("FROM hold", "Table with name hold does not exist"),
        ("SELEC 1", "syntax error at or near"),
        ("SELECT 1 / 'a'", "Could not convert string 'a'"),
        ("\x00", "syntax error"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_one_sentence(run, sql, sentence):
    status, _, said = run(sql)
    assert status == 1
    assert sentence in said
    assert said.count("\n") == 1
    assert "Error:" not in said
