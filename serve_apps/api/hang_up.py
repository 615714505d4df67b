"""Noticing that a client has hung up, so that the engine stops at once and not when the answer would be ready."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from acs.platform.completions.charge import ClientGone
from acs.platform.completions.road import Run

T = TypeVar("T")


@contextmanager
def interrupting(request: Request, run: Run) -> Iterator[asyncio.Future[None]]:
    """While inside, a hang-up interrupts the run; gives what is done once the client has gone.

    The body must have been read: what comes next is the disconnect. The proxy middleware tells Serve to hand us the
    client's own `receive`, without a task of Serve's in between.
    """
    watch = asyncio.ensure_future(until_gone(request.receive))

    def interrupt(_: object) -> None:
        run.interrupt(ClientGone())

    watch.add_done_callback(interrupt)
    try:
        yield watch
    finally:
        watch.remove_done_callback(interrupt)
        watch.cancel()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. Raises ClientGone, and cancels it, when the client hangs up first."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone()
    finally:
        gone.cancel()
        working.cancel()


async def until_gone(receive: Receive) -> None:
    """Returns when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
