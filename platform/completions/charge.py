"""What a completion asks the ledger for, and what it tells it in the end."""

from __future__ import annotations

from acs.events.ids import HOLD, show, uuid7
from acs.platform.completions.plan import Plan
from acs.platform.errors import (
    INFERENCE_ERRORS,
    ApiError,
    InternalError,
    InvalidRequest,
    UpstreamServerError,
    VllmEngineDead,
)
from acs.platform.inference.contract import Delta, Failed, Piece
from acs.platform.ledger.contract import Caller, IdempotencyKey, Kept, Open, Release, Settle


class ClientGone(Exception):
    """The client has hung up; nobody reads the answer."""


def client_left(error: BaseException | None) -> bool:
    """It hung up, took nothing any more, or its connection was cancelled with this process's own end."""
    return error is not None and (not isinstance(error, Exception) or isinstance(error, (ClientGone, TimeoutError)))


def order_of(caller: Caller, plan: Plan, request_id: str, key: IdempotencyKey | None) -> Open:
    """`request_id`: as in X-Request-Id."""
    return Open(
        hold_id=show(HOLD, uuid7()),
        account_id=caller.account_id,
        key_id=caller.key_id,
        request_id=request_id,
        model=plan.request.model,
        kind="completion",
        user=plan.request.user,
        prompt_tokens=plan.prompt_tokens,
        choices=plan.choices,
        max_tokens=plan.max_tokens,
        min_tokens=plan.generate.sampling.min_tokens,
        clamp=True,
        key=key,
        at_once=not (plan.generate.stream or plan.whole_vocabulary),
    )


def resolution(
    order: Open, error: BaseException | None, used: int, *, streamed: bool, kept: Kept | None
) -> Settle | Release:
    """How its Hold is resolved. `error`: what ended the request, None when it was answered whole. `used`: the generated
    tokens it costs. A failure costs nothing unless a stream had written some of it. `kept`: see Settle and Release.
    """
    if client_left(error):
        return Settle(order.hold_id, order.account_id, order.prompt_tokens, used, None)
    if error is None or (streamed and used):  # a stream's late error is an event under its 200
        return Settle(order.hold_id, order.account_id, order.prompt_tokens, used, 200, kept)
    fault = fault_of(error)
    return Release(order.hold_id, order.account_id, fault.code or "unavailable", fault.status, kept)


def fault_of(error: BaseException) -> ApiError:
    """The error that the client is shown."""
    return error if isinstance(error, ApiError) else InternalError()


def error_in(piece: Piece) -> ApiError | None:
    """What a Piece says went wrong, to who reads it: the request failed, or was aborted though nobody had left."""
    if isinstance(piece, Delta) and piece.finish_reason == "abort":
        return VllmEngineDead("The model's engine gave the request up. Send the request again.")
    if not isinstance(piece, Failed):
        return None
    if piece.code == "invalid_request":
        return InvalidRequest(piece.message)
    kind = INFERENCE_ERRORS.get(piece.code, UpstreamServerError)
    return kind(piece.message)
