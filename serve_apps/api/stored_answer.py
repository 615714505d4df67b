"""A kept answer that is too large to be held: read, compressed and sent bit by bit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from acs.platform.limits import Limits
from acs.serve_apps.api import http


class StoredAnswer(Response):
    """Bytes that are found to have changed cut the connection, so that they do not pass for the answer; so does a
    client that takes nothing for `stalled_s`, by TimeoutError.
    """

    def __init__(self, parts: Iterator[bytes], gzip: bool, limits: Limits) -> None:
        self._parts = parts
        self._gzip = gzip
        self._limits = limits
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"Content-Type": "application/json", "Vary": "Accept-Encoding"}
        packer = http.gzip_packer() if self._gzip else None
        if packer is not None:
            headers["Content-Encoding"] = "gzip"

        def next_part() -> bytes | None:
            part = next(self._parts, None)
            return packer.compress(part) if packer is not None and part is not None else part

        part = await asyncio.to_thread(next_part)  # before the status: it may be that nothing can be read
        await send({"type": "http.response.start", "status": 200, "headers": http.raw(headers)})
        while part is not None:
            async with asyncio.timeout(self._limits.stalled_s):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            part = await asyncio.to_thread(next_part)
        await send({"type": "http.response.body", "body": packer.flush() if packer else b"", "more_body": False})
