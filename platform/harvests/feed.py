"""Rows on their way from the event loop to the thread that writes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType

from acs.storage.shards.writer import PromptRows


class Unfinished(Exception):
    """No more rows come, though some are missing."""


class Feed:
    """Used as a context by who puts; iterated, once, by who takes. When the context's block raises, the taker is given
    Unfinished.
    """

    def __init__(self, taken: Callable[[], None]) -> None:
        """`taken`: called on the event loop when all that was put in at a time has been taken."""
        self._loop = asyncio.get_running_loop()
        self._taken = taken
        self._queue: SimpleQueue[list[PromptRows] | Unfinished | None] = SimpleQueue()
        self.waited_s = 0.0  # by the taker, for rows

    def put(self, rows: list[PromptRows]) -> None:
        self._queue.put(rows)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        self._queue.put(None if fault is None else Unfinished())

    def __iter__(self) -> Iterator[PromptRows]:
        while (rows := self._next()) is not None:
            yield from rows
            rows.clear()
            self._loop.call_soon_threadsafe(self._taken)

    def _next(self) -> list[PromptRows] | None:
        began = time.monotonic()
        rows = self._queue.get()
        self.waited_s += time.monotonic() - began
        if isinstance(rows, Unfinished):
            raise rows
        return rows
