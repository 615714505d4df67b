"""The road of a completion, from a planned request to its last Piece. No HTTP here."""

from __future__ import annotations

import asyncio
from types import TracebackType

from acs.platform.completions.plan import Plan
from acs.platform.errors import (
    INFERENCE_ERRORS,
    ApiError,
    InvalidRequest,
    UpstreamDeadline,
    UpstreamServerError,
    UpstreamUnreachable,
)
from acs.platform.inference.contract import Delta, Failed, Piece
from acs.platform.ledger.contract import Caller
from acs.platform.limits import Limits


class ClientGone(Exception):
    """The client has hung up; nobody reads the answer."""


class Run:
    """One request in the engine. Used as a context: leaving it, however, ends the request in the engine.

        with Run(caller, plan, limits) as run:
            while run.unfinished:
                for piece in await run.ready(): ...

    `interrupt(error)` makes `ready` raise, from a deadline or a client that hung up.
    """

    def __init__(self, caller: Caller, plan: Plan, limits: Limits) -> None:
        self.caller = caller
        self.plan = plan
        self.unfinished = plan.choices
        self.completion_tokens = 0
        self._limits = limits
        self._pieces: list[Piece] = []
        self._waiter: asyncio.Future[None] | None = None
        self._interrupted: Exception | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._probe = False

    def __enter__(self) -> Run:
        """Raises CircuitOpen. (The ledger's `open` comes next, here: judged, held, then run.)"""
        self._probe = self.plan.model.breaker.admit()
        try:
            self.plan.model.engine.submit(self.plan.generate, self._sink)
        except BaseException:
            self.plan.model.breaker.abandoned(self._probe)
            raise
        streams = self.plan.generate.stream
        deadline_s = self._limits.stream_deadline_s if streams else self._limits.whole_deadline_s
        self._deadline = asyncio.get_running_loop().call_later(deadline_s, self._too_late, deadline_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """(The ledger's `settle` comes here, in a task that the process owns: a cancelled stream must not stop it.)"""
        if self._deadline is not None:
            self._deadline.cancel()
        if self.unfinished:
            self.plan.model.engine.abort(self.plan.id)
        breaker = self.plan.model.breaker
        if isinstance(error, ApiError) and error.status in (502, 504):
            breaker.failed()
        elif error is None:
            breaker.succeeded()
        else:
            breaker.abandoned(self._probe)

    async def ready(self, patience_s: float | None = None) -> list[Piece]:
        """The Pieces that have come since the last call; none only when `patience_s` went by without any.

        Raises the contract's error when the engine failed, UpstreamDeadline, or what `interrupt` was given.
        """
        if not self._pieces and self._interrupted is None:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            impatience = loop.call_later(patience_s, self._awake) if patience_s is not None else None
            try:
                await self._waiter
            finally:
                if impatience is not None:
                    impatience.cancel()
        if self._interrupted is not None:
            raise self._interrupted
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            if isinstance(piece, Delta):
                self._count(piece)
            elif isinstance(piece, Failed):
                self.unfinished = 0
                raise error_of(piece)
        return pieces

    def interrupt(self, error: Exception) -> None:
        self._interrupted = self._interrupted or error
        self._awake()

    def _sink(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._awake()

    def _awake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _count(self, delta: Delta) -> None:
        self.completion_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self.unfinished -= 1
        if delta.finish_reason == "abort":  # not by us: we no longer listen once we abort
            raise UpstreamServerError("The model's engine gave the request up.")

    def _too_late(self, deadline_s: float) -> None:
        if self.plan.model.engine.status().status == "cold":
            self.interrupt(UpstreamUnreachable(f"The model did not wake within {deadline_s:g} s.", cold=True))
        else:
            self.interrupt(UpstreamDeadline(f"The answer was not complete after {deadline_s:g} s."))


def error_of(failed: Failed) -> ApiError:
    """The error that a Failed of the engine is to the client."""
    if failed.code == "invalid_request":
        return InvalidRequest(failed.message)
    kind = INFERENCE_ERRORS.get(failed.code, UpstreamServerError)
    return kind(failed.message)
