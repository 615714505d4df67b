"""What may go wrong, said once: each error's status, code, retry headers, and whether Inference caused it.

    ApiError
    ├── BadJson, InvalidRequest, DeadlineInfeasible, ModelNotFound, ContextLengthExceeded,
    │   HarvestUnsupported                                                                    400
    ├── AuthenticationError                                                                   401
    │   └── MissingAuthorization, InvalidApiKey, KeyRevoked, KeyDisabled, AccountSuspended
    ├── NotFound, JobNotFound, HarvestNotFound, LoomNotFound 404, MethodNotAllowed 405, RequestTooLarge 413,
    │   RangeBeyond 416
    ├── AdmissionError             the ledger does not let the request in                     429
    │   └── RateLimited, QueueFull, SpendCap, BudgetExceeded, JobCapacity,
    │       HarvestConcurrencyExceeded, HarvestCapacityExceeded, HarvestQuotaExceeded
    ├── Conflict                   409
    │   └── Running, NoAnswer, IdempotencyConflict, JobEnded, HarvestNotCancellable, NodeNotDone
    ├── InternalError                                                                         500
    ├── PartUnavailable            a part of the platform (ledger, views) is coming back      503
    └── InferenceError             carries `retryable`
        └── UpstreamUnreachable 502/503, UpstreamServerError, VllmOom, VllmEngineDead 502,
            CircuitOpen 503, UpstreamDeadline 504

To add one: a class here (status, code, the headers that `docs/errors.md` lists), a row in that page, a test.
Which error answers when several apply is the order of the road in `acs.serve_apps.api`; it is not decided here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

_TYPE_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    416: "invalid_request_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An answer that is an error object. `message` names the field or limit and the values that disagree;
    it never holds a path, a stack or a host. `param` is the path of the offending field, or None.
    """

    status: int
    code: ClassVar[str | None]
    should_retry: ClassVar[bool] = True  # False sends `x-should-retry: false`
    retry_after_s: float | None = None  # sent as `Retry-After`

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def body(self, request_id: str) -> dict[str, Any]:
        """The error object of the contract; `request_id` equals the answer's `X-Request-Id`."""
        error = {
            "message": self.message,
            "type": _TYPE_BY_STATUS.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error, "request_id": request_id}

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if not self.should_retry:
            headers["x-should-retry"] = "false"
        return headers


class BadJson(ApiError):
    status, code = 400, "bad_json"


class InvalidRequest(ApiError):
    status, code = 400, "invalid_request"


class DeadlineInfeasible(ApiError):
    status, code, should_retry = 400, "deadline_infeasible", False


class ModelNotFound(ApiError):
    status, code = 400, "model_not_found"


class ContextLengthExceeded(ApiError):
    status, code = 400, "context_length_exceeded"


class HarvestUnsupported(ApiError):
    status, code = 400, "harvest_unsupported"


class AuthenticationError(ApiError):
    status = 401


class MissingAuthorization(AuthenticationError):
    code = "missing_authorization"


class InvalidApiKey(AuthenticationError):
    code = "invalid_api_key"


class KeyRevoked(AuthenticationError):
    code = "key_revoked"


class KeyDisabled(AuthenticationError):
    code = "key_disabled"


class AccountSuspended(AuthenticationError):
    code = "account_suspended"


class NotFound(ApiError):
    status, code = 404, None


class JobNotFound(ApiError):
    """Unknown, another account's, or kept no longer: nobody can tell which."""

    status, code = 404, "job_not_found"


class HarvestNotFound(ApiError):
    """Unknown, another account's, or ended long ago: nobody can tell which."""

    status, code = 404, "harvest_job_not_found"


class LoomNotFound(ApiError):
    """A Loom or a Node of it: unknown, deleted, or another account's."""

    status, code = 404, None


class MethodNotAllowed(ApiError):
    status, code = 405, None

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "Allow": self.allow}


class RequestTooLarge(ApiError):
    status, code, should_retry = 413, "request_too_large", False


