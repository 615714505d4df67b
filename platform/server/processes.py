"""Finding and ending processes, by descent and by a tag in their environment.

Ray's workers, HAProxy and vLLM's engine outlive their parents. The supervisor is made the adopter of every orphan
below it, so that descent finds all it started while it lives; the tags find what a killed supervisor left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    started: int  # clock ticks after boot; with the pid it names one process for ever
    command: str
    rss: int  # bytes


def adopt_orphans() -> None:
    """From now on, a descendant whose parent dies becomes a child of this process. Linux only; elsewhere, nothing."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """From now on, the kernel kills this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def read(pid: int) -> Process | None:
    """None when there is no such process, or when it is dead and only waits to be reaped."""
    return None if (found := _stat(pid)) is None or found.dead else found.process


@dataclass(frozen=True, slots=True)
class _Stat:
    process: Process
    dead: bool


def _stat(pid: int) -> _Stat | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat.rpartition(")")[2].split()
    words = command.replace(b"\0", b" ").decode(errors="replace").strip()
    pages = int(after_name[21])
    process = Process(pid, int(after_name[1]), int(after_name[19]), words, pages * os.sysconf("SC_PAGE_SIZE"))
    return _Stat(process, dead=after_name[0] in "ZX")


def alive(process: Process) -> bool:
    """Whether this very process still runs; another that was given its pid does not count."""
    now = read(process.pid)
    return now is not None and now.started == process.started


def _everyone() -> Iterator[_Stat]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _stat(int(entry))):
            yield found


def everyone() -> Iterator[Process]:
    return (found.process for found in _everyone() if not found.dead)


def descendants(root: int) -> list[Process]:
    """The live ones. One whose parents die while we look may be missed: look again, or by its tag."""
    children: dict[int, list[_Stat]] = {}
    for found in _everyone():
        children.setdefault(found.process.parent, []).append(found)
    below: list[Process] = []
    parents = [root]
    while parents:
        for child in children.get(parents.pop(), []):
            parents.append(child.process.pid)
            if not child.dead:
                below.append(child.process)
    return below


def environment_of(pid: int) -> dict[str, str]:
    """The environment the process was started with; empty when it is gone or is not ours to read."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (entry.partition(b"=") for entry in block.split(b"\0"))
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def tagged(name: str, value: str) -> list[Process]:
    return [p for p in everyone() if p.pid != os.getpid() and environment_of(p.pid).get(name) == value]


def reap() -> Iterator[tuple[int, int]]:
    """The children of this process that have ended, as (pid, exit code; negative: the signal that ended it)."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def signal_all(processes: Iterable[Process], which: signal.Signals) -> None:
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, which)


def end(find: Callable[[], list[Process]], *, patience_s: float, limit_s: float = 20.0) -> list[Process]:
    """TERM what `find` finds, and KILL what is still there after `patience_s`, until it finds nothing.

    Looks again and again, since processes that are being ended may still start others. Returns what outlived
    `limit_s` (a process stuck in the kernel).
    """
    began = time.monotonic()
    told: set[tuple[int, int]] = set()
    while left := find():
        waited = time.monotonic() - began
        if waited > limit_s:
            return left
        if waited > patience_s:
            signal_all(left, signal.SIGKILL)
        else:
            signal_all([p for p in left if (p.pid, p.started) not in told], signal.SIGTERM)
            told |= {(p.pid, p.started) for p in left}
        time.sleep(0.02)
        list(reap())
    return []
