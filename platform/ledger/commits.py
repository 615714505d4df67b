"""Group commit: while one batch of events is being written, the next gathers. No timer; a batch is what has gathered.

One commit to disk takes about a millisecond whether it holds one event or a hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from acs.storage.event_store import Event


class Commits:
    """Lives on the ledger's event loop; writes on `writer`, a single thread."""

    def __init__(
        self,
        storing: Callable[[Sequence[Event]], Callable[[], None]],
        writer: Executor,
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`storing`: called on the loop when a batch is complete, gives what stores it; see `Memory.storing`."""
        self._storing = storing
        self._writer = writer
        self._on_failure = on_failure
        self._events: list[Event] = []
        self._stored: list[Callable[[], None]] = []
        self._running: asyncio.Task[None] | None = None
        self.batches = 0

    def add(self, events: Sequence[Event], stored: Callable[[], None] | None = None) -> None:
        """`stored` is called once these events, and all added before them, are on disk; never after a failure, when all
        that the ledger remembers beyond the log has become worthless.
        """
        self._events += events
        self._stored.append(stored or _nobody_asked)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())  # its first step comes after this turn

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._stored:
            events, self._events = self._events, []
            stored, self._stored = self._stored, []
            if events:
                try:
                    await loop.run_in_executor(self._writer, self._storing(events))
                except Exception as fault:
                    return self._on_failure(fault)
                self.batches += 1
            for call in stored:
                call()
        self._running = None


def _nobody_asked() -> None:
    pass
