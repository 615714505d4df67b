"""Where the links of the ingresses and of the runner end: their commands go to the desks, the answers back, and each
has a lease.

An ingress keeps one link open for as long as it lives. A process that dies closes its link at once; its requests are
given up when the link has been away for a lease, so that a short cut of the line, or the ledger's own restart, costs
nobody anything.
"""

from __future__ import annotations

import asyncio

import msgspec

from acs.platform import frames
from acs.platform.clock import Clock
from acs.platform.frames import FrameProtocol
from acs.platform.ledger.contract import INGRESS, RUNNER, Command
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.harvest_contract import HarvestCommand
from acs.platform.ledger.harvest_desk import HarvestDesk
from acs.platform.ledger.job_contract import JobCommand, Offer
from acs.platform.ledger.job_desk import JobDesk
from acs.platform.ledger.loom_contract import LoomCommand
from acs.platform.ledger.loom_desk import LoomDesk

TEND_S = 0.5

_commands = msgspec.msgpack.Decoder(list[Command | JobCommand | HarvestCommand | LoomCommand])


class Front:
    def __init__(
        self,
        desk: Desk,
        job_desk: JobDesk,
        harvest_desk: HarvestDesk,
        loom_desk: LoomDesk,
        lease_s: float,
        clock: Clock,
    ) -> None:
        self._desk = desk
        self._job_desk = job_desk
        self._harvest_desk = harvest_desk
        self._loom_desk = loom_desk
        self._lease_s = lease_s
        self._clock = clock
        self._links: dict[str, FrameProtocol] = {}
        self._missing: dict[str, float] = {}  # owners without a link, since when

    async def listen(self, host: str, secret: str) -> int:
        """Returns the port."""
        callbacks = (self._on_commands, self._on_lost, self._on_peer)
        self._server, port = await frames.listen(host, secret, _commands, *callbacks)
        return port

    @property
    def links(self) -> int:
        """How many ingresses are linked."""
        return len(self._links)

    def close(self) -> None:
        """Listen no more and cut every link off."""
        self._server.close()
        for link in list(self._links.values()):
            link.close()

    async def tend(self) -> None:
        """For ever: give up what vanished, refuse what waited too long."""
        while True:
            await self._clock.wait(asyncio.Event(), TEND_S)
            self.look_after()

    def look_after(self) -> None:
        now = self._clock.now()
        owners = {owner for owner in self._desk.owners() if owner.startswith(INGRESS)}
        self._missing = {owner: self._missing.get(owner, now) for owner in owners if owner not in self._links}
        for owner, since in self._missing.items():
            if now - since >= self._lease_s:
                self._desk.give_up(owner)
        self._desk.refuse_overdue()
        self._job_desk.look_after()
        self._harvest_desk.look_after()
        self._loom_desk.look_after()

    def _on_peer(self, link: FrameProtocol, name: str) -> None:
        link.owner = name
        former = self._links.get(name)
        self._links[name] = link
        if former is not None:  # what still lies in it unread has been sent again on the new one
            former.close()
        if name.startswith(RUNNER):
            self._job_desk.runner_came(name, link.send)
            self._harvest_desk.runner_came(name, link.send)

    def _on_commands(
        self, link: FrameProtocol, commands: list[Command | JobCommand | HarvestCommand | LoomCommand]
    ) -> None:
        for command in commands:
            if isinstance(command, JobCommand):
                self._job_desk.handle(link.owner, command, link.send)
                if isinstance(command, Offer):
                    self._harvest_desk.offers(link.owner, command.models)
            elif isinstance(command, HarvestCommand):
                self._harvest_desk.handle(link.owner, command, link.send)
            elif isinstance(command, LoomCommand):
                self._loom_desk.handle(link.owner, command, link.send)
            else:
                self._desk.handle(link.owner, command, link.send)

    def _on_lost(self, link: FrameProtocol) -> None:
        if self._links.get(link.owner) is link:
            del self._links[link.owner]
            if link.owner.startswith(RUNNER):
                self._job_desk.runner_left(link.owner)
                self._harvest_desk.runner_left(link.owner)
