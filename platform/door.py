"""An operator's door: a Unix socket that only the server's user can open. One JSON line asks, one answers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from acs.platform.unix_socket import short_address

LINE_BYTES = 16_384  # of a request
READ_TIMEOUT_S = 10  # for the one line of a request


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 600 from its first moment; replaces what lay there. Raises OSError."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with tempfile.TemporaryDirectory(prefix=".door-", dir=path.parent) as folder:  # mode 700
        made = Path(folder) / path.name
        with short_address(made) as address:
            door.bind(address)
        made.chmod(0o600)
        door.listen()
        os.replace(made, path)
    door.setblocking(False)
    return door


async def serve(door: socket.socket, answer: Callable[[bytes], Awaitable[dict[str, Any]]]) -> asyncio.Server:
    """`answer` is given the line and never raises."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                line = await reader.readline()
            writer.write(json.dumps(await answer(line)).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # whoever asked hung up, or sent no line of a bearable length
        finally:
            writer.close()

    return await asyncio.start_unix_server(converse, sock=door, limit=LINE_BYTES)
