"""What stands before Serve and our application in an ingress: one request id, none of Serve's control headers, and a
straight way to the application.

Serve takes a client's X-Request-Id unchecked and appends one of its own; it also lets clients change time limits,
cancellation and routing by header. `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names `middlewares`, so that this
wraps all of Serve's own code. It runs for every request: keep it to one pass over the headers.

Between here and the application Serve counts, logs, routes and watches for hang-ups, all of which we do ourselves or
HAProxy does: a third of what an ingress spends on a small completion. Once the application is there (`serve_straight`),
requests go to it, and only Serve's own paths to Serve. An ingress that is taken away still ends its requests first: its
HTTP server waits for them.
"""

from __future__ import annotations

import re
import uuid

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = b"x-request-id"
_VALID_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}").fullmatch

# Serve reads these from a client, and takes `-` and `_` for the same.
_SERVE_CONTROLS = frozenset(
    {
        b"x-request-timeout-seconds",
        b"x-request-disconnect-disabled",
        b"serve-multiplexed-model-id",
        b"x-session-id",
    }
)
_SERVE_ROUTER_PREFIX = b"x-serve-router-"
_SERVE_PATHS = "/-/"  # its health check

# With this, Serve hands our application the connection's own `receive`, and cancels nothing on its behalf: the
# application notices a client that hangs up, aborts its generation, and settles what it used.
_APPLICATION_HANDLES_DISCONNECT = (b"x-request-disconnect-disabled", b"?1")

# uvicorn writes a date and a server of its own (HAProxy takes the latter away).
_DROPPED_FROM_ANSWERS = frozenset({REQUEST_ID, b"server", b"date"})


_application: ASGIApp | None = None  # of this process


def serve_straight(application: ASGIApp) -> None:
    """From now on this process's requests go there."""
    global _application
    _application = application


class RequestId:
    """Gives every request one id, in its header `x-request-id`, and every answer the same one, once.

    A client's id is kept if it is 1 to 64 letters, digits, `_` and `-`; it is a label and may repeat.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = []
        headers = []
        for header in scope["headers"]:
            name = header[0]
            if name == REQUEST_ID:
                given.append(header[1])
                continue
            plain = name.replace(b"_", b"-")
            if plain not in _SERVE_CONTROLS and not plain.startswith(_SERVE_ROUTER_PREFIX):
                headers.append(header)
        request_id = given[0] if len(given) == 1 and _VALID_REQUEST_ID(given[0]) else uuid.uuid4().hex.encode()
        headers.append((REQUEST_ID, request_id))
        headers.append(_APPLICATION_HANDLES_DISCONNECT)
        scope["headers"] = headers

        async def send_with_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [h for h in message.get("headers", ()) if h[0].lower() not in _DROPPED_FROM_ANSWERS]
                kept.append((REQUEST_ID, request_id))
                message["headers"] = kept
            await send(message)

        app = self._app if _application is None or scope["path"].startswith(_SERVE_PATHS) else _application
        await app(scope, receive, send_with_one_id)


def middlewares() -> list[Middleware]:
    """Called by Serve in each ingress replica."""
    return [Middleware(RequestId)]