class RangeBeyond(ApiError):
    """Of a file."""

    status, code, should_retry = 416, "invalid_request", False

    def __init__(self, message: str, *, size: int = 0) -> None:
        super().__init__(message, param="Range")
        self.size = size

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "Content-Range": f"bytes */{self.size}"}


class AdmissionError(ApiError):
    status = 429


class RateLimited(AdmissionError):
    code = "rate_limited"


class QueueFull(AdmissionError):
    code, retry_after_s = "queue_full", 5.0


class SpendCap(AdmissionError):
    code, should_retry, retry_after_s = "spend_cap", False, 3600.0


class BudgetExceeded(AdmissionError):
    code, should_retry = "budget_exceeded", False


class JobCapacity(AdmissionError):
    code, should_retry = "job_capacity", False


class HarvestConcurrencyExceeded(AdmissionError):
    code, retry_after_s = "harvest_concurrency_exceeded", 30.0


class HarvestCapacityExceeded(AdmissionError):
    code, retry_after_s = "harvest_capacity_exceeded", 30.0


class HarvestQuotaExceeded(AdmissionError):
    code, should_retry = "harvest_quota_exceeded", False


class Conflict(ApiError):
    status = 409
    code: ClassVar[str | None] = None
    should_retry = False


class Running(Conflict):
    """The first request with the Idempotency-Key has not ended."""

    code, should_retry, retry_after_s = "running", True, 1.0


class NoAnswer(Conflict):
    code = "no_answer"


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class JobEnded(Conflict):
    """It cannot be cancelled any more; or it was cancelled, so that it has no result."""

    should_retry = True


class HarvestNotCancellable(Conflict):
    """It has ended."""

    code = "harvest_not_cancellable"


class NodeNotDone(Conflict):
    """It has no tokens that could be continued: it is pending or running, or it failed."""


class InternalError(ApiError):
    status, code, should_retry = 500, "internal_error", False

    def __init__(self, message: str = "The server failed on this request. It has been logged.") -> None:
        super().__init__(message)


class PartUnavailable(ApiError):
    """The ledger or the views are coming back; the request did not run."""

    status, code, retry_after_s = 503, None, 1.0


class InferenceError(ApiError):
    """The engine side failed. `retryable` says whether the same request may succeed if sent again."""

    status = 502
    retryable: bool = True

    def body(self, request_id: str) -> dict[str, Any]:
        body = super().body(request_id)
        body["error"]["retryable"] = self.retryable
        return body

    def headers(self) -> dict[str, str]:
        headers = super().headers()
        if not self.retryable:
            headers["x-should-retry"] = "false"
        elif self.status == 502:
            headers.setdefault("Retry-After", "2")
        return headers


class UpstreamUnreachable(InferenceError):
    """No replica could be reached. With `cold`, none is up yet and one is being started: 503, `Retry-After: 30`."""

    code = "upstream_unreachable"

    def __init__(self, message: str, *, cold: bool = False) -> None:
        super().__init__(message, retry_after_s=30 if cold else None)
        self.status = 503 if cold else 502


class UpstreamServerError(InferenceError):
    code, retryable = "upstream_server_error", False


class VllmOom(InferenceError):
    code = "vllm_oom"


class VllmEngineDead(InferenceError):
    code = "vllm_engine_dead"


class CircuitOpen(InferenceError):
    status, code = 503, "circuit_open"


class UpstreamDeadline(InferenceError):
    status, code, retryable = 504, "upstream_deadline", False


ADMISSION_ERRORS: dict[str | None, type[ApiError]] = {  # the codes that travel from the ledger to an ingress
    cls.code: cls
    for cls in (
        *(RateLimited, QueueFull, SpendCap, BudgetExceeded, JobCapacity, Running, NoAnswer, IdempotencyConflict),
        *(HarvestConcurrencyExceeded, HarvestCapacityExceeded, HarvestQuotaExceeded, InvalidRequest),
    )
}
INFERENCE_ERRORS: dict[str, type[InferenceError]] = {
    cls.code: cls  # the codes that travel from a replica to an ingress
    for cls in (UpstreamUnreachable, UpstreamServerError, VllmOom, VllmEngineDead, UpstreamDeadline)
}
