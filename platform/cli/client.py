"""The operator's side of the server's sockets: one question, one answer, or one sentence that says why not."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from acs.platform.cli.errors import CommandFailed
from acs.platform.settings import Settings
from acs.platform.unix_socket import short_address

ANSWER_TIMEOUT_S = 60  # a change is answered when every ingress knows it: seconds at most
RESTART_S = 5  # how long a part of the server that is coming back is waited for
RETRY_PAUSE_S = 0.1
NOT_TWICE = ("account.create", "key.create")


def ask(command: str, **fields: str) -> Any:
    """What the ledger answers to `command` with `fields`. Raises CommandFailed; SettingsError for a bad variable.

    A ledger that dies before it answers is asked again when it is back, unless doing the thing twice would differ
    from doing it once.
    """
    settings = Settings.from_environ()
    return _ask(settings, settings.admin_socket, command, fields)


def ask_views(command: str, **fields: str) -> Any:
    """What the views answer, in the same way."""
    settings = Settings.from_environ()
    return _ask(settings, settings.views_socket, command, fields)


def _ask(settings: Settings, door: Path, command: str, fields: dict[str, str]) -> Any:
    question = json.dumps({"do": command, **fields}).encode() + b"\n"
    give_up_at = time.monotonic() + RESTART_S
    while (line := _exchange(_connect(settings, door, give_up_at), question)) is None:
        if command in NOT_TWICE or time.monotonic() >= give_up_at:
            raise CommandFailed("The server went away before it answered; list to see whether the command was done.")
    answer = json.loads(line)
    if "error" in answer:
        raise CommandFailed(answer["error"])
    return answer["ok"]


def _exchange(connection: socket.socket, question: bytes) -> bytes | None:
    """None when who was asked died in between."""
    try:
        with connection, connection.makefile("rb") as answers:
            connection.sendall(question)
            line = answers.readline()
    except TimeoutError:
        raise CommandFailed(f"The server has not answered within {ANSWER_TIMEOUT_S} s.") from None
    except OSError:
        return None
    return line if line.endswith(b"\n") else None


def _connect(settings: Settings, door: Path, give_up_at: float) -> socket.socket:
    """Waits until `give_up_at` while a server runs and nobody is at its door. Raises CommandFailed."""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            with short_address(door) as address:
                connection.connect(address)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if not server_runs(settings):
                raise CommandFailed(
                    f"No server runs on {settings.data}: start one with `make serve`, "
                    "or set ACS_DATA to the data folder of the one that runs."
                ) from None
            if time.monotonic() >= give_up_at:
                raise CommandFailed(f"The server on {settings.data} is not ready yet; try again.") from None
            time.sleep(RETRY_PAUSE_S)
        except OSError as error:
            connection.close()
            raise CommandFailed(f"{door} cannot be opened: {error.strerror}.") from None


def server_runs(settings: Settings) -> bool:
    """Whether a server holds the lock of the data folder: its socket may be away while a part comes back.

    The lock is touched only when the process named in it lives, so as not to be in the way of one that starts.
    """
    try:
        lock = os.open(settings.lock_file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        os.kill(int(os.read(lock, 32)), 0)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ValueError, OSError):  # nobody's number in it, or nobody of that number
        return False
    finally:
        os.close(lock)
    return False
