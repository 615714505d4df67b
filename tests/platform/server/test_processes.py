from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from acs.platform.server import processes

STUBBORN = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def child(code: str, **environ: str) -> subprocess.Popen[str]:
    """Started, and past its first line of output."""
    started = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | environ, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    return started


def eventually(fact: Callable[[], bool], limit_s: float = 10) -> bool:
    deadline = time.monotonic() + limit_s
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.01)
    return fact()


@pytest.fixture
def quiet() -> subprocess.Popen[str]:
    return child("import time; print('up', flush=True); time.sleep(60)", ACS_TEST_TAG="here")


def test_a_process_is_found_by_its_tag_and_by_descent(quiet: subprocess.Popen[str]) -> None:
    assert quiet.pid in [p.pid for p in processes.tagged("ACS_TEST_TAG", "here")]
    assert quiet.pid not in [p.pid for p in processes.tagged("ACS_TEST_TAG", "elsewhere")]
    assert quiet.pid in [p.pid for p in processes.descendants(os.getpid())]
    quiet.kill()
    quiet.wait()


def test_one_that_has_ended_is_no_longer_alive_even_before_it_is_reaped(quiet: subprocess.Popen[str]) -> None:
    process = processes.read(quiet.pid)
    assert process is not None
    assert processes.alive(process)
    quiet.kill()
    assert eventually(lambda: not processes.alive(process))
    quiet.wait()


def test_a_recycled_pid_is_another_process(quiet: subprocess.Popen[str]) -> None:
    process = processes.read(quiet.pid)
    assert process is not None
    earlier = processes.Process(process.pid, process.parent, process.started - 1, process.command, process.rss)
    assert not processes.alive(earlier)
    processes.signal_all([earlier], signal.SIGKILL)
    assert processes.alive(process)
    quiet.kill()
    quiet.wait()


def test_end_kills_what_does_not_listen() -> None:
    stubborn = child(STUBBORN, ACS_TEST_TAG="stubborn")
    assert processes.end(lambda: processes.tagged("ACS_TEST_TAG", "stubborn"), patience_s=0.1) == []
    assert processes.read(stubborn.pid) is None


def test_end_finds_what_is_started_meanwhile() -> None:
    """A parent that, told to end, leaves another behind: Ray does so with actors."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        "def again(*_):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "    os._exit(0)\n"
        "signal.signal(15, again)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    child(code, ACS_TEST_TAG="heir")
    assert processes.end(lambda: processes.tagged("ACS_TEST_TAG", "heir"), patience_s=2) == []
    assert processes.tagged("ACS_TEST_TAG", "heir") == []
