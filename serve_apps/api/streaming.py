"""The streamed answer: events leave as soon as they are ready, in one write when several are."""

from __future__ import annotations

import asyncio
import logging
import time

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from acs.platform.completions.charge import ClientGone
from acs.platform.completions.road import Run
from acs.platform.errors import ApiError, InternalError
from acs.serve_apps.api import http
from acs.serve_apps.api.hang_up import interrupting
from acs.serve_apps.api.render.stream import DONE, KEEPALIVE, StreamRenderer

log = logging.getLogger("ray.serve")
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy of the operator's, nginx say, must not hold events back
]


class EventStream(Response):
    """Answers 200 with the first event or, when the request fails before anything was written, with the error's own
    status. A fault after that is one event with the error object, then [DONE].
    """

    def __init__(self, request: Request, run: Run) -> None:
        self._request = request
        self._limits = http.services_of(request).limits
        self._run = run
        self._started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with interrupting(self._request, self._run):
                async with self._run:
                    await self._send_events(send)
        except ClientGone:
            return
        except TimeoutError:
            raise  # it takes nothing, an error event neither: the connection is cut
        except ApiError as error:
            if not self._started:
                raise
            await self._fail(send, error)
        except Exception:
            if not self._started:
                raise
            log.exception("A stream failed.")
            await self._fail(send, InternalError("The server failed in the middle of the stream."))

    async def _send_events(self, send: Send) -> None:
        run = self._run
        renderer = StreamRenderer(run.plan, int(time.time()))
        while True:
            pieces = await run.ready(self._limits.keepalive_s)
            events = b"".join([renderer.events(piece) for piece in pieces]) if pieces else KEEPALIVE
            if not run.unfinished:
                options = run.plan.request.stream_options
                if options is not None and options.include_usage:
                    events += renderer.usage(run.completion_tokens)
                return await self._write(send, events + DONE, last=True)
            if events:
                await self._write(send, events)

    async def _write(self, send: Send, events: bytes, *, last: bool = False) -> None:
        if not self._started:
            self._started = True
            headers = [*HEADERS, *http.raw(http.clamped_header(self._run))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with asyncio.timeout(self._limits.stalled_s):  # one that reads no more would keep its engine for hours
            await send({"type": "http.response.body", "body": events, "more_body": not last})
        self._run.sent_tokens = self._run.completion_tokens

    async def _fail(self, send: Send, error: ApiError) -> None:
        event = orjson.dumps(error.body(http.request_id_of(self._request)))
        await self._write(send, b"data: " + event + b"\n\n" + DONE, last=True)
