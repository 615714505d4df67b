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


def test_a_server_that_dies_before_it_answers_is_said(locked):
    door = admin.listen(locked / "admin.sock")
    door.setblocking(True)

    def die():
        connection, _ = door.accept()
        connection.recv(1)
        connection.close()

    ledger = threading.Thread(target=die)
    ledger.start()
    with pytest.raises(CommandFailed, match="went away"):
        client.ask("account.list")
    ledger.join()
    door.close()


def test_the_commands_on_accounts_and_keys_load_nothing_heavy(tmp_path):
    program = (
        "import sys, json; from acs.platform.cli.main import main; main(['account', 'list']); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    environ = {**os.environ, "ACS_DATA": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout)}
    assert not loaded & {"ray", "eventsourcing", "pydantic", "fastapi", "torch", "vllm", "numpy", "asyncio", "httpx"}
