"""Runs `build` in a child process and passes on what it says."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SILENCE_S = 5.0  # after so long without a word, say that it is still at work


class BuildFailed(Exception):
    """The message is a sentence without its full stop."""


def build(source: str, folder: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Fill `folder` from `source`; the versions of the tools that made it. Raises BuildFailed.

    Whatever ends this process ends the child too: see `build`'s docstring.
    """
    command = [sys.executable, "-m", "acs.platform.model_source.build", source, str(folder)]
    with open(folder.parent / "stderr", "w+b") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            last = _follow(child, folder, say)
            child.wait()
        finally:  # an interrupt, say
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
        kind, _, rest = last.partition(": ")
        if kind == "done":
            versions: dict[str, str] = json.loads(rest)
            return versions
        if kind == "fault":
            raise BuildFailed(rest)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines() or ["no word"]
        raise BuildFailed(f"its preparation ended with code {child.returncode} ({said[-1].rstrip('.')})")


def _follow(child: subprocess.Popen[bytes], folder: Path, say: Callable[[str], None]) -> str:
    """Say the child's lines, and in its silences how long and how far; returns its last line."""
    assert child.stdout is not None
    began, buffer, last = time.monotonic(), b"", ""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(SILENCE_S):
                say(f"… {time.monotonic() - began:.0f} s, {_megabytes(folder.parent):.0f} MB on disk")
                continue
            data = os.read(child.stdout.fileno(), 65_536)
            if not data:
                return last
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                last = line.decode(errors="replace")
                if not last.startswith(("done: ", "fault: ")):
                    say(last)


def _megabytes(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # moved while we looked
    return total / 1e6
