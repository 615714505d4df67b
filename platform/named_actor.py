"""A process of which the server has one: a named Ray actor beside its disk, started again whenever it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

NAMESPACE = "acs"
REOPEN_PAUSE_S = 1.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Opening(Generic[T]):
    """What an actor serves with, opened behind its back and tried again for ever: raising from `__init__` would end the
    actor for good, where a full disk is soon emptied. To be made on the actor's loop, in its `__init__`.
    """

    def __init__(self, name: str, open: Callable[[], Awaitable[T]]) -> None:
        self._name = name
        self._open = open
        self._opened: T | None = None
        self._fault: Exception | None = None
        self._tried = asyncio.Event()  # the first attempt has ended, well or not
        self._trying = asyncio.get_running_loop().create_task(self._try())

    async def opened(self) -> T:
        """Raises what the latest attempt failed with while it is not open."""
        await self._tried.wait()
        if self._opened is None:
            raise self._fault or RuntimeError(f"the {self._name} has not started")
        return self._opened

    async def _try(self) -> None:
        while self._opened is None:
            try:
                self._opened = await self._open()
            except Exception as fault:
                self._fault = fault
                _log.error("the %s cannot start: %s", self._name, type(fault).__name__)
            self._tried.set()
            if self._opened is None:
                await asyncio.sleep(REOPEN_PAUSE_S)


def start(name: str, kind: type[Any], *arguments: Any, concurrent_calls: int) -> Any:
    """The handle of the actor `name`; built from `kind` on this node if it does not run yet. Ray must run.

    Calls in flight when it dies are made again, so that each may be delivered twice.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": concurrent_calls,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),  # its disk is here
    }
    return ray.remote(kind).options(**options).remote(*arguments)


def find(name: str) -> Any:
    """Its handle. Raises ValueError when it does not run."""
    import ray

    return ray.get_actor(name, namespace=NAMESPACE)
