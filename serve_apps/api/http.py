"""What every route needs of HTTP: the caller, the body, an answer, and a fault as an answer."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from acs.platform.completions.road import Run
from acs.platform.errors import ApiError, NoAnswer, RequestTooLarge
from acs.platform.idempotency import HEADER, Repeatable, check_key, idempotency_key, request_sha256
from acs.platform.ledger.contract import Caller, Kept
from acs.platform.limits import Limits
from acs.platform.wiring import Services
from acs.serve_apps.api.json_body import parse_json
from acs.storage.blobs import BlobUnavailable

T = TypeVar("T")
CLAMPED = "X-Acs-Max-Tokens-Clamped"
PARSE_INLINE_BYTES = 256 * 1024  # about 2 ms; larger bodies are parsed beside the event loop
GZIP_INLINE_BYTES = 64 * 1024
GZIP_LEVEL = 1  # measured on JSON of log probabilities: level 6 is 3 × slower for a tenth fewer bytes


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def request_id_of(request: Request) -> str:
    """Ours or the client's, already checked by the proxy middleware."""
    return request.headers.get("x-request-id", "")


async def admit(request: Request, parse: Callable[[Any], T], most_bytes: int | None = None) -> tuple[Caller, T]:
    """The caller and what `parse` makes of the body, with the checks in the contract's order: length header, key,
    counted length, JSON, shape. A stranger's large body is never read. `most_bytes`: of it, unless the usual number.
    """
    services = services_of(request)
    limit = services.limits.body_bytes if most_bytes is None else most_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise too_large(limit)
    caller = await caller_of(request)
    body = await read_body(request, limit)

    def parsed() -> T:
        return parse(parse_json(body))

    return caller, await asyncio.to_thread(parsed) if len(body) > PARSE_INLINE_BYTES else parsed()


async def caller_of(request: Request) -> Caller:
    """Raises the five 401 errors, and PartUnavailable when the keys could not be asked for in time."""
    keys = services_of(request).keys
    await keys.renewed()
    return keys.judge(request.headers.get("authorization"))


async def read_body(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


def too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {limit:,} bytes. Split the request.")


@dataclass(frozen=True, slots=True)
class Admitted(Generic[T]):
    caller: Caller
    wanted: T
    repeatable: Repeatable | None


async def admit_once(request: Request, parse: Callable[[Any], T], most_bytes: int | None = None) -> Admitted[T]:
    """Like `admit`, for a POST that writes, perhaps under an Idempotency-Key. Raises InvalidRequest for a bad one."""
    services = services_of(request)
    keys = request.headers.getlist(HEADER)

    def parse_and_hash(body: Any) -> tuple[T, str]:
        return parse(body), request_sha256(body) if keys else ""

    caller, (wanted, sha256) = await admit(request, parse_and_hash, most_bytes)
    key = check_key(keys)
    if key is None:
        return Admitted(caller, wanted, None)
    named = idempotency_key(caller, request.method, request.scope["path"], key, sha256)
    return Admitted(caller, wanted, Repeatable(named, services.answers, services.limits.kept_answer_bytes))


async def replay(request: Request, kept: Kept) -> Response:
    """The first answer again. Raises NoAnswer when its bytes can no longer be read."""
    services = services_of(request)
    try:
        body = await asyncio.to_thread(services.answers.get, kept.body_sha256)
    except BlobUnavailable as error:
        raise NoAnswer("The answer to the first request with this Idempotency-Key can no longer be read.") from error
    headers = {"Idempotent-Replayed": "true"}
    if kept.clamped:
        headers[CLAMPED] = kept.clamped
    if kept.location:
        headers["Location"] = kept.location
    return await bytes_answer(body, accepts_gzip(request), services.limits, kept.http_status, headers)


def clamped_header(run: Run) -> dict[str, str]:
    """Present when the budget has lowered `max_tokens`, also one that was left out. Known once the run has begun."""
    return {CLAMPED: run.clamped} if run.clamped else {}


def raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As ASGI has them."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def json_answer(
    request: Request, value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    return await bytes_answer(body, accepts_gzip(request), services_of(request).limits, status, headers)


async def bytes_answer(
    body: bytes,
    gzip: bool,
    limits: Limits,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    tensors: bool = False,
) -> Response:
    """A JSON answer, compressed from `gzip_bytes` on when the client takes it. `tensors`: most of it is base64."""
    headers = dict(headers or {})
    if len(body) >= limits.gzip_bytes:
        headers["Vary"] = "Accept-Encoding"
        if gzip:
            headers["Content-Encoding"] = "gzip"
            inline = len(body) <= GZIP_INLINE_BYTES
            body = compress(body, tensors) if inline else await asyncio.to_thread(compress, body, tensors)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def compress(body: bytes, tensors: bool = False) -> bytes:
    packer = gzip_packer(zlib.Z_HUFFMAN_ONLY if tensors else zlib.Z_DEFAULT_STRATEGY)
    packed: bytes = packer.compress(body) + packer.flush()
    return packed


def gzip_packer(strategy: int = zlib.Z_DEFAULT_STRATEGY) -> Any:
    """Base64 of compressed bytes has no repeats to find: Huffman's codes alone are twice as fast, and smaller."""
    return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31, strategy=strategy)


def accepts_gzip(request: Request) -> bool:
    """Whether Accept-Encoding takes gzip: by its own weight if it is named, else by that of `*`."""
    weights = {}
    for offer in ",".join(request.headers.getlist("accept-encoding")).lower().split(","):
        name, *parameters = (part.strip() for part in offer.split(";"))
        weights[name] = _weight(parameters)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


async def error_answer(request: Request, error: ApiError) -> Response:
    return await json_answer(request, error.body(request_id_of(request)), status=error.status, headers=error.headers())
