"""Clients that ask a running server without a pause, whole and streamed, and judge every answer by the contract.

with Load(server, "toy", clients=8) as load:
    load.succeed_again()   # every client has had a full answer to a request begun after this call
    …kill something…
    load.succeed_again()
assert not load.violations
"""

from __future__ import annotations

import asyncio
import collections
import json
import threading
import time
from collections.abc import Collection
from typing import Any

import httpx
from server.running import Server

OWN_TIMEOUT_S = 60  # a request that takes longer is stuck
PAUSE_AFTER_FAULT_S = 0.5  # a quarter of what our Retry-After asks for
MARK = "quartz-hippopotamus"  # begins each prompt; a test looks for it where no text may be

# (status, code) of every fault that a client may be shown while something dies, and whether it says `retryable`.
FAULTS = {
    (502, "vllm_engine_dead"): True,
    (502, "upstream_unreachable"): True,
    (503, "circuit_open"): True,
    (503, None): False,  # an ingress or the ledger is coming back
}


class Violation(Exception):
    """An answer that the contract does not know."""


class Load:
    """`cut_allowed`: which answers may end by a broken connection, of "stream" and "whole" (in the middle) and
    "unanswered" (before the first byte). `fresh`: a connection for each request, so that none is lost to a proxy that
    closes an idle one.
    """

    def __init__(
        self, server: Server, model: str, *, clients: int = 8, cut_allowed: Collection[str] = (), fresh: bool = False
    ) -> None:
        self.violations: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._server = server
        self._model = model
        self._cut_allowed = cut_allowed
        self._clients = clients
        self._keepalive = 0 if fresh else clients
        self._last_success = [0.0] * clients  # when the client's latest full answer was asked for
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def succeed_again(self, limit_s: float = 180) -> float:
        """Wait until each client has had a full answer to a request begun from now on; returns the seconds waited."""
        began = time.monotonic()
        while min(self._last_success) <= began:
            waited = time.monotonic() - began
            assert waited < limit_s, f"no recovery within {limit_s} s: {dict(self.counts)} {self.violations[:5]}"
            time.sleep(0.01)
        return time.monotonic() - began

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Every request begun is waited for, at most its own timeout."""
        self._over.set()
        self._thread.join(OWN_TIMEOUT_S + 30)
        if self._thread.is_alive():
            self.violations.append("a request outlived its own timeout")

    async def _run(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=self._keepalive)
        async with httpx.AsyncClient(
            base_url=self._server.v1, headers=self._server.headers, limits=limits, timeout=OWN_TIMEOUT_S
        ) as http:
            await asyncio.gather(*(self._client(http, number) for number in range(self._clients)))

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        turn = number
        while not self._over.is_set():
            turn += 1
            body = {
                "model": self._model,
                "prompt": f"{MARK} {turn}",
                "max_tokens": (1, 8, 40)[turn % 3],
                "ignore_eos": True,
                "n": 1 + turn % 2,
            }
            kind = "stream" if turn % 4 < 2 else "whole"
            began = time.monotonic()
            try:
                async with asyncio.timeout(OWN_TIMEOUT_S):
                    outcome = await (streamed if kind == "stream" else whole)(http, body)
            except Violation as violation:
                self.violations.append(str(violation))
                outcome = "violation"
            except httpx.TransportError as error:
                kind = "unanswered" if "without sending a response" in str(error) else kind
                outcome = f"{kind} cut by {type(error).__name__}"
                if kind not in self._cut_allowed:
                    self.violations.append(f"{outcome} {error}")
            except TimeoutError:
                self.violations.append(f"stuck for {OWN_TIMEOUT_S} s")
                outcome = "stuck"
            self.counts[outcome] += 1
            if outcome == "full":
                self._last_success[number] = began
            else:
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await http.post("/completions", json=body)
    if answer.status_code != 200:
        return fault(answer.status_code, answer.headers, answer.content)
    choices = answer.json()["choices"]
    generated = answer.json()["usage"]["completion_tokens"]
    wanted = body["n"] * body["max_tokens"]
    if generated != wanted or {choice["finish_reason"] for choice in choices} != {"length"}:
        raise Violation(f"a 200 that is not whole: {answer.text[:500]}")
    return "full"


async def streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    async with http.stream("POST", "/completions", json={**body, "stream": True}) as answer:
        content = await answer.aread()
    if answer.status_code != 200:
        return fault(answer.status_code, answer.headers, content)
    *events, done, rest = content.decode().split("\n\n")
    if done != "data: [DONE]" or rest:
        raise Violation(f"a stream that ends otherwise than by [DONE]: {content[-300:]!r}")
    parsed = [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]
    if "error" in parsed[-1]:
        return "event " + _judged(502, parsed[-1], answer.headers)
    ends = [choice["finish_reason"] for event in parsed for choice in event["choices"] if choice["finish_reason"]]
    if ends != ["length"] * body["n"] or len(parsed) != body["n"] * body["max_tokens"]:
        raise Violation(f"a stream that is not whole: {content[-300:]!r}")
    return "full"


def fault(status: int, headers: httpx.Headers, content: bytes) -> str:
    """The fault's name. Raises Violation when it is not one of FAULTS in the contract's shape."""
    if not headers["content-type"].startswith("application/json"):
        raise Violation(f"{status} {headers['content-type']}: {content[:300]!r}")
    name = _judged(status, json.loads(content), headers)
    if int(headers.get("retry-after", 0)) < 1 or headers.get("x-should-retry") is not None:
        raise Violation(f"{name} with the retry headers of none: {dict(headers)}")
    return name


def _judged(status: int, body: dict[str, Any], headers: httpx.Headers) -> str:
    def complain(what: str) -> Violation:
        return Violation(f"{what}: {status} {body} {dict(headers)}")

    error = body["error"]
    if set(body) != {"error", "request_id"} or [body["request_id"]] != headers.get_list("x-request-id"):
        raise complain("another shape")
    if (status, error["code"]) not in FAULTS:
        raise complain("another fault")
    retryable = {"retryable": True} if FAULTS[status, error["code"]] else {}
    expected = {"message": error["message"], "type": "server_error", "param": None, "code": error["code"], **retryable}
    if error != expected or not error["message"]:
        raise complain("another error object")
    return f"{status} {error['code']}"
