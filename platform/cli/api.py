"""The HTTP API as its users' commands call it: `$ACS_API_BASE` and `$ACS_API_KEY`, as `source .acs/env` sets them.

What is worth sending again is sent again, no sooner than `Retry-After` says.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

import httpx

from acs.platform.cli.errors import CommandFailed

ANSWER_S = 120.0
PATIENCE_S = 120.0  # for one request, all its tries together


class Api:
    """A context. Requests raise CommandFailed when the server stays away."""

    def __init__(self, patience_s: float = PATIENCE_S, transport: httpx.AsyncBaseTransport | None = None) -> None:
        base, key = os.environ.get("ACS_API_BASE"), os.environ.get("ACS_API_KEY")
        if not base or not key:
            raise CommandFailed("Set ACS_API_BASE and ACS_API_KEY; `source .acs/env` does, where the server runs.")
        headers = {"Authorization": f"Bearer {key}"}
        self._base = base
        self._patience_s = patience_s
        self._http = httpx.AsyncClient(base_url=base, headers=headers, timeout=ANSWER_S, transport=transport)

    async def __aenter__(self) -> Api:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, tb)

    async def ask(
        self, method: str, path: str, *, json: Any = None, headers: Mapping[str, str] | None = None, final: bool = False
    ) -> httpx.Response:
        """The answer, whatever its status. `final`: it may be the error that a Job ended with, which stays."""
        give_up_at = time.monotonic() + self._patience_s
        pause_s = 0.25
        while True:
            try:
                answer = await self._http.request(method, path, json=json, headers=headers)
            except httpx.TransportError as error:
                if time.monotonic() > give_up_at:
                    raise CommandFailed(f"{self._base} cannot be reached: {type(error).__name__}.") from None
            else:
                if not _worth_another_try(answer, final) or time.monotonic() > give_up_at:
                    return answer
                pause_s = max(pause_s, float(answer.headers.get("Retry-After", 0)))
            await asyncio.sleep(pause_s * random.uniform(1, 1.2))
            pause_s = min(2 * pause_s, 8)

    async def asked(self, method: str, path: str, **fields: Any) -> Any:
        """The answer's body. Raises CommandFailed for an error."""
        return checked(await self.ask(method, path, **fields))


def run(command: Callable[[Api], Awaitable[int]]) -> int:
    """A verb's exit status."""

    async def with_api() -> int:
        async with Api() as api:
            return await command(api)

    return asyncio.run(with_api())


def once() -> dict[str, str]:
    """Headers of a request that writes: it may have to be sent again."""
    return {"Idempotency-Key": f"acs-{secrets.token_hex(16)}"}


def error_of(answer: httpx.Response) -> str:
    """One sentence."""
    try:
        error = answer.json()["error"]
        return f"{answer.status_code} {error['code'] or ''}: {error['message']}".replace(" :", ":")
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code}: the answer is none of this API's."


def checked(answer: httpx.Response) -> Any:
    """Its body. Raises CommandFailed for an error."""
    if answer.status_code >= 400:
        raise CommandFailed(error_of(answer))
    return answer.json()


def _worth_another_try(answer: httpx.Response, final: bool) -> bool:
    """Only what says when."""
    if "Retry-After" not in answer.headers or answer.headers.get("x-should-retry") == "false":
        return False
    if answer.status_code < 400:  # a result that is not there yet
        return False
    return not final or (answer.status_code == 503 and answer.json()["error"]["code"] is None)
