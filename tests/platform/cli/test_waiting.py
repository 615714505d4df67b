"""What `acs` does while a ledger comes back, and what it loads to do it."""

import fcntl
import json
import os
import subprocess
import sys
import threading

import pytest

from acs.platform.cli import client
from acs.platform.cli.errors import CommandFailed
from acs.platform.ledger import admin


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A data folder whose lock a living process holds, as a server does."""
    monkeypatch.setenv("ACS_DATA", str(tmp_path))
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.write(lock, f"{os.getpid()}\n".encode())
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield tmp_path
    os.close(lock)


def test_a_server_without_its_ledger_is_waited_for(locked, monkeypatch):
    """The ledger's socket appears only after the command has looked for it and not found it."""
    retried = threading.Event()
    monkeypatch.setattr(client.time, "sleep", lambda _: retried.set())

    def come_back():
        assert retried.wait(10)
        door = admin.listen(locked / "admin.sock")
        door.setblocking(True)
        connection, _ = door.accept()
        connection.makefile("rb").readline()
        connection.sendall(b'{"ok": []}\n')
        connection.close()
        door.close()

    ledger = threading.Thread(target=come_back)
    ledger.start()
    assert client.ask("account.list") == []
    ledger.join()


def test_waiting_for_a_ledger_has_an_end(locked, monkeypatch):
    monkeypatch.setattr(client, "RESTART_S", 0)
    with pytest.raises(CommandFailed, match="not ready"):
        client.ask("account.list")


@pytest.fixture
def dies_once(locked):
    """A ledger that hangs up on the first command and answers the second; the commands it was sent."""
    door = admin.listen(locked / "admin.sock")
    door.setblocking(True)
    heard = []

    def serve():
        for answer in (b"", b'{"ok": []}\n'):
            connection, _ = door.accept()
            with connection, connection.makefile("rb") as lines:
                heard.append(json.loads(lines.readline())["do"])
                connection.sendall(answer)

    ledger = threading.Thread(target=serve)
    ledger.start()
    yield heard
    ledger.join()
    door.close()


def test_a_command_that_may_be_done_twice_is_asked_again_when_the_ledger_dies(dies_once):
    assert client.ask("key.revoke", id="key_1") == []
    assert dies_once == ["key.revoke", "key.revoke"]


def test_a_command_that_makes_something_is_not_repeated_and_says_so(dies_once):
    with pytest.raises(CommandFailed, match="went away"):
        client.ask("key.create", account="acct_1", name="laptop")
    assert dies_once == ["key.create"]
    client.ask("account.list")


def test_the_commands_on_accounts_and_keys_load_nothing_heavy(tmp_path):
    program = (
        "import sys, json; from acs.platform.cli.main import main; main(['account', 'list']); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    environ = {**os.environ, "ACS_DATA": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout)}
    assert not loaded & {"ray", "eventsourcing", "pydantic", "fastapi", "torch", "vllm", "numpy", "asyncio", "httpx"}
