"""The ledger as a Job's run sees it: its Hold has been placed already, and is resolved by whoever ends the Job."""

from __future__ import annotations

import asyncio

from acs.events.hold import HoldStatus
from acs.platform.ledger.contract import Granted, Open, Release, Reply, Resolved, Settle


class HeldAlready:
    """Given to one `acs.platform.completions.road.Run` in the ledger's place."""

    def __init__(self, max_tokens: int) -> None:
        """`max_tokens`: of one choice, as they were held."""
        self._max_tokens = max_tokens
        self.resolution: asyncio.Future[Settle | Release] = asyncio.get_running_loop().create_future()

    def open(self, order: Open) -> asyncio.Future[Reply]:
        return _done(Granted(order.hold_id, self._max_tokens))

    def resolve(self, command: Settle | Release) -> asyncio.Future[Reply]:
        self.resolution.set_result(command)
        settled = isinstance(command, Settle)
        return _done(Resolved(command.hold_id, HoldStatus.SETTLED if settled else HoldStatus.RELEASED))

    def withdraw(self, order: Open, reason: str) -> None:
        """Nothing was opened."""


def _done(reply: Reply) -> asyncio.Future[Reply]:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    future.set_result(reply)
    return future
