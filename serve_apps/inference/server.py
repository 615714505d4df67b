"""The replica's end of the wire: takes requests off connections, gives them to the Engine, sends the Pieces back."""

from __future__ import annotations

import asyncio

from acs.platform.inference import wire
from acs.platform.inference.contract import Captured, Delta, Engine, Failed, FullVocabularyRows, Piece, Sink


class EngineServer:
    """Serves one Engine to any number of ingresses. A connection that ends takes its requests with it: nobody is left
    to read them, and the engine must not go on generating for nobody.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: dict[wire.FrameProtocol, dict[str, int]] = {}  # connection -> request id -> choices unfinished
        self._bulk: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._idle: asyncio.Event | None = None  # once draining

    async def start(self, host: str, secret: str) -> int:
        """Returns the port."""
        self._server, port = await wire.listen(host, secret, self._on_commands, self._on_lost)
        return port

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return sum(map(len, self._running.values()))

    def _on_commands(self, peer: wire.FrameProtocol, commands: list[wire.Command]) -> None:
        mine = self._running.setdefault(peer, {})
        for command in commands:
            if isinstance(command, wire.Submit):
                request = command.request
                mine[request.request_id] = len(request.prompts) * request.n
                bulk: asyncio.Queue[Piece] | None = None
                if request.prompt_logprobs == -1 or request.capture:  # much may follow: at the peer's own pace
                    bulk = asyncio.Queue()
                    task = asyncio.create_task(self._send_in_order(peer, request.request_id, bulk))
                    self._bulk.add(task)
                    task.add_done_callback(self._bulk.discard)
                self._engine.submit(request, self._sink(peer, request.request_id, bulk))
            elif isinstance(command, wire.Abort):
                self._engine.abort(command.request_id)

    def _sink(self, peer: wire.FrameProtocol, request_id: str, bulk: asyncio.Queue[Piece] | None) -> Sink:
        mine = self._running[peer]

        def sink(piece: Piece) -> None:
            if isinstance(piece, Failed):
                mine.pop(request_id, None)
            elif isinstance(piece, Delta) and piece.finish_reason is not None and request_id in mine:
                mine[request_id] -= 1
                if not mine[request_id]:
                    del mine[request_id]
            self._note_idle()
            if bulk is None:
                peer.send((request_id, piece))
            else:
                bulk.put_nowait(piece)

        return sink

    async def _send_in_order(self, peer: wire.FrameProtocol, request_id: str, pieces: asyncio.Queue[Piece]) -> None:
        while True:
            piece = await pieces.get()
            if isinstance(piece, FullVocabularyRows | Captured):
                await peer.send_bulk((request_id, piece))
            else:
                peer.send((request_id, piece))
            if request_id not in self._running.get(peer, {}) and pieces.empty():
                return

    def _on_lost(self, peer: wire.FrameProtocol) -> None:
        for request_id in list(self._running.pop(peer, {})):
            self._engine.abort(request_id)
        self._note_idle()

    async def drain(self, timeout_s: float) -> None:
        """Take no new connections and wait until what runs has ended, or the time is over."""
        if self._server is not None:
            self._server.close()
        self._idle = asyncio.Event()
        self._note_idle()
        async with asyncio.timeout(timeout_s):
            await self._idle.wait()

    def _note_idle(self) -> None:
        if self._idle is not None and not self.running:
            self._idle.set()
