"""Looms: read one, follow it, retitle it, delete it or a part of it, list them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from acs.events.ids import LOOM, NODE
from acs.platform.errors import InvalidRequest, LoomNotFound
from acs.platform.ledger.loom_contract import LoomView
from acs.platform.looms.path import text_along
from acs.platform.looms.request import parse_change
from acs.platform.tokenizer import ModelTokenizer
from acs.platform.wiring import Services
from acs.serve_apps.api import http
from acs.serve_apps.api.hang_up import unless_gone
from acs.serve_apps.api.loom_parts import erased, kept_title, looms_of, path_of, read
from acs.serve_apps.api.render.loom import head_of, loom_head, loom_parts, size_of
from acs.serve_apps.api.routes.listing import after_of, id_of, limit_of, one, whole_number
from acs.serve_apps.api.stored_answer import StoredAnswer
from acs.storage.blobs import Blobs, BlobUnavailable

DECLINED = {"X-Acs-Longpoll": "declined", "Retry-After": "3"}
WAIT_MOST_S = 60
SINCE_MAX = 2**53 - 1
WHOLE_BYTES = 4 << 20  # larger Looms are sent bit by bit


async def list_looms(request: Request) -> Response:
    caller = await http.caller_of(request)
    limit, after = limit_of(request), after_of(request, LOOM, "Loom")
    looms = http.services_of(request).looms
    page = await looms_of(request).browse(caller.account_id, limit, after)
    try:
        found = await asyncio.to_thread(lambda: [loom_head(loom, looms) for loom in page.looms])
    except BlobUnavailable:  # one was deleted or retitled since
        page = await looms_of(request).browse(caller.account_id, limit, after)
        found = await asyncio.to_thread(_heads_that_are_there, page.looms, looms)
    return await http.json_answer(request, {"object": "list", "data": found, "has_more": page.has_more})


async def get_loom(request: Request) -> Response:
    """All of it; with `since`, what changed after that version, awaited with `wait`; or the text of one path."""
    services = http.services_of(request)
    caller = await http.caller_of(request)
    format = one(request, "format")
    if format not in (None, "json", "text"):
        raise InvalidRequest(f"format is {format[:40]!r}; it must be json or text.", param="format")
    if format == "text":
        return await _path_text(request, services, caller.account_id)
    since = whole_number(request, "since", 0, SINCE_MAX, 0)
    wait_s = whole_number(request, "wait", 0, WAIT_MOST_S, 0)
    loom_id = request.path_params["loom_id"]
    looking = looms_of(request).look(caller.account_id, caller.key_id, loom_id, since, wait_s)
    loom, declined = await unless_gone(request, looking)
    if since > loom.version:
        raise InvalidRequest(f"since is {since}; the Loom is at version {loom.version}.", param="since")
    headers = DECLINED if declined else {}

    def parts_of(view: LoomView) -> Callable[[], bytes]:
        return lambda: b"".join(loom_parts(view, services.looms, deleted=since > 0))

    if size_of(loom) > WHOLE_BYTES:
        parts = loom_parts(loom, services.looms, deleted=since > 0)
        return StoredAnswer(parts, http.accepts_gzip(request), services.limits)
    try:
        body = await asyncio.to_thread(parts_of(loom))
    except BlobUnavailable:  # something was deleted since
        loom, _ = await looms_of(request).look(caller.account_id, caller.key_id, loom_id, since, 0)
        body = await read(parts_of(loom))
    return await http.json_answer(request, body, headers=headers)


async def change_loom(request: Request) -> Response:
    services = http.services_of(request)
    caller, wanted = await http.admit(request, parse_change)
    loom_id = request.path_params["loom_id"]
    title = await kept_title(services, loom_id, wanted.title)
    try:
        loom = await looms_of(request).retitle(caller.account_id, loom_id, title.sha256 if title else None)
    except LoomNotFound:
        await erased(services.looms, title)
        raise
    return await http.json_answer(request, head_of(loom, wanted.title))


async def delete_loom(request: Request) -> Response:
    """With all its texts."""
    caller = await http.caller_of(request)
    loom_id = request.path_params["loom_id"]
    await looms_of(request).delete(caller.account_id, loom_id)
    return await http.json_answer(request, {"id": loom_id, "object": "loom", "deleted": True})


async def delete_node(request: Request) -> Response:
    """With its subtree."""
    caller = await http.caller_of(request)
    loom_id, node_id = request.path_params["loom_id"], request.path_params["node_id"]
    loom = await looms_of(request).delete_node(caller.account_id, loom_id, node_id)
    deleted = [node_id] if loom is None else loom.deleted
    return await http.json_answer(request, {"id": node_id, "object": "node", "deleted": deleted})


# Inside


def _heads_that_are_there(page: Iterable[LoomView], looms: Blobs) -> list[dict[str, Any]]:
    """Without those whose title is gone: the list would otherwise fail for one of its Looms."""
    heads = []
    for loom in page:
        with contextlib.suppress(BlobUnavailable):
            heads.append(loom_head(loom, looms))
    return heads


async def _path_text(request: Request, services: Services, account_id: str) -> Response:
    node_id = id_of(request, "node", NODE, "Node")
    if node_id is None:
        raise InvalidRequest("node is required with format=text: the Node at whose end the text ends.", param="node")
    loom = await looms_of(request).path(account_id, request.path_params["loom_id"], node_id)
    path = await path_of(services, loom)
    tokenizer = _tokenizer(services, loom)
    text = await asyncio.to_thread(text_along, path.contents, path.parent_tokens, tokenizer)
    return Response(text, media_type="text/plain")


def _tokenizer(services: Services, loom: LoomView) -> ModelTokenizer:
    """Of any model that has the Loom's."""
    for model in services.models.values():
        if model.tokenizer.sha256 == loom.tokenizer_sha256:
            return model.tokenizer
    raise InvalidRequest("No model is served any more whose tokenizer made the Loom's tokens.")
