"""Time as a dependency: whoever waits or measures an age is given a Clock, so that tests need no sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds that never go back; the zero means nothing."""

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        """Returns when `event` is set or when the time is over, whichever is first."""


class MonotonicClock:
    def now(self) -> float:
        return time.monotonic()

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()


class FakeClock:
    """Time that moves only when `advance` is called, for tests."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        timer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
        self._timers.append((self._now + timeout_s, timer))
        try:
            await asyncio.wait([timer, waiter], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
            timer.cancel()

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for time to go on."""
        return any(not timer.done() for _, timer in self._timers)

    def advance(self, seconds: float) -> None:
        self._now += seconds
        for due, timer in self._timers:
            if due <= self._now and not timer.done():
                timer.set_result(None)
        self._timers = [(due, timer) for due, timer in self._timers if not timer.done()]
