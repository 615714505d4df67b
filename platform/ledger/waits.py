"""Reads that are answered when something changes, or when their time is over. So many at once, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from acs.platform.clock import Clock
from acs.platform.limits import Limits


@dataclass(frozen=True, slots=True)
class _Wait:
    what: str
    key_id: str
    until: float
    answer: Callable[[], None]


class Waits:
    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._waits: dict[tuple[str, int], _Wait] = {}

    def add(self, asker: tuple[str, int], what: str, key_id: str, wait_s: float, answer: Callable[[], None]) -> bool:
        """`asker`: who asks, and its number of the question, which it may ask again. `what`: the id of what may change.
        `answer` is called once. False: too many wait already, and it will not be.
        """
        self._waits.pop(asker, None)
        of_key = sum(wait.key_id == key_id for wait in self._waits.values())
        if of_key >= self._limits.key_loom_waits or len(self._waits) >= self._limits.platform_loom_waits:
            return False
        until = self._clock.now() + wait_s
        self._waits[asker] = _Wait(what, key_id, until, answer)
        return True

    def end(self, asker: tuple[str, int]) -> None:
        """Nobody waits for it any more. One that is not there does nothing."""
        self._waits.pop(asker, None)

    def changed(self, what: str) -> None:
        self._answer(lambda wait: wait.what == what)

    def look_after(self) -> None:
        """To be called every second or so: those whose time is over."""
        now = self._clock.now()
        self._answer(lambda wait: wait.until <= now)

    def _answer(self, which: Callable[[_Wait], bool]) -> None:
        for asker in [asker for asker, wait in self._waits.items() if which(wait)]:
            self._waits.pop(asker).answer()
