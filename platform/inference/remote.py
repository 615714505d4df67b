"""A model as an ingress sees it: an Engine whose replicas run in other processes, perhaps on other hosts.

Which replicas run is Serve's knowledge: `directory` asks for it (in production `DeploymentHandle.broadcast`, see
`acs.serve_apps.api.ingress`). The pool keeps one connection to each and gives a request to the one with the fewest
unfinished choices of ours, or to one that has read the beginning of its prompt and is not much busier. A connection
that breaks fails its requests at once, by the contract's word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from acs.platform.inference import wire
from acs.platform.inference.affinity import Affinity
from acs.platform.inference.contract import Delta, EngineStatus, Failed, Generate, Piece, Sink

log = logging.getLogger("ray.serve")

Address = tuple[str, int]
Directory = Callable[[], Awaitable[dict[Address, EngineStatus]]]  # the replicas that run; raises when it cannot tell
Wake = Callable[[], Awaitable[None]]  # returns when a replica runs

REFRESH_S = 1.0  # how often the directory is asked; a new replica gets its first request within this time
DEAD = Failed("vllm_engine_dead", "The model's engine has died and is being replaced. Send the request again.")
UNREACHABLE = Failed("upstream_unreachable", "No replica of the model can be reached. Send the request again.")


@dataclass(slots=True)
class _Running:
    request: Generate
    sink: Sink
    unfinished: int
    replica: _Replica | None = None


@dataclass(slots=True, eq=False)
class _Replica:
    address: Address
    link: wire.FrameProtocol
    running: dict[str, _Running] = field(default_factory=dict)
    choices: int = 0


class RemoteEngine:
    """`scales_to_zero`: with no replica a request waits for one to wake, however long its own deadline allows.
    Otherwise a model without a replica is a fault: the request fails, retryable, while Serve starts another.
    """

    def __init__(self, directory: Directory, wake: Wake, secret: str, *, scales_to_zero: bool) -> None:
        self._directory = directory
        self._wake = wake
        self._secret = secret
        self._scales_to_zero = scales_to_zero
        self._replicas: dict[Address, _Replica] = {}
        self._waiting: dict[str, _Running] = {}  # for a replica to wake
        self._requests: dict[str, _Running] = {}
        self._known: dict[Address, EngineStatus] = {}
        self._affinity: Affinity[Address] = Affinity()
        self._had_replica = False
        self._refreshing = asyncio.Lock()
        self._waking: asyncio.Task[None] | None = None

    # -- the seam

    def submit(self, request: Generate, sink: Sink) -> None:
        running = _Running(request, sink, len(request.prompts) * request.n)
        self._requests[request.request_id] = running
        if self._replicas:
            self._give(running, self._chosen(request))
        elif self._scales_to_zero:
            self._waiting[request.request_id] = running
            if self._waking is None:
                self._waking = asyncio.create_task(self._wake_up())
        else:
            failed = DEAD if self._had_replica else UNREACHABLE
            asyncio.get_running_loop().call_soon(self._fail, running, failed)

    def abort(self, request_id: str) -> None:
        running = self._requests.get(request_id)
        if running is None:
            return
        if running.replica is not None:
            running.replica.link.send(wire.Abort(request_id))
            return
        del self._requests[request_id]
        self._waiting.pop(request_id, None)
        for index in range(running.unfinished):
            running.sink(Delta(index, [], [], None, "abort"))

    def status(self) -> EngineStatus:
        """`running` is what the engines counted at the last look, up to a second ago."""
        if self._replicas:
            return EngineStatus("live", sum(status.running for status in self._known.values()))
        return EngineStatus("cold" if self._scales_to_zero else "down")

    # -- replicas

    async def follow(self) -> None:
        """Keep the pool equal to the directory, for ever. Owned by the ingress."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_S)

    async def refresh(self) -> None:
        async with self._refreshing:
            try:
                self._known = await self._directory()
            except Exception as error:  # Serve's controller may be restarting: what we know stays in use
                log.warning("Cannot list the model's replicas: %s: %s", type(error).__name__, error)
                return
            new = self._known.keys() - self._replicas.keys()
            await asyncio.gather(*map(self._connect, new))  # at once: a dead host must not delay the living
            for address in self._replicas.keys() - self._known.keys():
                replica = self._replicas.pop(address)  # takes no more; what it runs may end
                if not replica.running:
                    replica.link.close()

    async def _connect(self, address: Address) -> None:
        try:
            link = await wire.connect(*address, self._secret, self._on_pieces, self._on_lost)
        except (OSError, TimeoutError) as error:
            log.warning("A replica that Serve lists cannot be reached: %s", error)
            return
        if link.lost:  # between the handshake and now
            return
        replica = _Replica(address, link)
        self._replicas[address] = link.owner = replica
        self._had_replica = True
        waiting, self._waiting = self._waiting, {}
        for running in waiting.values():
            self._give(running, replica)

    async def _wake_up(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._wake()
                except Exception as error:
                    log.warning("A cold model does not wake: %s: %s", type(error).__name__, error)
                await self.refresh()
                if self._waiting:
                    await asyncio.sleep(REFRESH_S)
        finally:
            self._waking = None

    # -- requests

    def _chosen(self, request: Generate) -> _Replica:
        in_hand = {address: replica.choices for address, replica in self._replicas.items()}
        return self._replicas[self._affinity.choose(request.prompts[0], in_hand)]

    def _give(self, running: _Running, replica: _Replica) -> None:
        running.replica = replica
        replica.running[running.request.request_id] = running
        replica.choices += running.unfinished
        replica.link.send(wire.Submit(running.request))

    def _on_pieces(self, link: wire.FrameProtocol, pieces: wire.Pieces) -> None:
        replica: _Replica = link.owner
        for request_id, piece in pieces:
            running = replica.running.get(request_id)
            if running is not None:
                self._account(running, replica, piece)
                running.sink(piece)
        if not replica.running and self._replicas.get(replica.address) is not replica:
            link.close()

    def _account(self, running: _Running, replica: _Replica, piece: Piece) -> None:
        if isinstance(piece, Failed):
            replica.choices -= running.unfinished
            running.unfinished = 0
        elif isinstance(piece, Delta) and piece.finish_reason is not None:
            replica.choices -= 1
            running.unfinished -= 1
        if running.unfinished == 0:
            del replica.running[running.request.request_id]
            self._requests.pop(running.request.request_id, None)

    def _on_lost(self, link: wire.FrameProtocol) -> None:
        replica: _Replica | None = link.owner
        if replica is None:
            return
        if self._replicas.get(replica.address) is replica:  # not another that listens there now
            del self._replicas[replica.address]
            self._known.pop(replica.address, None)
        for running in list(replica.running.values()):
            self._fail(running, DEAD)
        replica.running.clear()

    def _fail(self, running: _Running, failed: Failed) -> None:
        if self._requests.pop(running.request.request_id, None) is not None:
            running.sink(failed)
