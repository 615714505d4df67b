"""Where a request's Pieces gather until it reads them, and what ends its waiting."""

from __future__ import annotations

import asyncio

from acs.platform.inference.contract import Piece


class Inbox:
    """One reader. `put` is an Engine's Sink."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._reader: asyncio.Future[None] | None = None
        self._interruption: Exception | None = None

    def put(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self.wake()

    def interrupt(self, error: Exception) -> None:
        """The first one counts: every wait raises it from now on."""
        self._interruption = self._interruption or error
        self.wake()

    def wake(self) -> None:
        """Whoever waits goes on, with what there is."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait(self, patience_s: float | None = None) -> None:
        """Until a Piece comes, `wake` is called or the time is over. Raises the interruption."""
        if self._interruption is None:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            impatience = loop.call_later(patience_s, self.wake) if patience_s is not None else None
            try:
                await self._reader
            finally:
                if impatience is not None:
                    impatience.cancel()
        if self._interruption is not None:
            raise self._interruption

    async def take(self, patience_s: float | None = None) -> list[Piece]:
        """What has come, in order; none only when the time went by without any. Raises the interruption."""
        if not self._pieces:
            await self.wait(patience_s)
        if self._interruption is not None:
            raise self._interruption
        pieces, self._pieces = self._pieces, []
        return pieces

    async def last_words(self) -> list[Piece]:
        """Like `take`, after an interruption, whose reader still wants to know how it ended."""
        self._interruption = None
        return await self.take()
