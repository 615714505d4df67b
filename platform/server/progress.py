"""What a starting server says: one line a step, with the seconds since the command was given."""

from __future__ import annotations

import os
import sys
import time

_STARTED = "ACS_STARTED"  # passed to child processes, so that all count from the same moment; seconds of time.time()


def started_at() -> float:
    return float(os.environ.setdefault(_STARTED, repr(time.time())))


def say(line: str) -> None:
    print(f"{time.time() - started_at():6.1f} s  {line}", flush=True)


def complain(sentence: str) -> None:
    print(f"acs: {sentence}", file=sys.stderr, flush=True)
