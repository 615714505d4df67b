"""The operator's commands, one at a time on the writer's thread, and the watchers that must see them. No Ray."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from acs.platform.clock import Clock
from acs.platform.ledger.accounts import Accounts
from acs.platform.ledger.contract import KeyChanges
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.watchers import Watchers

T = TypeVar("T")


class LedgerService:
    def __init__(self, accounts: Accounts, desk: Desk, writer: Executor, lease_s: float, clock: Clock) -> None:
        """`writer`: one thread, so that a caller that goes away cannot let a second command in beside its own."""
        self.accounts = accounts
        self._desk = desk
        self.epoch = uuid.uuid4().hex  # versions of one run say nothing about a store that was replaced since
        self._watchers = Watchers(lease_s, clock, former_copies=accounts.version > 0)
        self._writer = writer

    async def change(self, command: Callable[[], T]) -> T:
        """Runs a command of the Accounts. Returns when it is on disk and no ingress holds an older copy.

        A command that finds its work already done waits too: what it confirms must be true everywhere. Raises what
        the command raises, and ChangeNotSeen.
        """
        running = asyncio.get_running_loop().run_in_executor(self._writer, command)
        running.add_done_callback(lambda _: self._watchers.announce())
        result = await asyncio.shield(running)  # shielded: the announcement must not depend on who still listens
        await self._watchers.seen_by_all(self.accounts.version)
        return result

    async def note_budgets(self, account_id: str) -> None:
        """After a change of standing budgets: returns when this month's Ledger has them too."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._desk.note_budgets(account_id, lambda: stored.set_result(None))
        await stored

    async def watch(self, ingress_id: str, epoch: str | None, version: int) -> KeyChanges:
        """What changed since `version` of `epoch`; everything, if that is not this run's. When there is nothing new,
        answers so after a fraction of the lease. Asking again with a version confirms that it has been applied.
        """
        if epoch != self.epoch:
            self._watchers.asked(ingress_id, version=-1)
            now, keys = self.accounts.table.everything()
            return KeyChanges(self.epoch, now, whole=True, keys=keys)
        self._watchers.asked(ingress_id, version)
        if self.accounts.version <= version:
            await self._watchers.poll()
        now, keys = self.accounts.table.changes_since(version)
        return KeyChanges(self.epoch, now, whole=False, keys=keys)
