"""The views process: a named Ray actor that owns the DuckDB file, projects the events into it and answers from there.
Killed, Ray starts it again; it goes on from its position."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

from acs.platform import door, named_actor
from acs.platform.settings import Settings
from acs.platform.views.contract import NAME, Lag, ViewsUnavailable
from acs.platform.views.door import answer
from acs.platform.views.service import ViewsService
from acs.storage.event_store import open_event_store
from acs.storage.views.database import ViewsDatabase

CONCURRENT_CALLS = 1_000

_log = logging.getLogger(__name__)


class ViewsActor:
    """A plain class; `start_views` makes it an actor."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._door: asyncio.Server | None = None
        self._opening = named_actor.Opening("views", self._open)

    async def ready(self) -> None:
        """Returns when the views answer. Raises ViewsUnavailable while they cannot."""
        await self._serving()

    async def usage(self, account_id: str, month: str) -> dict[str, Any]:
        """See `ViewsService.usage`."""
        return await (await self._serving()).usage(account_id, month)

    async def lag(self) -> Lag:
        return await (await self._serving()).lag()

    async def snapshot(self, path: Path) -> int:
        """See `ViewsService.snapshot`; the path is one of this node's."""
        return await (await self._serving()).snapshot(path)

    async def pid(self) -> int:
        return os.getpid()

    async def _serving(self) -> ViewsService:
        try:
            return await self._opening.opened()
        except Exception as fault:
            raise ViewsUnavailable("The views cannot be opened at the moment.") from fault

    async def _open(self) -> ViewsService:
        store = await asyncio.to_thread(open_event_store, self._settings.event_store)
        try:
            views = await asyncio.to_thread(ViewsDatabase, store, self._settings.views)
            service = ViewsService(store, views, end_process)
            self._door = await door.serve(door.listen(self._settings.views_socket), partial(answer, service))
        except Exception:
            store.close()
            raise
        return service


def end_process(fault: BaseException) -> None:
    """Without its projection the process would answer with old rows for ever; Ray starts another one."""
    _log.critical("the projection has ended; so does its process", exc_info=fault)
    os._exit(1)


def start_views(settings: Settings) -> Any:
    """The handle of the views, started on this node if they do not run yet. They may have events to catch up with."""
    return named_actor.start(NAME, ViewsActor, settings, concurrent_calls=CONCURRENT_CALLS)
