"""Sending a request again safely: what makes two requests the same, and keeping an answer to give it again.

An Idempotency-Key belongs to an account, a method and a path. Two requests are the same when their parsed bodies are:
whatever the order of their keys and their spacing, with `null` at the top meaning left out, and numbers by their value.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from acs.platform.errors import ApiError, InvalidRequest
from acs.platform.ledger.contract import Caller, IdempotencyKey, Kept
from acs.storage.blobs import Blobs, BlobUnavailable

HEADER = "Idempotency-Key"
CHARACTERS = 255


class Replayed(Exception):
    """Raised instead of running a request that has been answered before."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept)
        self.kept = kept


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A request that came with a key, and where its answer will be kept."""

    key: IdempotencyKey
    answers: Blobs
    limit_bytes: int

    async def keep(
        self, http_status: int, body: bytes, *, clamped: str | None = None, location: str | None = None
    ) -> Kept | None:
        """None when the answer is too large to be kept, or there is no room: the key says then that none was left."""
        if len(body) > self.limit_bytes:
            return None
        try:
            blob = await asyncio.to_thread(self.answers.put, body)
        except BlobUnavailable:
            return None
        return Kept(http_status, blob.sha256, blob.size, location, clamped)


def check_key(values: list[str]) -> str | None:
    """The key of a request's `Idempotency-Key` headers; None when there is none. Raises InvalidRequest."""
    if not values:
        return None
    (key, *others) = values
    if others or not 1 <= len(key) <= CHARACTERS or not (key.isascii() and key.isprintable()):
        raise InvalidRequest(
            f"The header {HEADER} takes one value of 1 to {CHARACTERS} printable ASCII characters.", param=HEADER
        )
    return key


def idempotency_key(caller: Caller, method: str, path: str, key: str, sha256: str) -> IdempotencyKey:
    """`sha256`: the body's, by `request_sha256`."""
    scope = f"{caller.account_id} {method} {path} {key}"
    return IdempotencyKey(hashlib.sha256(scope.encode()).hexdigest(), sha256)


def request_sha256(body: Any) -> str:
    """Of a body as parsed from JSON."""
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if value is not None}
    text = json.dumps(_by_value(body), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def may_run_again(error: ApiError) -> bool:
    """Whether the key of a request that failed so is free again: it was refused, or failed in a way worth a retry."""
    return error.status < 500 or getattr(error, "retryable", False)


def _by_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_by_value(item) for item in value]
    if isinstance(value, dict):
        return {name: _by_value(item) for name, item in value.items()}
    return value
