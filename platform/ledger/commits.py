"""Group commit: while one batch of events is being written, the next gathers. No timer; a batch is what has gathered.

One commit to disk takes about a millisecond whether it holds one event or a hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

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
        self.busy = False  # a batch is being written; after a failure, for good

    def add(self, events: Sequence[Event], stored: Callable[[], None] | None = None) -> None:
        """`stored` is called once these events, and all added before them, are on disk; never after a failure, when all
        that the ledger remembers beyond the log has become worthless.
        """
        self._events += events
        self._stored.append(stored or _nobody_asked)
        if not self.busy:
            self.busy = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._begin, loop)  # after this turn: what comes with it goes into the same batch

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        events, self._events = self._events, []
        stored, self._stored = self._stored, []
        if events:
            self._writer.submit(self._write, self._storing(events), stored, loop)
        else:
            self._end(stored, loop)

    def _write(self, store: Callable[[], None], stored: list[Callable[[], None]], loop: Any) -> None:
        """On the writer's thread. A future to wait for would cost as much as all else that a small batch does."""
        try:
            store()
        except Exception as fault:
            loop.call_soon_threadsafe(self._on_failure, fault)
        else:
            loop.call_soon_threadsafe(self._end, stored, loop)

    def _end(self, stored: list[Callable[[], None]], loop: asyncio.AbstractEventLoop) -> None:
        for call in stored:
            call()
        self.busy = bool(self._stored)
        if self.busy:
            self._begin(loop)


def _nobody_asked() -> None:
    pass
