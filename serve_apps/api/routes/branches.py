"""POST /v1/looms/{loom_id}/nodes/{node_id}/branch: continue a path, as a Completion is checked and charged."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from acs.events.ids import BRANCH, NODE, show, uuid7
from acs.platform.completions.charge import order_of
from acs.platform.completions.plan import Plan, find_model, plan_completion
from acs.platform.errors import ApiError, InvalidRequest, PartUnavailable
from acs.platform.idempotency import Replayed
from acs.platform.jobs.stored import request_blob
from acs.platform.ledger.contract import Kept
from acs.platform.ledger.loom_contract import AskBranch, NodeView
from acs.platform.looms.path import Path, path_along
from acs.platform.looms.request import Branching, fields_of, parse_branch
from acs.platform.looms.stored import asked_blob
from acs.platform.wiring import Services
from acs.serve_apps.api import http
from acs.serve_apps.api.loom_parts import erased, kept, looms_of, path_of, replayed_or_raised
from acs.serve_apps.api.render.loom import node_object, sampling_of
from acs.serve_apps.api.routes.loom_planting import PATH


async def branch(request: Request) -> Response:
    """The checks of a completion, in their order, with the Loom and its Node before the model."""
    services = http.services_of(request)

    def parse_with_body(body: Any) -> tuple[Branching, dict[str, Any]]:
        return parse_branch(body, services.limits), body

    admitted = await http.admit_once(request, parse_with_body)
    wanted, sent = admitted.wanted
    caller, key = admitted.caller, admitted.repeatable.key if admitted.repeatable else None
    loom_id, parent_id = request.path_params["loom_id"], request.path_params["node_id"]
    try:
        loom = await looms_of(request).path(caller.account_id, loom_id, parent_id, key)
    except Replayed as replayed:
        return await http.replay(request, replayed.kept)
    along = await path_of(services, loom)
    path = path_along(along.contents, along.parent_tokens, wanted.at_token)
    plan = await _plan(services, wanted, path, loom.tokenizer_sha256)
    order = order_of(caller, plan, http.request_id_of(request), key)
    order = msgspec.structs.replace(order, kind="branch", clamp=False)
    branch_id, created_at = show(BRANCH, uuid7()), int(time.time())
    asked = fields_of(sent)
    nodes = _pending(parent_id, wanted.at_token, branch_id, plan, asked, created_at)
    body = orjson.dumps({"id": branch_id, "object": "branch", "loom_id": loom_id, "nodes": nodes})
    to_run = {name: value for name, value in sent.items() if name != "at_token"} | {"prompt": path.token_ids}
    blobs = [
        await kept(services.looms, request_blob(branch_id, orjson.dumps(to_run))),
        await kept(services.looms, asked_blob(branch_id, asked)),
    ]
    answer: Kept | None = None
    if admitted.repeatable is not None:
        answer = await admitted.repeatable.keep(202, body, location=f"{PATH}/{loom_id}")
    command = AskBranch(
        looms_of(request).number(),
        loom_id,
        branch_id,
        parent_id,
        wanted.at_token,
        [node["id"] for node in nodes],
        path.logprob,
        order,
        blobs[0].sha256,
        blobs[1].sha256,
        blobs[1].size,
        created_at,
        answer,
    )
    try:
        await looms_of(request).branch(command)
    except PartUnavailable:
        raise  # the ledger may have taken it
    except (ApiError, Replayed) as refused:
        await erased(services.looms, *blobs)
        return await replayed_or_raised(request, refused)
    return await http.json_answer(request, body, status=202, headers={"Location": f"{PATH}/{loom_id}"})


def _pending(
    parent_id: str, at_token: int | None, branch_id: str, plan: Plan, asked: dict[str, Any], created_at: int
) -> list[dict[str, Any]]:
    """The Branch's Nodes as they are shown before they are grown."""
    views = (
        NodeView(show(NODE, uuid7()), parent_id, at_token, "pending", branch_id, number, None, 0)
        for number in range(plan.choices)
    )
    model = plan.request.model
    return [
        node_object(view, None, model=model, sampling=sampling_of(asked, view.number), created_at=created_at)
        for view in views
    ]


async def _plan(services: Services, wanted: Branching, path: Path, tokenizer_sha256: str) -> Plan:
    """Raises what a Completion's plan raises, and InvalidRequest for a model with other tokens."""
    model = find_model(services.models, wanted.completion.model)
    if model.tokenizer.sha256 != tokenizer_sha256:
        raise InvalidRequest(
            f"{model.entry.id} has another tokenizer than the Loom's root: its tokens mean something else.",
            param="model",
        )
    return await plan_completion(wanted.along(path.token_ids), services.models, services.limits)
