"""The views as Ray runs them: killed for real, they come back where they were.

Ray reads how it authenticates when it is imported, so the story runs in a process of its own: this file, as a program.
"""

from __future__ import annotations

import asyncio
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
from history import History
from view_tables import caught_up, tables

from acs.events.ids import ACCOUNT, show
from acs.platform.errors import PartUnavailable
from acs.platform.settings import Settings
from acs.platform.views.remote import RemoteViews
from acs.platform.views_actor import start_views
from acs.storage.event_store import open_event_store
from acs.storage.views.database import ViewsDatabase

BOUND_S = 60


@pytest.fixture(scope="module")
def told():
    """What the story found, fact by fact."""
    folder = Path(tempfile.mkdtemp(prefix="acs-test-", dir="/tmp"))  # short: Ray's sockets lie in it
    (folder / "token").write_text(secrets.token_hex(32))
    environ = {
        **os.environ,
        "ACS_DATA": str(folder / "data"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder / "ray"),
    }
    ran = subprocess.run([sys.executable, __file__], env=environ, capture_output=True, text=True, timeout=300)
    shutil.rmtree(folder)
    assert ran.returncode == 0, ran.stderr
    (facts,) = (line for line in ran.stdout.splitlines() if line.startswith("{"))  # Ray tells of deaths in between
    return json.loads(facts)


@pytest.mark.server
def test_before_the_views_have_been_started_the_usage_cannot_be_read(told):
    assert told["before"] == "PartUnavailable"


@pytest.mark.server
def test_an_ingress_reads_what_was_stored_before_it_asked(told):
    assert told["charged"] == told["charged_by_the_books"]
    assert told["socket_mode"] == told["file_mode"] == 0o600


@pytest.mark.server
def test_starting_the_views_again_finds_those_that_run(told):
    assert told["pid_of_second_start"] == told["first_pid"]


@pytest.mark.server
def test_killed_again_and_again_they_come_back_and_miss_nothing(told):
    assert len(set(told["pids"])) == len(told["pids"])
    assert told["charged_after_kills"] == told["charged_by_the_books_after_kills"] > told["charged"]
    assert told["same_rows"]


@pytest.mark.server
def test_views_whose_projection_fails_end_and_are_started_again(told):
    assert told["pid_after_fault"] != told["pids"][-1]


async def story() -> dict[str, object]:
    import ray

    settings = Settings.from_environ()
    settings.data.mkdir()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    facts: dict[str, object] = {}
    store = open_event_store(settings.event_store)
    store.claim()
    history = History(running=5)
    history.live(100)
    history.store(store)
    ada = show(ACCOUNT, history.accounts[0].id)
    month = history.ledgers[0].book.month

    def by_the_books() -> int:
        return sum(
            ledger.book.account.charged
            for ledger in history.ledgers
            if (ledger.book.account_id, ledger.book.month) == (ada, month)
        )

    remote = RemoteViews()
    try:
        await remote.usage(ada, month)
    except PartUnavailable as error:
        facts["before"] = type(error).__name__

    views = await asyncio.to_thread(start_views, settings)
    facts["first_pid"] = await views.pid.remote()
    facts["pid_of_second_start"] = await (await asyncio.to_thread(start_views, settings)).pid.remote()
    facts["charged"] = (await remote.usage(ada, month))["charged_tokens"]
    facts["charged_by_the_books"] = by_the_books()
    facts["socket_mode"] = stat.S_IMODE(settings.views_socket.stat().st_mode)
    facts["file_mode"] = stat.S_IMODE(settings.views.stat().st_mode)

    pids = [facts["first_pid"]]
    for _ in range(3):
        history.live(30)
        history.store(store)
        os.kill(pids[-1], signal.SIGKILL)
        pids.append(await restarted(views, pids[-1]))
    facts["pids"] = pids
    facts["charged_after_kills"] = (await answered(remote, ada, month))["charged_tokens"]
    facts["charged_by_the_books_after_kills"] = by_the_books()

    copy = settings.data / "copy.duckdb"
    await views.snapshot.remote(copy)
    facts["same_rows"] = tables(ViewsDatabase(store, copy)) == tables(caught_up(store))

    bad = store.read_stored(store.head() - 1, 1)[0]
    with store.recorder.datastore.transaction(commit=True) as cursor:  # an event that nobody can have written
        cursor.execute(
            "INSERT INTO stored_events VALUES (?, 1000, ?, ?)",
            ["0" * 32, "acs.events.ledger:Ledger.HoldExpired", bad[3][:-1]],
        )
    facts["pid_after_fault"] = await restarted(views, pids[-1])
    return facts


async def restarted(views, former: object) -> object:
    """The pid of the actor's next process."""
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                if (pid := await views.pid.remote()) != former:
                    return pid
            except Exception:  # it is between two processes
                await asyncio.sleep(0.05)


async def answered(remote: RemoteViews, account_id: str, month: str) -> dict[str, object]:
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                return await remote.usage(account_id, month)
            except PartUnavailable:
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(story())))
