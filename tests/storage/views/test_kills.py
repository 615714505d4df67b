"""The process that projects is killed at any moment, many times: no row twice, none missing."""

import random
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from history import History
from view_tables import caught_up, tables

BATCH_EVENTS = 5
PROGRAM = """
import sys
from pathlib import Path
from acs.storage.event_store import open_event_store
from acs.storage.views.database import ViewsDatabase
folder = Path(sys.argv[1])
views = ViewsDatabase(open_event_store(folder / "events.sqlite"), folder / "views.duckdb")
print(views.position, flush=True)
while views.catch_up(int(sys.argv[2])):
    print(views.position, flush=True)
"""


@pytest.mark.parametrize("kills", [12, pytest.param(300, marks=pytest.mark.soak)])
def test_views_killed_at_any_moment_have_every_event_once(store, tmp_path, kills):
    history = History(running=10, step=timedelta(minutes=1))
    history.live(kills * 15)  # more than are folded until the last kill
    head = history.store(store)
    chance, position = random.Random(kills), 0
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(BATCH_EVENTS)], stdout=subprocess.PIPE, text=True
        ) as projecting:
            opened_at = int(projecting.stdout.readline())
            assert opened_at >= position, "what was committed stays"
            for _ in range(chance.randint(0, 5)):
                projecting.stdout.readline()
            try:
                projecting.wait(chance.uniform(0, 0.04))  # some moment of the next batch
            except subprocess.TimeoutExpired:
                projecting.send_signal(signal.SIGKILL)
            position = max([opened_at, *map(int, projecting.stdout.read().split())])
    assert 0 < position < head, "killed while there was work"
    assert tables(caught_up(store, tmp_path / "views.duckdb")) == tables(caught_up(store))
