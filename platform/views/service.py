"""The views among their askers: a thread that projects, and answers that wait until it has got far enough. No Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acs.platform.views.contract import Lag, NoSuchAccount, ViewsUnavailable
from acs.storage.event_store import EventStore, EventStoreUnavailable
from acs.storage.views.database import BATCH_EVENTS, ViewsDatabase
from acs.storage.views.usage import usage_of, usage_of_all

PATIENCE_S = 2.0  # how long an answer waits for the events that were stored before it was asked for
# A batch of ten events costs as much as one of a thousand, some 20 ms of a core: unless somebody waits, events gather.
# Who asks wakes the projection, so this delays no answer: a second of events is folded in those 20 ms.
GATHER_S = 10.0


class ViewsService:
    """Lives on the loop it is made on. `died` is called, on the projecting thread, with what ended it."""

    def __init__(self, store: EventStore, views: ViewsDatabase, died: Callable[[BaseException], None]) -> None:
        self._store = store
        self._views = views
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()  # set once, then replaced: whoever waits on it wakes
        self._wanted = threading.Event()  # somebody waits for the thread
        self._closing = False
        self._complete_at = time.monotonic()
        self._thread = threading.Thread(target=self._project, name="projection", daemon=True)
        self._thread.start()

    async def usage(self, account_id: str, month: str) -> dict[str, Any]:
        """Raises ViewsUnavailable, and NoSuchAccount."""
        await self._reach_the_events(PATIENCE_S)
        usage = await asyncio.to_thread(usage_of, self._views, account_id, month)
        if usage is None:
            raise NoSuchAccount(f"There is no account {account_id!r}.")
        return usage

    async def usage_of_all(self, month: str) -> list[dict[str, Any]]:
        """A row an account. Raises ViewsUnavailable."""
        await self._reach_the_events(PATIENCE_S)
        return await asyncio.to_thread(usage_of_all, self._views, month)

    async def snapshot(self, path: Path, patience_s: float = PATIENCE_S) -> int:
        """Copies the views into a new file, mode 600; their position. Raises ViewsUnavailable, and OSError."""
        await self._reach_the_events(patience_s)
        return await asyncio.to_thread(self._views.copy_to, path)

    async def lag(self) -> Lag:
        events = max(0, await asyncio.to_thread(self._store.head) - self._views.position)
        return Lag(self._views.position, events, time.monotonic() - self._complete_at if events else 0.0)

    async def reach(self, position: int, patience_s: float = PATIENCE_S) -> None:
        """Returns when the views have the event at `position`. Raises ViewsUnavailable."""
        try:
            async with asyncio.timeout(patience_s):
                while self._views.position < position:
                    moved = self._moved
                    self._wanted.set()
                    if self._views.position < position:
                        await moved.wait()
        except TimeoutError:
            behind = position - self._views.position
            raise ViewsUnavailable(f"The views are {behind:,} events behind. Try again.") from None

    async def _reach_the_events(self, patience_s: float) -> None:
        try:
            head = await asyncio.to_thread(self._store.head)
        except EventStoreUnavailable as error:
            raise ViewsUnavailable(str(error)) from error
        await self.reach(head, patience_s)

    def close(self) -> None:
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _project(self) -> None:
        try:
            while not self._closing:
                folded = self._views.catch_up()
                if folded:
                    self._loop.call_soon_threadsafe(self._announce)
                if folded < BATCH_EVENTS:
                    self._complete_at = time.monotonic()
                    self._wanted.wait(GATHER_S)
                    self._wanted.clear()
        except BaseException as fault:
            self._died(fault)

    def _announce(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
