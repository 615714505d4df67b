from __future__ import annotations

import re
from typing import Any

import pytest

from acs.serve_apps.proxy.middleware import middlewares

Headers = list[tuple[bytes, bytes]]


async def through(request: Headers, answer: Headers | None = None) -> tuple[Headers, Headers]:
    """The headers that the application sees, and those that the client gets."""
    seen: Headers = []
    sent: Headers = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": answer or []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.extend(message.get("headers", []))

    async def receive() -> Any:
        raise AssertionError("the middleware reads no body")

    wrapped: Any = application
    for middleware in middlewares():
        wrapped = middleware.cls(wrapped, *middleware.args, **middleware.kwargs)
    await wrapped({"type": "http", "headers": request}, receive, send)
    return seen, sent


def ids(headers: Headers) -> list[bytes]:
    return [value for name, value in headers if name.lower() == b"x-request-id"]


@pytest.mark.parametrize("given", [b"a", b"A-b_9", b"x" * 64])
async def test_a_clients_plain_id_is_kept(given: bytes) -> None:
    seen, sent = await through([(b"x-request-id", given)])
    assert ids(seen) == ids(sent) == [given]


@pytest.mark.parametrize("given", [b"", b"x" * 65, b"a b", b"a\n", b'"', "é".encode(), b"../x"])
async def test_any_other_id_is_replaced(given: bytes) -> None:
    seen, sent = await through([(b"x-request-id", given)])
    assert ids(seen) == ids(sent)
    assert len(ids(sent)) == 1
    assert re.fullmatch(rb"[0-9a-f]{32}", ids(sent)[0])


async def test_two_ids_are_none() -> None:
    _, sent = await through([(b"x-request-id", b"a"), (b"x-request-id", b"b")])
    assert len(ids(sent)) == 1
    assert ids(sent)[0] not in (b"a", b"b")


async def test_ids_differ_from_request_to_request() -> None:
    assert ids((await through([]))[1]) != ids((await through([]))[1])


async def test_an_answer_has_one_id_whatever_serve_and_the_application_added() -> None:
    answer = [(b"X-Request-ID", b"serve"), (b"x-request-id", b"app"), (b"Server", b"s"), (b"Date", b"d"), (b"a", b"b")]
    seen, sent = await through([], answer)
    assert sent == [(b"a", b"b"), (b"x-request-id", ids(seen)[0])]


@pytest.mark.parametrize(
    "control",
    [
        b"x-request-timeout-seconds",
        b"x-request-disconnect-disabled",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed_model-id",
        b"x-session-id",
        b"x_session_id",
        b"x-serve-router-target",
    ],
)
async def test_serves_control_headers_are_not_a_clients_to_set(control: bytes) -> None:
    seen, _ = await through([(control, b"?0"), (b"accept", b"*/*")])
    assert (control, b"?0") not in seen
    assert (b"accept", b"*/*") in seen


async def test_serve_leaves_disconnects_to_the_application() -> None:
    seen, _ = await through([])
    assert (b"x-request-disconnect-disabled", b"?1") in seen


async def test_what_is_not_http_passes_untouched() -> None:
    scopes = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    async def nothing(*_: Any) -> Any: ...

    await middlewares()[0].cls(application)({"type": "lifespan"}, nothing, nothing)
    assert scopes == [{"type": "lifespan"}]
