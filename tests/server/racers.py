"""Clients that treat a ledger badly: they say things twice, lose their line, come back late or not at all, resolve a
Hold in two ways, and run budgets dry. What they were told is kept, to be compared with the event log.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from acs.events.ids import HOLD, show, uuid7
from acs.platform.errors import ApiError
from acs.platform.frames import FrameProtocol
from acs.platform.ledger.client import LedgerClient, Link
from acs.platform.ledger.contract import Command, Granted, Open, Refusal, Release, Reply, Resolved, Settle

RACERS = 24  # at a time
AT_ONCE = 6  # requests of a racer
AWAY_S = 1.2  # longer than the lease of an owner and a turn of the ledger's watch over it


@dataclass
class Told:
    """What all of them said and heard."""

    commands: int = 0  # each copy that was sent
    orders: dict[str, Open] = field(default_factory=dict)
    granted: dict[str, int] = field(default_factory=dict)  # Hold id → max_tokens
    resolved: dict[str, set[str]] = field(default_factory=dict)  # Hold id → each status it was said to have
    kinds: Counter[str] = field(default_factory=Counter)


class Race:
    def __init__(
        self,
        endpoint: Callable[[], Awaitable[tuple[str, int, str]]],
        keys: list[tuple[str, str]],
        models: list[str],
        seed: int,
    ) -> None:
        """`keys`: (account id, key id)."""
        self.endpoint = endpoint
        self.keys = keys
        self.models = models
        self.chance = random.Random(seed)
        self.told = Told()

    async def run(self, commands: int) -> None:
        """Racers come and go until so many commands have been sent. The last of them vanish too."""

        async def lane() -> None:
            while self.told.commands < commands:
                await Racer(self).live(requests=self.chance.randint(20, 200), until=commands)

        await asyncio.gather(*(lane() for _ in range(RACERS)))


class Racer(LedgerClient):
    """One ingress: it lives for so many requests, then is gone, whatever it was at."""

    def __init__(self, race: Race) -> None:
        super().__init__(self._next_endpoint)
        self._race = race
        self._chance = race.chance
        self._told = race.told
        self._away_s = 0.0
        self._frames: FrameProtocol | None = None

    async def live(self, requests: int, until: int) -> None:
        following = asyncio.create_task(self.follow())
        asking: set[asyncio.Task[None]] = set()
        for _ in range(requests):
            if self._told.commands >= until:
                break
            asking.add(asyncio.create_task(self._request()))
            if len(asking) >= AT_ONCE:
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            self._perhaps_lose_the_line()
        for task in (following, *asking):
            task.cancel()
        await asyncio.gather(following, *asking, return_exceptions=True)
        if self._frames is not None:
            self._frames.close()

    async def _request(self) -> None:
        """One request, and the ways in which it can end."""
        order = self._order()
        self._told.orders[order.hold_id] = order
        opening = self.open(order)
        if self._chance.random() < 0.03:  # the client hangs up while it waits, or just as it is let in
            await asyncio.wait([opening], timeout=self._chance.random() * 0.02)
            opening.cancel()
            return self.withdraw(order, "client_gone")
        try:
            granted = await opening
        except ApiError as refusal:
            self._told.kinds[refusal.code or "unavailable"] += 1
            return
        assert isinstance(granted, Granted)
        if self._chance.random() < 0.1:
            await asyncio.sleep(self._chance.random() * 0.03)
        settle = self._settlement(order, granted.max_tokens)
        release = Release(order.hold_id, order.account_id, "vllm_engine_dead", 502)
        wrong = Settle(
            order.hold_id, order.account_id, order.prompt_tokens, order.choices * granted.max_tokens + 1, 200
        )
        ends = [[settle], [release], [settle, settle], [settle, release], [release, settle], [wrong], [wrong, settle]]
        for end in self._chance.choices(ends, (80, 8, 3, 3, 3, 1, 1))[0]:
            await self.resolve(end)

    def _order(self) -> Open:
        account_id, key_id = self._chance.choice(self._race.keys)
        hold_id = show(HOLD, uuid7())
        return Open(
            hold_id=hold_id,
            account_id=account_id,
            key_id=key_id,
            request_id=hold_id[-16:],
            model=self._chance.choice(self._race.models),
            kind="completion",
            user=None,
            prompt_tokens=self._chance.randint(1, 30),
            choices=self._chance.randint(1, 3),
            max_tokens=self._chance.randint(4, 40),
            min_tokens=self._chance.randint(0, 4),
            clamp=self._chance.random() < 0.8,
        )

    def _settlement(self, order: Open, max_tokens: int) -> Settle:
        made = self._chance.choice([0, order.choices * max_tokens, self._chance.randint(0, order.choices * max_tokens)])
        return Settle(order.hold_id, order.account_id, order.prompt_tokens, made, self._chance.choice([200, None]))

    # The line

    def attach(self, link: Link) -> None:
        assert isinstance(link, FrameProtocol)
        self._frames = link
        super().attach(Stutter(link, self._chance, self._told))

    def take(self, replies: Iterable[Reply]) -> None:
        replies = list(replies)
        for reply in replies:
            self._told.kinds[type(reply).__name__] += 1
            if isinstance(reply, Granted):
                assert self._told.granted.setdefault(reply.hold_id, reply.max_tokens) == reply.max_tokens
            elif isinstance(reply, Resolved):
                self._told.resolved.setdefault(reply.hold_id, set()).add(reply.status)
            elif isinstance(reply, Refusal):
                assert reply.hold_id not in self._told.granted, reply
        super().take(replies)

    def _perhaps_lose_the_line(self) -> None:
        if self._frames is not None and self._chance.random() < 0.015:
            self._away_s = self._chance.choice([0.0, AWAY_S])
            self._frames.close()

    async def _next_endpoint(self) -> tuple[str, int, str]:
        await asyncio.sleep(self._away_s)
        self._away_s = 0.0
        return await self._race.endpoint()


class Stutter:
    """A line on which a command may arrive more than once."""

    def __init__(self, link: FrameProtocol, chance: random.Random, told: Told) -> None:
        self._link = link
        self._chance = chance
        self._told = told

    def send(self, item: Command) -> None:
        for _ in range(self._chance.choices((1, 2, 3), (90, 8, 2))[0]):
            self._told.commands += 1
            self._link.send(item)
