"""Waiting for a fact that another process makes true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Fact = TypeVar("Fact")


def within(limit_s: float, fact: Callable[[], Fact]) -> Fact:
    """The fact, as soon as it is true. Raises AssertionError when it is not in time."""
    deadline = time.monotonic() + limit_s
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not within {limit_s} s; last seen: {found!r}"
        time.sleep(0.02)
    return found
