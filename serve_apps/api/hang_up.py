"""Noticing that a client has hung up, so that the engine stops at once and not when the answer would be ready."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import Receive

from acs.platform.completions.road import ClientGone, Run


class interrupting:
    """While inside, a hang-up interrupts the run. The body must have been read: what comes next is the disconnect.

    The proxy middleware tells Serve to hand us the client's own `receive`, without a task of Serve's in between.
    """

    def __init__(self, request: Request, run: Run) -> None:
        self._receive = request.receive
        self._run = run

    async def __aenter__(self) -> asyncio.Future[None]:
        """Returns what is done once the client has gone."""
        self._watch = asyncio.ensure_future(_until_gone(self._receive))
        self._watch.add_done_callback(self._gone)
        return self._watch

    async def __aexit__(self, *_: object) -> None:
        self._watch.remove_done_callback(self._gone)
        self._watch.cancel()

    def _gone(self, watch: asyncio.Future[None]) -> None:
        self._run.interrupt(ClientGone())


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
