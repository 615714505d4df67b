"""POST /v1/looms: plant a Loom, from a prompt or from the Nodes of another."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from acs.events.ids import LOOM, NODE, show, uuid7
from acs.platform.completions.plan import check_vocabulary, find_model, tokenise
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ApiError, ContextLengthExceeded, InvalidRequest, PartUnavailable
from acs.platform.idempotency import Replayed
from acs.platform.ledger.loom_contract import CreateLoom, Imported, NodeView, Written
from acs.platform.limits import Limits
from acs.platform.looms.imported import Planted, plant
from acs.platform.looms.request import LoomRequest, parse_loom
from acs.platform.looms.stored import NodeContent
from acs.platform.tokenizer import UNFINISHED
from acs.platform.wiring import Services
from acs.serve_apps.api import http
from acs.serve_apps.api.loom_parts import erased, kept, kept_title, looms_of, replayed_or_raised
from acs.serve_apps.api.render.loom import node_object

PATH = "/v1/looms"


async def create_loom(request: Request) -> Response:
    services = http.services_of(request)
    admitted = await http.admit_once(request, parse_loom)
    wanted, caller = admitted.wanted, admitted.caller
    model = _model(services, wanted.model)
    root, *others = await _nodes(model, wanted, services.limits)
    loom_id, created_at = show(LOOM, uuid7()), int(time.time())
    version = 2 if others else 1
    head = {"id": loom_id, "object": "loom", "title": wanted.title, "version": version, "created_at": created_at}
    nodes = [_new_node(node, created_at) for node in (root, *others)]
    body, location = orjson.dumps({**head, "nodes": nodes}), f"{PATH}/{loom_id}"
    written = [await _kept_node(services, node) for node in (root, *others)]
    title = await kept_title(services, loom_id, wanted.title)
    answer = None
    if admitted.repeatable is not None:
        answer = await admitted.repeatable.keep(201, body, location=location)
    command = CreateLoom(
        looms_of(request).number(),
        loom_id,
        caller.account_id,
        caller.key_id,
        model.entry.id,
        model.tokenizer.sha256,
        title.sha256 if title else None,
        written[0],
        created_at,
        admitted.repeatable.key if admitted.repeatable else None,
        answer,
        [_imported(node, content) for node, content in zip(others, written[1:], strict=True)],
    )
    try:
        await looms_of(request).create(command)
    except PartUnavailable:
        raise  # the ledger may have taken it
    except (ApiError, Replayed) as refused:
        await erased(services.looms, *written, title)
        return await replayed_or_raised(request, refused)
    return await http.json_answer(request, body, status=201, headers={"Location": location})


def _model(services: Services, model_id: str | None) -> ServedModel:
    """Raises ModelNotFound. The first of the catalogue when none is named."""
    return next(iter(services.models.values())) if model_id is None else find_model(services.models, model_id)


async def _nodes(model: ServedModel, wanted: LoomRequest, limits: Limits) -> list[Planted]:
    """The root alone, or all that are imported. Raises InvalidRequest and ContextLengthExceeded."""
    if wanted.nodes is not None:
        if len(wanted.nodes) > limits.loom_nodes:
            count = len(wanted.nodes)
            raise InvalidRequest(f"nodes has {count} Nodes; a Loom has at most {limits.loom_nodes}.", param="nodes")
        planted = await asyncio.to_thread(plant, wanted.nodes, model.tokenizer, model.entry.id, model.max_model_len)
        _check_root(model, planted[0].content, "nodes[0]")
        return planted
    prompt = wanted.prompt
    (ids,) = await tokenise(model, [prompt], wanted.add_special_tokens is not False)
    check_vocabulary(model, [ids], lambda _: "prompt")
    as_sent = isinstance(prompt, str) and not prompt.endswith(UNFINISHED)
    text = prompt if as_sent else model.tokenizer.settled(ids)
    root = NodeContent(text, ids, None, None, None, model.entry.id, None)
    _check_root(model, root, "prompt")
    return [Planted(show(NODE, uuid7()), None, None, root, 0, 0.0, 0)]


def _check_root(model: ServedModel, root: NodeContent, param: str) -> None:
    """Raises ContextLengthExceeded."""
    tokens = len(root.token_ids)
    if tokens >= model.max_model_len:
        raise ContextLengthExceeded(
            f"The root has {tokens} tokens; the context of {model.entry.id} is {model.max_model_len} tokens, and a "
            "continuation needs at least one.",
            param=param,
        )


def _new_node(node: Planted, created_at: int) -> dict[str, Any]:
    parent_id = node.parent.node_id if node.parent is not None else None
    view = NodeView(node.node_id, parent_id, node.parent_token, "done", None, 0, None, 0)
    content = node.content
    return node_object(view, content, model=content.model, sampling=content.sampling, created_at=created_at)


async def _kept_node(services: Services, node: Planted) -> Written:
    blob = await kept(services.looms, node.content.blob(node.node_id, 0))
    return Written(node.node_id, blob.sha256, blob.size, len(node.content.token_ids))


def _imported(node: Planted, content: Written) -> Imported:
    assert node.parent is not None, "it is not the root"
    terms = node.content.model, node.content.finish_reason, node.logprob
    path = node.depth, node.path_tokens, node.path_logprob
    return Imported(content, node.parent.node_id, node.parent_token, *path, *terms)
