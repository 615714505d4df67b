"""Reads that are answered when something changes, or when their time is over. So many at once, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from acs.platform.clock import Clock


@dataclass(frozen=True, slots=True)
class _Wait:
    what: str
    key_id: str
    until: float
    answer: Callable[[], None]


class Waits:
    def __init__(self, clock: Clock, of_key: int, in_all: int) -> None:
        """How many may wait at once, of each key and in all."""
        self._clock = clock
        self._of_key = of_key
        self._in_all = in_all
        self._waits: dict[tuple[str, int], _Wait] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waits)

    def add(self, asker: tuple[str, int], what: str, key_id: str, wait_s: float, answer: Callable[[], None]) -> bool:
        """`asker`: who asks, and its number of the question, which it may ask again. `what`: the id of what may change.
        `answer` is called once. False: too many wait already, and it will not be.
        """
        self._waits.pop(asker, None)
        of_key = sum(wait.key_id == key_id for wait in self._waits.values())
        if of_key >= self._of_key or len(self._waits) >= self._in_all:
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
