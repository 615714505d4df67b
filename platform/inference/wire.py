"""What an ingress and a model replica say to each other, in frames (`acs.platform.frames`).

The ingress sends Submit and Abort; the replica sends (request id, Piece). A step of the engine costs one write however
many requests share it. Serve keeps what it is good at (placing, health, autoscaling, telling us which replicas run);
only the bytes of a request take this shorter way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from acs.platform import frames
from acs.platform.frames import FrameProtocol as FrameProtocol
from acs.platform.frames import own_address as own_address
from acs.platform.inference.contract import Generate, Piece


class Submit(msgspec.Struct, array_like=True, tag="submit", frozen=True):
    request: Generate


class Abort(msgspec.Struct, array_like=True, tag="abort", frozen=True):
    request_id: str


Command = Submit | Abort
Pieces = list[tuple[str, Piece]]

_commands = msgspec.msgpack.Decoder(list[Command])
_pieces = msgspec.msgpack.Decoder(Pieces)


async def connect(
    host: str,
    port: int,
    secret: str,
    on_pieces: Callable[[FrameProtocol, Pieces], None],
    on_lost: Callable[[FrameProtocol], None],
) -> FrameProtocol:
    """Open an ingress's connection to a replica. Raises OSError or TimeoutError."""
    return await frames.connect(host, port, frames.Hello(secret), _pieces, on_pieces, on_lost)


async def listen(
    host: str,
    secret: str,
    on_commands: Callable[[FrameProtocol, list[Command]], None],
    on_lost: Callable[[FrameProtocol], None],
) -> tuple[asyncio.Server, int]:
    """Open a replica's listener on a free port; returns it with the port. A peer without the secret is cut off."""
    return await frames.listen(host, secret, _commands, on_commands, on_lost)
