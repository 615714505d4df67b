"""The `acs` command against the ledger's real door, which a thread serves in this process."""

import asyncio
import json
import threading

import pytest
from local_ledger import service_of

from acs.platform.cli.main import main
from acs.platform.clock import MonotonicClock
from acs.platform.ledger import admin
from acs.storage.event_store import open_event_store


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("ACS_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def server(data):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    store = open_event_store(data / "events.sqlite")

    async def start():
        return await admin.serve(admin.listen(data / "admin.sock"), service_of(store, 3.0, MonotonicClock()))

    async def stop():
        door.close()

    door = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield data
    asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    store.close()


@pytest.fixture
def acs(capsys):
    """Runs a command that must succeed; what it printed."""

    def run(*words: str) -> str:
        assert main(words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def test_create_prints_json_with_the_id_and_the_key_this_once(server, acs):
    account = json.loads(acs("account", "create", "--name", "Ada", "--email", "ada@lab.org"))
    assert list(account) == ["id"]
    key = json.loads(acs("key", "create", "--account", account["id"], "--name", "laptop"))
    assert list(key) == ["id", "key"]
    assert key["key"].startswith("sk-acs-")
    assert key["key"] not in acs("key", "list", "--account", account["id"], "--json")


def test_lists_are_tables_and_json_on_request(server, acs):
    account = json.loads(acs("account", "create", "--name", "Ada L.", "--email", "ada@lab.org"))["id"]
    heading, row = acs("account", "list").splitlines()
    assert heading.split() == ["ID", "NAME", "EMAIL", "STATE", "CREATED", "AT"]
    assert row.startswith(f"{account}  Ada L.  ada@lab.org  active  ")
    (listed,) = json.loads(acs("account", "list", "--json"))
    assert (listed["id"], listed["name"], listed["state"]) == (account, "Ada L.", "active")


def test_each_change_shows_the_new_state(server, acs):
    account = json.loads(acs("account", "create", "--name", "Ada", "--email", "ada@lab.org"))["id"]
    key = json.loads(acs("key", "create", "--account", account, "--name", "laptop"))["id"]
    assert "desk" in acs("key", "rename", key, "--name", "desk")
    for verb, state in {"disable": "disabled", "enable": "active", "revoke": "revoked"}.items():
        assert state in acs("key", verb, key)
    assert "suspended" in acs("account", "suspend", account)
    (row,) = json.loads(acs("account", "restore", account, "--json"))
    assert row["state"] == "active"


def test_a_refusal_is_one_sentence_on_stderr_and_exit_1(server, capsys):
    assert main(["key", "revoke", "key_none"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "acs: There is no key 'key_none'.\n")


@pytest.mark.parametrize("stale_socket", [False, True])
def test_without_a_server_one_sentence_says_how_to_start_it(data, capsys, stale_socket):
    if stale_socket:
        admin.listen(data / "admin.sock").close()
    assert main(["account", "list"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "make serve" in err
    assert "ACS_DATA" in err


def test_a_bad_variable_is_one_sentence(data, monkeypatch, capsys):
    monkeypatch.setenv("ACS_PORT", "eighty")
    assert main(["account", "list"]) == 1
    assert capsys.readouterr().err.startswith("acs: ACS_PORT='eighty'")


def test_limits_prints_the_table_with_what_the_environment_sets(monkeypatch, acs):
    monkeypatch.setenv("ACS_LIMIT_CHOICES", "64")
    rows = {row["name"]: row["value"] for row in json.loads(acs("limits", "--json"))}
    assert rows["choices"] == 64
    assert "key_lease_s" in acs("limits")


@pytest.mark.parametrize(
    "words",
    [
        *(["account", verb] for verb in ("create", "list", "suspend", "restore")),
        *(["key", verb] for verb in ("create", "list", "rename", "disable", "enable", "revoke")),
        *(["loom", verb] for verb in ("new", "list", "branch", "show", "export", "import")),
        *(["job", verb] for verb in ("submit", "list", "show", "wait", "result", "cancel")),
        *(["harvest", verb] for verb in ("submit", "list", "show", "wait", "cancel", "download", "verify")),
        *([word] for word in ("usage", "events", "query", "export", "verify", "limits")),
    ],
    ids=" ".join,
)
def test_each_command_has_help_with_an_example_and_takes_json(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert f"acs {' '.join(words)}" in shown.partition("example:")[2]
