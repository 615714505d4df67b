"""Group commit: while one batch of events is being written, the next gathers; a batch is what has gathered.

One commit to disk takes about a millisecond whether it holds one event or a hundred. So events that nobody waits for go
with the next batch, or alone after a while: a small request's Hold is mostly written together with its charge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from acs.storage.event_store import Event

UNHURRIED_S = 0.02  # how long events wait for company when nobody waits for them


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
        self._unhurried: asyncio.TimerHandle | None = None
        self.busy = False  # a batch is being written; after a failure, for good

    def add(self, events: Sequence[Event], stored: Callable[[], None] | None = None) -> None:
        """`stored` is called once these events, and all added before them, are on disk; never after a failure, when all
        that the ledger remembers beyond the log has become worthless.
        """
        self._events += events
        self._stored.append(stored or _nobody_asked)
        self._hurry()

    def add_unhurried(self, events: Sequence[Event]) -> None:
        """They are on disk before anything that is added later, and soon."""
        self._events += events
        if self._unhurried is None:
            self._wait_for_company()

    def _wait_for_company(self) -> None:
        """A batch that begins takes them along; while one is being written they wait on."""
        self._unhurried = asyncio.get_running_loop().call_later(UNHURRIED_S, self._go_alone)

    def _go_alone(self) -> None:
        if self.busy:
            self._wait_for_company()
        else:
            self._hurry()

    def _hurry(self) -> None:
        if not self.busy:
            self.busy = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._begin, loop)  # after this turn: what comes with it goes into the same batch

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        events, self._events = self._events, []
        stored, self._stored = self._stored, []
        if self._unhurried is not None:
            self._unhurried.cancel()
            self._unhurried = None
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
