"""The ledger process: a named Ray actor that owns the event store, answers the ingresses' watches, and listens to the
operator. Killed, Ray starts it again; it reads its log and goes on."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from acs.platform.clock import MonotonicClock
from acs.platform.ledger import admin
from acs.platform.ledger.contract import KeyChanges
from acs.platform.ledger.ledger import Ledger
from acs.platform.ledger.local_key import ensure_local_key
from acs.platform.ledger.service import LedgerService
from acs.platform.settings import Settings
from acs.storage.event_store import open_event_store

NAME, NAMESPACE = "ledger", "acs"
CONCURRENT_CALLS = 10_000  # each ingress keeps one watch open
REOPEN_PAUSE_S = 1.0

_log = logging.getLogger(__name__)


class LedgerActor:
    """A plain class; `start_ledger` makes it an actor. A store that cannot be opened is tried again for ever: raising
    from `__init__` would end the actor for good, where a full disk is soon emptied.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._service: LedgerService | None = None
        self._fault: Exception | None = None
        self._tried = asyncio.Event()  # the first attempt has ended, well or not
        self._door: asyncio.Server | None = None
        self._starting = asyncio.get_running_loop().create_task(self._start())  # Ray builds us on our own loop

    async def ready(self) -> None:
        """Returns when the ledger serves. Raises EventStoreUnavailable or OSError while it cannot."""
        await self._serving()

    async def watch(self, ingress_id: str, epoch: str | None, version: int) -> KeyChanges:
        """See `LedgerService.watch`. May be delivered twice."""
        return await (await self._serving()).watch(ingress_id, epoch, version)

    async def ensure_local_key(self, base_url: str) -> None:
        """Writes `$ACS_DATA/env`; answers nothing, so that the key stays there. May be delivered twice."""
        service = await self._serving()
        await service.change(lambda: ensure_local_key(service.ledger, self._settings.env_file, base_url))

    async def pid(self) -> int:
        return os.getpid()

    async def _serving(self) -> LedgerService:
        await self._tried.wait()
        if self._service is None:
            raise self._fault or RuntimeError("the ledger has not started")
        return self._service

    async def _start(self) -> None:
        while self._service is None:
            try:
                self._service = await self._open()
            except Exception as fault:
                self._fault = fault
                _log.error("the ledger cannot start: %s", type(fault).__name__)
            self._tried.set()
            if self._service is None:
                await asyncio.sleep(REOPEN_PAUSE_S)

    async def _open(self) -> LedgerService:
        store = await asyncio.to_thread(open_event_store, self._settings.event_store)
        try:
            ledger = await asyncio.to_thread(Ledger, store)
            service = LedgerService(ledger, self._settings.limits.key_lease_s, MonotonicClock())
            self._door = await admin.serve(admin.listen(self._settings.admin_socket), service)
        except Exception:
            store.close()
            raise
        return service


def start_ledger(settings: Settings) -> Any:
    """The handle of the ledger, started on this node if it does not run yet, once it serves.

    Raises EventStoreUnavailable or OSError when it cannot; it then goes on trying. Ray must have been started.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    handle = (
        ray.remote(LedgerActor)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=CONCURRENT_CALLS,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),  # its disk is here
        )
        .remote(settings)
    )
    try:
        ray.get(handle.ready.remote())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return handle


def find_ledger() -> Any:
    """The handle of the running ledger. Raises ValueError when there is none."""
    import ray

    return ray.get_actor(NAME, namespace=NAMESPACE)
