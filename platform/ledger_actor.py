"""The ledger process: a named Ray actor that owns the event store, lets requests in and out, answers the ingresses'
watches, and listens to the operator. Killed, Ray starts it again; it reads its log and goes on. It kills itself when a
commit fails: what it remembers is then not what is on disk, and there is one way to read the disk, the start's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from acs.platform import named_actor
from acs.platform.catalogue import Catalogue
from acs.platform.clock import MonotonicClock
from acs.platform.frames import own_address
from acs.platform.ledger import admin
from acs.platform.ledger.accounts import Accounts
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import KeyChanges
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.front import Front
from acs.platform.ledger.harvest_desk import HarvestDesk
from acs.platform.ledger.job_desk import JobDesk
from acs.platform.ledger.job_runs import JobRuns
from acs.platform.ledger.local_key import ensure_local_key
from acs.platform.ledger.loom_desk import LoomDesk
from acs.platform.ledger.looms import Looms
from acs.platform.ledger.memory import Memory, recall
from acs.platform.ledger.service import LedgerService
from acs.platform.ledger.traffic import Traffic
from acs.platform.ledger.waits import Waits
from acs.platform.settings import Settings
from acs.platform.wiring import answers_of, harvest_plans_of, job_blobs_of, loom_blobs_of
from acs.storage.blobs import Blobs
from acs.storage.event_store import open_event_store

NAME = "ledger"
CONCURRENT_CALLS = 10_000  # each ingress keeps one watch open
SWEEP_PAUSE_S = 600.0
UNTOLD_S = 86_400.0  # no Branch runs as long, and no ledger is away as long


class LedgerActor:
    """A plain class; `start_ledger` makes it an actor."""

    def __init__(self, settings: Settings, catalogue: Catalogue) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._secret = secrets.token_hex(32)  # of this life: only who may ask the actor learns it
        self._door: asyncio.Server | None = None
        self._opening = named_actor.Opening("ledger", self._open)

    async def ready(self) -> None:
        """Returns when the ledger serves. Raises EventStoreUnavailable or OSError while it cannot."""
        await self._opening.opened()

    async def watch(self, ingress_id: str, epoch: str | None, version: int) -> KeyChanges:
        """See `LedgerService.watch`. May be delivered twice."""
        return await (await self._opening.opened()).watch(ingress_id, epoch, version)

    async def endpoint(self) -> tuple[str, int, str]:
        """(host, port, secret): where an ingress opens its link."""
        await self._opening.opened()
        return self._endpoint

    async def ensure_local_key(self, base_url: str) -> None:
        """Writes `$ACS_DATA/env`; answers nothing, so that the key stays there. May be delivered twice."""
        service = await self._opening.opened()
        await service.change(lambda: ensure_local_key(service.accounts, self._settings.env_file, base_url))

    async def pid(self) -> int:
        return os.getpid()

    async def _open(self) -> LedgerService:
        settings = self._settings
        store = await asyncio.to_thread(open_event_store, settings.event_store)
        try:
            store.claim()
            prices = {model.id: model.price for model in self._catalogue.values()}
            memory = await asyncio.to_thread(recall, store, settings.ledger_checkpoint, prices)
            return await self._serve(memory)
        except Exception:
            store.close()
            raise

    async def _serve(self, memory: Memory) -> LedgerService:
        """The one place where the ledger's parts are put together."""
        limits, clock = self._settings.limits, MonotonicClock()
        door = admin.listen(self._settings.admin_socket)  # first: it may fail, and all is tried again
        writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        slots = {model.id: model.slots for model in self._catalogue.values()}
        commits = Commits(memory.storing, writer, _end)
        traffic = Traffic(limits, slots, clock)
        desk = Desk(memory, traffic, commits, _now)
        jobs, plans = job_blobs_of(self._settings), harvest_plans_of(self._settings)
        looms = loom_blobs_of(self._settings)
        loop = asyncio.get_running_loop()

        def erasing(*folders: Blobs) -> Callable[[str], None]:
            def erase(sha256: str) -> None:
                for blobs in folders:  # wherever it is
                    loop.run_in_executor(None, blobs.erase, sha256)  # a busy disk takes 3 ms for it

            return erase

        runs = JobRuns(desk, memory, traffic, commits, limits, clock, _now, erasing(jobs, looms))
        job_desk = JobDesk(desk, runs, memory, traffic, commits, limits, _now, erasing(jobs))
        harvest_desk = HarvestDesk(desk, memory, traffic, commits, limits, clock, _now, erasing(plans))
        waits = Waits(clock, limits.key_loom_waits, limits.platform_loom_waits)
        loom_desk = LoomDesk(desk, runs, memory, traffic, commits, waits, limits, _now, erasing(looms))
        service = LedgerService(Accounts(memory.store, memory.table), desk, writer, limits.key_lease_s, clock)
        front = Front(desk, job_desk, harvest_desk, loom_desk, limits.owner_lease_s, clock)
        host = own_address()
        self._endpoint = host, await front.listen(host, self._secret), self._secret
        self._tending = asyncio.create_task(front.tend())
        self._sweeping = asyncio.create_task(_sweep(answers_of(self._settings), jobs, plans))
        self._sweeping_looms = asyncio.create_task(_sweep_looms(looms, memory.looms))
        self._door = await admin.serve(door, service)
        return service


async def _sweep(*folders: Blobs) -> None:
    """For ever: erase what nobody can ask for again."""
    while True:
        for blobs in folders:
            await asyncio.to_thread(blobs.sweep)
        await asyncio.sleep(SWEEP_PAUSE_S)


async def _sweep_looms(blobs: Blobs, looms: Looms) -> None:
    """For ever: erase what was written for a Loom that was never told of it, such as by a runner that died."""
    while True:
        await asyncio.sleep(SWEEP_PAUSE_S)
        await asyncio.to_thread(blobs.sweep_others, looms.addresses(), UNTOLD_S)


def _now() -> datetime:
    return datetime.now(UTC)


def _end(fault: Exception) -> None:
    """Ray starts another, whose memory is what is on disk."""
    traceback.print_exception(fault)
    os._exit(1)


def start_ledger(settings: Settings, catalogue: Catalogue) -> Any:
    """The handle of the ledger, started on this node if it does not run yet, once it serves.

    Raises EventStoreUnavailable or OSError when it cannot; it then goes on trying. Ray must have been started.
    """
    import ray

    handle = named_actor.start(NAME, LedgerActor, settings, catalogue, concurrent_calls=CONCURRENT_CALLS)
    try:
        ray.get(handle.ready.remote())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return handle


def find_ledger() -> Any:
    """The handle of the running ledger. Raises ValueError when there is none."""
    return named_actor.find(NAME)
