"""The road of a completion, from a planned request to its last Piece and its charge. No HTTP here."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Protocol

import orjson

from acs.platform.completions.charge import client_left, error_in, fault_of, order_of, resolution
from acs.platform.completions.inbox import Inbox
from acs.platform.completions.plan import Plan
from acs.platform.errors import (
    ApiError,
    InternalError,
    UpstreamDeadline,
    UpstreamUnreachable,
)
from acs.platform.idempotency import Repeatable, Replayed, may_run_again
from acs.platform.inference.contract import Delta, Failed, Piece
from acs.platform.ledger.contract import Caller, Granted, Kept, Open, Release, Reply, Resolved, Settle, Stored
from acs.platform.limits import Limits

ABORT_S = 5.0  # for the engine's last word on an aborted request

_charging: set[asyncio.Future[Reply]] = set()  # of this process, whatever becomes of the requests they belong to


class Holds(Protocol):
    """What a run asks of the ledger; see `acs.platform.ledger.client.LedgerClient`."""

    def open(self, order: Open) -> asyncio.Future[Reply]: ...

    def resolve(self, command: Settle | Release) -> asyncio.Future[Reply]: ...

    def withdraw(self, order: Open, reason: str) -> None: ...


class Run:
    """One request, from its Hold to its charge. Used as a context: entering it places the Hold, perhaps after waiting
    for a turn, and starts the engine; leaving it, however, ends the request in the engine and resolves the Hold.

        async with Run(caller, plan, ledger, limits, request_id) as run:
            while run.unfinished:
                for piece in await run.ready(): ...
        await run.charged()

    `interrupt(error)` ends any wait inside with that error, from a deadline or a client that hung up.
    """

    def __init__(
        self,
        caller: Caller,
        plan: Plan,
        ledger: Holds,
        limits: Limits,
        request_id: str,
        repeatable: Repeatable | None = None,
    ) -> None:
        self.plan = plan  # its max_tokens may be lowered when the Hold is placed
        self.unfinished = plan.choices
        self.completion_tokens = 0
        self.sent_tokens = 0  # of a stream, in writes that the client has taken
        self._ledger = ledger
        self._limits = limits
        self.repeatable = repeatable
        self._kept: Kept | None = None
        self._order = order_of(caller, plan, request_id, repeatable.key if repeatable else None)
        self._charging: asyncio.Future[Reply] | None = None
        self._inbox = Inbox()
        self._deadline: asyncio.TimerHandle | None = None
        self._probe = False

    @property
    def clamped(self) -> str | None:
        """What the clamp header says; None when the budget left max_tokens as it was asked for."""
        requested, applied = self._order.max_tokens, self.plan.max_tokens
        return None if requested == applied else f"requested={requested},applied={applied},reason=budget"

    async def __aenter__(self) -> Run:
        """Raises CircuitOpen, then what the ledger refuses with, or Replayed."""
        breaker = self.plan.model.breaker
        self._probe = breaker.admit()
        try:
            granted = await self._granted()
        except BaseException:
            breaker.abandoned(self._probe)
            raise
        try:
            self._start(granted.max_tokens)
        except BaseException as error:
            self._leave(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._leave(error)

    def _start(self, max_tokens: int) -> None:
        if max_tokens < self.plan.max_tokens:
            self.plan = self.plan.lowered(max_tokens)
        limits = self._limits
        deadline_s = limits.stream_deadline_s if self.plan.generate.stream else limits.whole_deadline_s
        self._deadline = asyncio.get_running_loop().call_later(deadline_s, self._too_late, deadline_s)
        self.plan.model.engine.submit(self.plan.generate, self._inbox.put)

    def _leave(self, error: BaseException | None) -> None:
        """Nothing is awaited here: a cancelled stream must resolve its Hold all the same."""
        if self._deadline is not None:
            self._deadline.cancel()
        breaker = self.plan.model.breaker
        if isinstance(error, ApiError) and error.status in (502, 504):
            breaker.failed()
        elif error is None:
            breaker.succeeded()
        else:
            breaker.abandoned(self._probe)
        if self.unfinished:
            self.plan.model.engine.abort(self.plan.id)
        if error is None:
            self._charging = self._ledger.resolve(self._resolution(None))
        else:
            self._charging = asyncio.create_task(self._resolve(error))
            _charging.add(self._charging)
            self._charging.add_done_callback(_charging.discard)

    async def _resolve(self, error: BaseException) -> Reply:
        if not self.plan.generate.stream:
            if client_left(error):
                await self._count_aborted()
            else:
                await self._keep_error(fault_of(error))
        return await self._ledger.resolve(self._resolution(error))

    def _resolution(self, error: BaseException | None) -> Settle | Release:
        streamed = self.plan.generate.stream
        used = self.sent_tokens if streamed else self.completion_tokens
        return resolution(self._order, error, used, streamed=streamed, kept=self._kept)

    async def keep(self, body: bytes) -> None:
        """The answer's body, before the run is left: whoever sends the request again under its key is given it."""
        if self.repeatable is not None:
            self._kept = await self.repeatable.keep(200, body, clamped=self.clamped)

    async def _keep_error(self, error: ApiError) -> None:
        if self.repeatable is not None and not may_run_again(error):
            body = orjson.dumps(error.body(self._order.request_id))
            self._kept = await self.repeatable.keep(error.status, body)

    async def _count_aborted(self) -> None:
        """What choices had when they were aborted comes with the engine's last word on each of them."""
        with contextlib.suppress(TimeoutError):  # an engine that has died says nothing more
            async with asyncio.timeout(ABORT_S):
                while self.unfinished:
                    for piece in await self._inbox.last_words():
                        if isinstance(piece, Failed):
                            self.unfinished = 0
                        elif isinstance(piece, Delta):
                            self._count(piece)

    async def charged(self) -> None:
        """Returns when the charge is on disk. Raises InternalError when that takes too long."""
        assert self._charging is not None, "to be called after leaving the run"
        done, _ = await asyncio.wait([self._charging], timeout=self._limits.settle_s)
        if not done:
            raise InternalError("The answer's charge could not be recorded in time.")
        resolved = self._charging.result()
        if not isinstance(resolved, Resolved) or resolved.status != "settled":
            raise InternalError("The answer could not be charged as it was held.")

    async def _granted(self) -> Granted:
        opening = self._ledger.open(self._order)
        opening.add_done_callback(lambda _: self._inbox.wake())
        try:
            while not opening.done():
                await self._inbox.wait()
        except BaseException:
            self._ledger.withdraw(self._order, "client_gone")
            if not opening.cancel():  # it was refused in the same moment
                opening.exception()
            raise
        reply = opening.result()
        if isinstance(reply, Stored):
            raise Replayed(reply.kept)
        assert isinstance(reply, Granted)
        return reply

    async def ready(self, patience_s: float | None = None) -> list[Piece]:
        """The Pieces that have come since the last call; none only when `patience_s` went by without any.

        Raises the contract's error when the engine failed, UpstreamDeadline, or what `interrupt` was given.
        """
        pieces = await self._inbox.take(patience_s)
        for piece in pieces:
            if isinstance(piece, Delta):
                self._count(piece)
            elif isinstance(piece, Failed):
                self.unfinished = 0
            if (error := error_in(piece)) is not None:
                raise error
        return pieces

    def interrupt(self, error: Exception) -> None:
        self._inbox.interrupt(error)

    def _count(self, delta: Delta) -> None:
        self.completion_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self.unfinished -= 1

    def _too_late(self, deadline_s: float) -> None:
        if self.plan.model.engine.status().status == "cold":
            self.interrupt(UpstreamUnreachable(f"The model did not wake within {deadline_s:g} s.", cold=True))
        else:
            self.interrupt(UpstreamDeadline(f"The answer was not complete after {deadline_s:g} s."))
