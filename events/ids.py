"""Ids: UUIDs that sort by the time they were made, and their public spelling, `acct_<32 hex digits>`."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from functools import lru_cache
from uuid import UUID

ACCOUNT, KEY, HOLD, JOB, HARVEST = "acct", "key", "hold", "job", "hrv"
LOOM, NODE, BRANCH = "loom", "node", "branch"


def uuid7() -> UUID:
    """A version 7 UUID (RFC 9562): 48 bits of Unix milliseconds, then random bits. Python 3.11 has none of its own."""
    value = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 7 << 76  # version
    return UUID(int=value & ~(0b11 << 62) | 0b10 << 62)  # variant


def show(kind: str, id: UUID) -> str:
    return f"{kind}_{id.hex}"


def made_at(text: str) -> datetime:
    """When an id, as `show` spells it, was made, by the clock of whoever made it; to the millisecond."""
    return datetime.fromtimestamp(int(text.partition("_")[2][:12], 16) / 1000, UTC)


@lru_cache(maxsize=10_000)  # the same few accounts and keys ask again and again
def parse(kind: str, text: str) -> UUID | None:
    """None when `text` is not an id of this kind as `show` spells it."""
    prefix, _, digits = text.partition("_")
    if prefix != kind or len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(hex=digits)
