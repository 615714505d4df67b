"""Who waits for a Harvest's status to change: a few of each key, and some in all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from acs.platform.clock import Clock
from acs.platform.ledger.harvest_contract import WaitForHarvest
from acs.platform.limits import Limits


@dataclass(frozen=True, slots=True)
class _Wait:
    command: WaitForHarvest
    until: float
    answer: Callable[[], None]


class HarvestWaits:
    def __init__(self, limits: Limits, clock: Clock, status_of: Callable[[str], str | None]) -> None:
        """`status_of`: a Harvest; None: it is not known any more."""
        self._limits = limits
        self._clock = clock
        self._status_of = status_of
        self._waiting: dict[tuple[str, int], _Wait] = {}  # by who asks, and the number of the question

    def add(self, owner: str, command: WaitForHarvest, answer: Callable[[], None]) -> bool:
        """Whether there was room for it; `answer` is called when its time has come. One that comes again, after its
        owner's link was away, takes its own place.
        """
        others = [wait.command.key_id for who, wait in self._waiting.items() if who != (owner, command.ask)]
        full = len(others) >= self._limits.platform_harvest_waits
        if full or others.count(command.key_id) >= self._limits.key_harvest_waits:
            return False
        self._waiting[owner, command.ask] = _Wait(command, self._clock.now() + command.wait_s, answer)
        return True

    def end(self, owner: str, ask: int) -> None:
        """Nobody waits for it any more. One that is not there does nothing."""
        self._waiting.pop((owner, ask), None)

    def answer_due(self) -> None:
        """Those whose Harvest has changed, and those that have waited long enough. To be called after each change and
        every second or so.
        """
        now = self._clock.now()
        for who, wait in list(self._waiting.items()):
            if wait.until <= now or self._status_of(wait.command.harvest_id) != wait.command.seen:
                del self._waiting[who]
                wait.answer()
