"""A load generator that costs little: raw HTTP/1.1 over kept-alive connections, the same for every server.

Both sides of a benchmark share the machine with it, so what it spends is spent on both.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Load:
    """What the clients saw in `seconds` of asking without pause."""

    seconds: float
    latencies_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)  # streams only

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.latencies_s) / self.seconds

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def first_token_ms(self) -> float:
        ordered = sorted(self.first_token_s)
        return 1000 * ordered[len(ordered) // 2] if ordered else float("nan")


def request_bytes(url: str, key: str, body: dict[str, Any]) -> bytes:
    parts = urlsplit(url)
    payload = json.dumps(body).encode()
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


async def run_load(url: str, key: str, body: dict[str, Any], clients: int, seconds: float) -> Load:
    """`clients` connections, each asking again once it is answered, for `seconds`. Raises on anything but a 200."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    load = Load(seconds)
    wire = request_bytes(url, key, body)
    start = time.perf_counter()
    end = start + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
        try:
            while (asked := time.perf_counter()) < end:
                writer.write(wire)
                first = await _answer(reader)
                load.latencies_s.append(time.perf_counter() - asked)
                if body.get("stream"):
                    load.first_token_s.append(first - asked)
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - start  # to the end of the last answer: none is cut off
    return load


async def run_count(url: str, key: str, body: dict[str, Any], clients: int, count: int, status: int = 200) -> Load:
    """Like `run_load`, until `count` requests have been answered, each with `status`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    load = Load(0.0)
    wire = request_bytes(url, key, body)
    turns = iter(range(count))
    start = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
        try:
            for _ in turns:
                asked = time.perf_counter()
                writer.write(wire)
                await _answer(reader, status)
                load.latencies_s.append(time.perf_counter() - asked)
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - start
    return load


async def _answer(reader: asyncio.StreamReader, status: int = 200) -> float:
    """Read one whole answer; the time when its first body bytes came."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 %d" % status):
        raise RuntimeError(head.decode(errors="replace") + (await reader.read(2000)).decode(errors="replace"))
    lowered = head.lower()
    if b"transfer-encoding: chunked" not in lowered:
        length = int(lowered.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return time.perf_counter()
    first = 0.0
    while True:
        size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        await reader.readexactly(size + 2)
        first = first or time.perf_counter()
        if size == 0:
            return first
