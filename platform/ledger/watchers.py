"""Who holds a copy of the keys, how old it may be, and when a change is known everywhere.

Each ingress asks again and again for what is new and says which version it has; asking takes out a lease. A command
that changes a key is answered only when `seen_by_all` returns, so "revoked" is true on every ingress from then on:

- An ingress that asks with the change's version has applied it.
- An ingress that no longer asks (dead, cut off, stopped) stops trusting its copy `lease_s` after it *sent* the last
  ask that was answered. Here its lease runs from when that ask, or a later one, was *received*, which is not earlier,
  so it has stopped before we forget it. `DRIFT` covers two machines' clocks that run at different rates.
- A ledger that has just started does not know who asked its predecessor. All those asks were received before it
  started, so for one lease from its start nobody can be said to have seen a change; unless the store was empty then,
  so that there was nothing to hold a copy of.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from acs.platform.clock import Clock

DRIFT = 1.01
POLLS_PER_LEASE = 6  # an answer of "nothing new" renews the lease early enough that a slow one does no harm
GIVE_UP_LEASES = 5  # for an ingress that keeps asking and never has the change: a bug, not a death


@dataclass(slots=True)
class _Watcher:
    version: int  # the newest it has said it has
    leased_until: float


class Watchers:
    """Lives on the ledger's event loop."""

    def __init__(self, lease_s: float, clock: Clock, *, former_copies: bool) -> None:
        self._lease_s = lease_s * DRIFT
        self._poll_s = lease_s / POLLS_PER_LEASE
        self._clock = clock
        self._watchers: dict[str, _Watcher] = {}
        self._unknown_until = clock.now() + self._lease_s if former_copies else clock.now()
        self._asked = asyncio.Event()  # each is set once, then replaced: whoever waits on it wakes
        self._announced = asyncio.Event()

    def asked(self, ingress_id: str, version: int) -> None:
        """`version` is -1 for an ingress that has no copy of this ledger's."""
        watcher = self._watchers.setdefault(ingress_id, _Watcher(version, 0.0))
        watcher.version = max(watcher.version, version)  # an ask delivered twice, or late, takes nothing back
        watcher.leased_until = self._clock.now() + self._lease_s
        self._asked.set()
        self._asked = asyncio.Event()

    def announce(self) -> None:
        """The ledger has a new version: every poll is answered now."""
        self._announced.set()
        self._announced = asyncio.Event()

    async def poll(self) -> None:
        """Returns at the next announcement, or when it is time to answer "nothing new"."""
        await self._clock.wait(self._announced, self._poll_s)

    async def seen_by_all(self, version: int) -> None:
        """Returns when no ingress can hold a copy older than `version`. Raises ChangeNotSeen."""
        give_up_at = self._clock.now() + GIVE_UP_LEASES * self._lease_s
        while (wait_until := self._waiting_until(version)) is not None:
            if self._clock.now() >= give_up_at:
                raise ChangeNotSeen("The change is stored, but an API server has not confirmed it. Repeat the command.")
            await self._clock.wait(self._asked, min(wait_until, give_up_at) - self._clock.now())

    def _waiting_until(self, version: int) -> float | None:
        """When the first of the leases that stand in the way ends; None when none does."""
        now = self._clock.now()
        self._watchers = {id: watcher for id, watcher in self._watchers.items() if watcher.leased_until > now}
        ends = [watcher.leased_until for watcher in self._watchers.values() if watcher.version < version]
        if self._unknown_until > now:
            ends.append(self._unknown_until)
        return min(ends, default=None)


class ChangeNotSeen(Exception):
    """The events are on disk; an ingress keeps asking without ever having them."""
