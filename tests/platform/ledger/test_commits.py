"""Which events are written together, and when."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from acs.platform.ledger.commits import Commits


class Disk:
    """Takes batches; `open` lets the one that is being written end."""

    def __init__(self):
        self.batches = []
        self.open = threading.Event()
        self.open.set()

    def storing(self, events):
        def store():
            self.open.wait()
            self.batches.append(list(events))

        return store


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def commits(disk):
    with ThreadPoolExecutor(max_workers=1) as writer:
        yield Commits(disk.storing, writer, lambda fault: pytest.fail(str(fault)))
        disk.open.set()


async def stored(commits):
    done = asyncio.Event()
    commits.add((), done.set)
    await done.wait()


async def test_what_comes_while_a_batch_is_written_is_the_next_batch(commits, disk, until):
    disk.open.clear()
    commits.add(["first"])
    await until(lambda: commits.busy and not commits._events)
    commits.add(["second"])
    commits.add(["third"])
    disk.open.set()
    await stored(commits)
    assert disk.batches == [["first"], ["second", "third"]]


async def test_events_that_nobody_waits_for_travel_with_the_next_and_before_it(commits, disk):
    commits.add_unhurried(["hold"])
    await asyncio.sleep(0)
    commits.add(["charge"])
    await stored(commits)
    assert disk.batches == [["hold", "charge"]]


async def test_events_that_nobody_waits_for_are_written_alone_when_nothing_else_comes(commits, disk, until):
    commits.add_unhurried(["hold"])
    await until(lambda: disk.batches == [["hold"]])


async def test_a_batch_that_takes_long_does_not_strand_what_nobody_waits_for(commits, disk, until):
    disk.open.clear()
    commits.add(["slow"])
    await until(lambda: commits.busy and not commits._events)
    commits.add_unhurried(["hold"])
    await asyncio.sleep(0.05)  # longer than it waits for company
    disk.open.set()
    await until(lambda: disk.batches == [["slow"], ["hold"]])
