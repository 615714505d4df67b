"""Length-prefixed msgpack frames over one TCP connection: how our processes talk on the road of a request.

A frame is a 4-byte little-endian length and a msgpack array. All that becomes ready within one turn of the event loop
travels in one frame, so a busy turn costs one write however many requests share it. One item that is too long for a
frame travels in several: the highest bit of a length says that the frame goes on in the next.

A port is open to the host's network, as Ray's own are, so a connection must begin with a Hello that holds the secret of
this start.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

# A host that lost its power closes no connection: probe a silent peer after 5 s, give up on it within 15 s.
PEER_GONE = (
    ((socket.IPPROTO_TCP, socket.TCP_NODELAY), 1),
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 5),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 2),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 5),
    ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), 15_000),
)
FRAME_BYTES_MAX = 256 * 1024 * 1024  # a corrupt length must not make us allocate without bound
GOES_ON = 1 << 31
HELLO_BYTES_MAX = 1024  # nor a stranger, before it has shown the secret


class Hello(msgspec.Struct, array_like=True, tag="hello", frozen=True):
    """The first item of a connection. `name`: who opens it, where the listener wants to know."""

    secret: str
    name: str = ""


_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(list[Hello])


class FrameProtocol(asyncio.Protocol):
    """Cuts the byte stream into frames and gathers what is sent in one turn of the loop into one frame.

    `on_items` gets the decoded list of each frame; `on_lost` is called once, when the connection has ended.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        on_items: Callable[[FrameProtocol, list[Any]], None],
        on_lost: Callable[[FrameProtocol], None],
        *,
        trusted: bool,
    ) -> None:
        self._decoder = decoder
        self._on_items = on_items
        self._on_lost = on_lost
        self._received = bytearray()
        self._parts: list[bytes] = []  # of a frame that goes on
        self._outgoing: list[Any] = []
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._loop = asyncio.get_running_loop()
        self.trusted = trusted  # on a listener's side only once the peer has shown the secret
        self.owner: Any = None  # whose connection this is, for the callbacks

    def trust(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        """The peer has shown the secret: from now on frames may be large, and `decoder` reads them."""
        self.trusted = True
        self._decoder = decoder

    # -- sending

    def send(self, item: Any) -> None:
        """Queue one item; it leaves with everything else of this turn."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(item)

    def send_alone(self, item: Any) -> None:
        """Send one item at once, in a frame of its own, after what was queued before."""
        self._flush()
        self._write(_encoder.encode([item]))

    async def send_bulk(self, item: Any) -> None:
        """Send one large item when the peer has taken what was sent before."""
        await self._writable.wait()
        self.send_alone(item)

    def _flush(self) -> None:
        items, self._outgoing = self._outgoing, []
        if items:
            self._write_items(items)

    def _write_items(self, items: list[Any]) -> None:
        """In one frame, or in as many as keep to the limit: choices that end in one step are together without bound."""
        payload = _encoder.encode(items)
        if len(payload) <= FRAME_BYTES_MAX or len(items) == 1:
            self._write(payload)
        else:
            half = len(items) // 2
            self._write_items(items[:half])
            self._write_items(items[half:])

    def _write(self, payload: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            last = max(0, len(payload) - 1) // FRAME_BYTES_MAX * FRAME_BYTES_MAX
            for start in range(0, last, FRAME_BYTES_MAX):
                part = memoryview(payload)[start : start + FRAME_BYTES_MAX]
                self._transport.writelines(((FRAME_BYTES_MAX | GOES_ON).to_bytes(4, "little"), part))
            self._transport.writelines(((len(payload) - last).to_bytes(4, "little"), memoryview(payload)[last:]))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but class
        self._transport = transport
        transport.set_write_buffer_limits(high=4 * 1024 * 1024)
        sock = transport.get_extra_info("socket")
        for option, value in PEER_GONE:
            sock.setsockopt(*option, value)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start, end = 0, len(received)
        while end - start >= 4:
            word = int.from_bytes(received[start : start + 4], "little")
            size = word & ~GOES_ON
            if size > FRAME_BYTES_MAX or (word > HELLO_BYTES_MAX and not self.trusted):
                return self.close()
            if end - start - 4 < size:
                break
            frame = bytes(memoryview(received)[start + 4 : start + 4 + size])
            start += 4 + size
            if self._parts or word & GOES_ON:
                self._parts.append(frame)
                if word & GOES_ON:
                    continue
                frame, self._parts = b"".join(self._parts), []
            try:
                items = self._decoder.decode(frame)
            except msgspec.DecodeError:
                return self.close()
            self._on_items(self, items)
        if start:
            del received[:start]

    @property
    def lost(self) -> bool:
        return self._transport is None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()  # whoever waits to send goes on, and writes into nothing
        self._on_lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def own_address() -> str:
    """Where to listen so that other nodes reach this one; on one machine, loopback."""
    import ray

    address: str = ray.util.get_node_ip_address()
    return address


async def connect(
    host: str,
    port: int,
    hello: Hello,
    decoder: msgspec.msgpack.Decoder[Any],
    on_items: Callable[[FrameProtocol, list[Any]], None],
    on_lost: Callable[[FrameProtocol], None],
    timeout_s: float = 5.0,
) -> FrameProtocol:
    """Open a connection and introduce ourselves. Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        _, protocol = await loop.create_connection(
            lambda: FrameProtocol(decoder, on_items, on_lost, trusted=True), host, port
        )
    protocol.send_alone(hello)  # the listener takes no large frame before it
    return protocol


async def listen(
    host: str,
    secret: str,
    decoder: msgspec.msgpack.Decoder[Any],
    on_items: Callable[[FrameProtocol, list[Any]], None],
    on_lost: Callable[[FrameProtocol], None],
    on_peer: Callable[[FrameProtocol, str], None] = lambda protocol, name: None,
) -> tuple[asyncio.Server, int]:
    """Open a listener on a free port; returns it with the port. A peer without the secret is cut off; `on_peer` is told
    the name of one that has shown it.
    """

    def guarded(protocol: FrameProtocol, items: list[Any]) -> None:
        if protocol.trusted:
            return on_items(protocol, items)
        match items:
            case [Hello(secret=shown, name=name)] if hmac.compare_digest(shown.encode(), secret.encode()):
                protocol.trust(decoder)
                on_peer(protocol, name)
            case _:
                protocol.close()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FrameProtocol(_hello, guarded, on_lost, trusted=False), host, 0)
    return server, server.sockets[0].getsockname()[1]
