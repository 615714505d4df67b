"""The HTTP application: its routes, and every fault rendered in the one shape of the contract."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from acs.platform.completions.charge import ClientGone
from acs.platform.errors import ApiError, BadJson, InternalError, MethodNotAllowed, NotFound
from acs.platform.wiring import Services
from acs.serve_apps.api import docs, http
from acs.serve_apps.api.openapi import PAGE, Operation, operations
from acs.serve_apps.api.routes import (
    branches,
    completions,
    files,
    harvests,
    jobs,
    loom_planting,
    looms,
    models,
    tokenizer,
    usage,
)

log = logging.getLogger("ray.serve")
Handler = Callable[[Request], Awaitable[Response]]

HANDLERS: dict[str, Handler] = {
    "create_completion": completions.create_completion,
    "submit_job": jobs.submit_job,
    "list_jobs": jobs.list_jobs,
    "get_job": jobs.get_job,
    "get_job_result": jobs.get_job_result,
    "cancel_job": jobs.cancel_job,
    "submit_harvest": harvests.submit_harvest,
    "list_harvests": harvests.list_harvests,
    "get_harvest": harvests.get_harvest,
    "cancel_harvest": harvests.cancel_harvest,
    "get_file": files.get_file,
    "look_at_file": files.get_file,
    "create_loom": loom_planting.create_loom,
    "list_looms": looms.list_looms,
    "get_loom": looms.get_loom,
    "change_loom": looms.change_loom,
    "delete_loom": looms.delete_loom,
    "delete_node": looms.delete_node,
    "branch": branches.branch,
    "list_models": models.list_models,
    "get_usage": usage.get_usage,
    "tokenize": tokenizer.tokenize,
    "detokenize": tokenizer.detokenize,
    "tokenizer_info": tokenizer.tokenizer_info,
}
SHORT_CUTS: dict[str, Handler] = {"/v1/completions": completions.create_completion, jobs.PATH: jobs.submit_job}


class Application:
    """The FastAPI application, with a short cut to the routes that carry the traffic.

    Measured: FastAPI's and Starlette's layers cost an ingress as much as all of our own work on a completion. The short
    cut calls the same handlers and renders faults by the same functions; everything else about the routes, their place
    in the OpenAPI page and their 405 included, is FastAPI's.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = SHORT_CUTS.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handler is None:
            return await self._app(scope, receive, send)
        scope["app"] = self._app
        request = Request(scope, receive, send)
        started = False

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            response = await handler(request)
            await response(scope, receive, send_noting)
        except Exception as error:
            if started:  # the server cuts the connection, so that half an answer does not pass for a whole one
                raise
            response = await _answer_to(request, error)
            await response(scope, receive, send)


def create_app(services: Services) -> Application:
    """Builds everything at once: Serve ignores what is added after the first request."""
    app = FastAPI(**PAGE, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services = services
    app.state.vocabulary_json = {}
    handlers = {**HANDLERS, "health": _health}
    for operation in operations():
        _add(app, operation, handlers[operation.name])
    docs.add_to(app)
    for kind in (ApiError, HTTPException, ClientGone, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer_to)
    return Application(app)


def _add(app: FastAPI, operation: Operation, handler: Handler) -> None:
    for path in operation.paths:
        app.add_api_route(
            path,
            handler,
            methods=[operation.method],
            operation_id=operation.name if path == operation.paths[0] else None,
            summary=operation.summary,
            response_model=None,
            openapi_extra=operation.extra,
            responses=operation.responses,
            include_in_schema=path == operation.paths[0],
        )


async def _health(request: Request) -> Response:
    """The ingress answers; what each model's engine is doing is in GET /v1/models."""
    return await http.json_answer(request, {"status": "ok"})


async def _answer_to(request: Request, error: Exception) -> Response:
    """Every fault, in the one shape of the contract."""
    match error:
        case ApiError():
            answer = error
        case HTTPException():
            answer = _of_starlette(request, error)
        case ClientGone() | ClientDisconnect():
            return Response(status_code=499)  # nobody reads it; Serve's metrics count it
        case _:
            log.error("Request %s failed by our own fault.", http.request_id_of(request), exc_info=error)
            answer = InternalError()
    return await http.error_answer(request, answer)


def _of_starlette(request: Request, error: HTTPException) -> ApiError:
    """Starlette's own 404 and 405; `Allow` names the methods of every route of the path."""
    path = request.scope["path"][:200]  # `request.url` fails on a malformed Host header
    if error.status_code == 405:
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        allow = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
        allow = allow or "GET, HEAD"  # the mounted files of /docs
        return MethodNotAllowed(f"{request.method} is not a method of {path}; it takes {allow}.", allow=allow)
    if error.status_code == 404:
        return NotFound(f"There is no route {path}. /docs lists them.")
    return BadJson(str(error.detail))
