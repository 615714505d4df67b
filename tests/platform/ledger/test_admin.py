import asyncio
import contextlib
import json
import logging
import stat

import pytest
from local_ledger import service_of

from acs.platform.ledger import admin
from acs.platform.unix_socket import short_address
from acs.storage.event_store import open_event_store


@pytest.fixture
async def service(tmp_path, clock):
    store = open_event_store(tmp_path / "events.sqlite")
    service = service_of(store, 3.0, clock)
    yield service
    store.close()


@pytest.fixture
async def path(service, tmp_path):
    path = tmp_path / ("deep" * 20) / "admin.sock"  # longer than a Unix socket's address may be
    path.parent.mkdir()
    server = await admin.serve(admin.listen(path), service)
    yield path
    server.close()


async def say(path, line: bytes) -> bytes:
    with short_address(path) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    return answer


async def ask(path, **fields):
    return json.loads(await say(path, json.dumps(fields).encode() + b"\n"))


async def test_an_account_and_a_key_are_made_listed_and_changed(path):
    made = (await ask(path, do="account.create", name="Ada", email="ada@lab.org"))["ok"]
    key = (await ask(path, do="key.create", account=made["id"], name="laptop"))["ok"]
    assert key["key"].startswith(key["prefix"])
    renamed = (await ask(path, do="key.rename", id=key["id"], name="desk"))["ok"]
    assert renamed["name"] == "desk"
    for verb, state in {"disable": "disabled", "enable": "active", "revoke": "revoked"}.items():
        assert (await ask(path, do=f"key.{verb}", id=key["id"]))["ok"]["state"] == state
    listed = (await ask(path, do="key.list", account=made["id"]))["ok"]
    assert [(row["id"], row["name"], row["state"]) for row in listed] == [(key["id"], "desk", "revoked")]
    assert "key" not in listed[0]
    assert "digest" not in listed[0]
    assert (await ask(path, do="account.suspend", id=made["id"]))["ok"]["state"] == "suspended"
    assert [row["state"] for row in (await ask(path, do="account.list"))["ok"]] == ["suspended"]
    assert (await ask(path, do="account.restore", id=made["id"]))["ok"]["state"] == "active"


async def test_a_refusal_is_one_sentence(path):
    answer = await ask(path, do="key.revoke", id="key_none")
    assert answer == {"error": "There is no key 'key_none'."}


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{\n",
        b"[]\n",
        b'"account.list"\n',
        b'{"do": "account.drop"}\n',
        b'{"do": []}\n',
        b'{"do": "account.create", "name": "Ada"}\n',
        b'{"do": "account.create", "name": "Ada", "email": 1}\n',
        b"\xff\n",
        b"[" * 15_000 + b"\n",
    ],
)
async def test_a_line_that_is_not_a_command_is_answered_and_the_door_stays_open(path, line):
    assert "not understood" in json.loads(await say(path, line))["error"]
    assert (await ask(path, do="account.list"))["ok"] == []


async def test_a_line_without_end_is_hung_up_on(path):
    with contextlib.suppress(ConnectionResetError):
        assert await say(path, b"x" * 1_000_000) == b""
    assert (await ask(path, do="account.list"))["ok"] == []


async def test_the_socket_is_for_its_owner_only_and_replaces_one_that_lay_there(path, service):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = await admin.serve(admin.listen(path), service)
    assert (await ask(path, do="account.list"))["ok"] == []
    assert [entry.name for entry in path.parent.iterdir()] == ["admin.sock"]
    again.close()


async def test_a_fault_of_ours_is_answered_by_its_kind_and_logged_without_what_was_asked(path, service, caplog):
    made = (await ask(path, do="account.create", name="Ada", email="ada@lab.org"))["ok"]
    service.accounts.table.keys_of = None  # a bug
    with caplog.at_level(logging.DEBUG):
        answer = await ask(path, do="key.create", account=made["id"], name="laptop")
    assert "TypeError" in answer["error"]
    assert "laptop" not in caplog.text


async def test_no_secret_reaches_a_log(path, caplog):
    with caplog.at_level(logging.DEBUG):
        made = (await ask(path, do="account.create", name="Ada", email="ada@lab.org"))["ok"]
        key = (await ask(path, do="key.create", account=made["id"], name="laptop"))["ok"]
    assert key["key"] not in caplog.text
