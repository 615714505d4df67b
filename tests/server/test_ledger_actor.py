"""The ledger as Ray runs it: killed for real, it comes back with everything it had said.

Ray reads how it authenticates when it is imported, so the story runs in a process of its own: this file, as a program.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from acs.platform import errors
from acs.platform.catalogue import Catalogue
from acs.platform.cli.client import ask
from acs.platform.key_book import KeyBook
from acs.platform.ledger.local_key import read_key
from acs.platform.ledger_actor import find_ledger, start_ledger
from acs.platform.settings import Settings

BASE = "http://127.0.0.1:1/v1"
BOUND_S = 60


@pytest.fixture(scope="module")
def told():
    """What the story found, fact by fact."""
    folder = Path(tempfile.mkdtemp(prefix="acs-test-", dir="/tmp"))  # short: Ray's sockets lie in it
    (folder / "token").write_text(secrets.token_hex(32))
    environ = {
        **os.environ,
        "ACS_DATA": str(folder / "data"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder / "ray"),
    }
    ran = subprocess.run([sys.executable, __file__], env=environ, capture_output=True, text=True, timeout=300)
    logs = [path for path in (folder / "ray").rglob("*") if path.is_file() and not path.is_symlink()]
    said = ran.stdout + ran.stderr + "".join(path.read_text(errors="replace") for path in logs)
    shutil.rmtree(folder)
    assert ran.returncode == 0, ran.stderr
    return {**json.loads(ran.stdout.splitlines()[-1]), "said": said, "logs": len(logs)}


@pytest.mark.server
def test_the_first_start_leaves_a_working_key_in_a_file_of_its_owner(told):
    assert told["env_mode"] == 0o600
    assert told["socket_mode"] == 0o600
    assert told["first_caller"] == "local"


@pytest.mark.server
def test_starting_the_ledger_again_finds_the_one_that_runs(told):
    assert told["pid_of_second_start"] == told["first_pid"]


@pytest.mark.server
def test_killed_it_comes_back_with_its_accounts_and_listens_again(told):
    assert told["pid_after_kill"] != told["first_pid"]
    assert told["accounts_after_kill"] == ["local", "Ada"]


@pytest.mark.server
def test_a_revocation_after_a_restart_holds_on_an_ingress_that_followed_the_former_ledger(told):
    assert told["refusal_after_revoke"] == "KeyRevoked"


@pytest.mark.server
def test_a_revoked_local_key_is_replaced_at_the_next_start(told):
    assert told["key_replaced"]
    assert told["second_caller"] == "local"


@pytest.mark.server
def test_no_key_reaches_a_log(told):
    assert told["logs"] > 0
    assert "sk-acs-" not in told["said"]


async def story() -> dict[str, object]:
    import ray

    settings = Settings.from_environ()
    settings.data.mkdir()
    hold_lock(settings)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    facts: dict[str, object] = {}

    catalogue = Catalogue.load(settings.catalogue)
    ledger = await asyncio.to_thread(start_ledger, settings, catalogue)
    await ledger.ensure_local_key.remote(BASE)
    facts["env_mode"] = stat.S_IMODE(settings.env_file.stat().st_mode)
    facts["socket_mode"] = stat.S_IMODE(settings.admin_socket.stat().st_mode)
    facts["first_pid"] = await ledger.pid.remote()
    facts["pid_of_second_start"] = await (await asyncio.to_thread(start_ledger, settings, catalogue)).pid.remote()

    book = KeyBook(settings.limits.key_lease_s)
    following = asyncio.create_task(book.follow(find_ledger()))
    await asyncio.wait_for(book.filled(), BOUND_S)
    authorization = f"Bearer {read_key(settings.env_file)}"
    caller = book.judge(authorization)
    facts["first_caller"] = caller.key_name
    await asyncio.to_thread(ask, "account.create", name="Ada", email="ada@lab.org")

    os.kill(facts["first_pid"], signal.SIGKILL)
    await until(lambda: not alive(facts["first_pid"]))
    facts["accounts_after_kill"] = [row["name"] for row in await asyncio.to_thread(ask, "account.list")]
    facts["pid_after_kill"] = await ledger.pid.remote()
    await until(lambda: book.fresh)
    assert book.judge(authorization) == caller

    await asyncio.to_thread(ask, "key.revoke", id=caller.key_id)
    try:
        book.judge(authorization)
    except errors.ApiError as error:
        facts["refusal_after_revoke"] = type(error).__name__
    await ledger.ensure_local_key.remote(BASE)
    facts["key_replaced"] = authorization != f"Bearer {read_key(settings.env_file)}"
    facts["second_caller"] = book.judge(f"Bearer {read_key(settings.env_file)}").key_name
    following.cancel()
    return facts


def hold_lock(settings: Settings) -> None:
    """As a server does, for as long as this process lives."""
    lock = os.open(settings.lock_file, os.O_RDWR | os.O_CREAT)
    os.write(lock, f"{os.getpid()}\n".encode())
    fcntl.flock(lock, fcntl.LOCK_EX)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(fact) -> None:
    async with asyncio.timeout(BOUND_S):
        while not fact():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(story())))
