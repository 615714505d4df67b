"""Harvests: submit one or ask what it would cost, look at it, wait for it, cancel it, list them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from acs.events.harvest import HarvestStatus, Terms
from acs.events.ids import HARVEST, HOLD, made_at, show, uuid7
from acs.platform.errors import ApiError, PartUnavailable
from acs.platform.harvests.client import HarvestClient
from acs.platform.harvests.estimate import estimate_of
from acs.platform.harvests.links import BucketLinks, Links
from acs.platform.harvests.plan import HarvestPlan, plan_harvest
from acs.platform.harvests.request import parse_harvest
from acs.platform.harvests.stored import encode
from acs.platform.idempotency import Replayed
from acs.platform.jobs.stored import request_blob
from acs.platform.ledger.contract import Caller, IdempotencyKey, Open
from acs.platform.ledger.harvest_contract import HarvestView
from acs.serve_apps.api import http
from acs.serve_apps.api.hang_up import unless_gone
from acs.serve_apps.api.routes.listing import after_of, flag, limit_of, status_of, whole_number
from acs.storage.blobs import BlobUnavailable
from acs.storage.shards.layout import MANIFEST, STATS

PATH = "/v1/harvest"
WAIT_MOST_S = 60
DECLINED = {"X-Acs-Longpoll": "declined", "Retry-After": "3"}
_FAULTS = {
    "storage_full": "The disk or bucket that takes the files is full. Submit the harvest again when there is room.",
    "storage_unavailable": "The disk or bucket that takes the files cannot be written. Submit the harvest again later.",
    "runner_lost": "What runs harvests died again and again while it ran this one, most likely out of memory. Submit "
    "the harvest again with a smaller `shard_size` or fewer layers.",
}


async def submit_harvest(request: Request) -> Response:
    """With `dry_run`, only what it would cost: nothing is held."""
    services = http.services_of(request)
    limits = services.limits
    admitted = await http.admit_once(request, lambda body: parse_harvest(body, limits), limits.harvest_body_bytes)
    dry_run = flag(request, "dry_run")
    plan = await plan_harvest(admitted.wanted, services.models, limits)
    if dry_run:
        pace = await _harvests(request).pace(plan.model.entry.id)
        return await http.json_answer(request, estimate_of(plan, pace))
    harvest_id = show(HARVEST, uuid7())
    body, location = orjson.dumps(_head(harvest_id, HarvestStatus.PENDING, plan)), f"{PATH}/{harvest_id}"
    try:
        blob = await asyncio.to_thread(lambda: services.harvest_plans.put(request_blob(harvest_id, encode(plan))))
    except BlobUnavailable as error:
        raise PartUnavailable("The request cannot be kept at the moment. Try again.") from error
    kept, key = None, None
    if admitted.repeatable is not None:
        key = admitted.repeatable.key
        kept = await admitted.repeatable.keep(202, body, location=location)
    order = _order(admitted.caller, plan, http.request_id_of(request), key)
    try:
        await _harvests(request).submit(harvest_id, order, _terms(order, plan, blob.sha256), kept)
    except PartUnavailable:
        raise  # the ledger may have taken it
    except (ApiError, Replayed) as refused:
        await asyncio.to_thread(services.harvest_plans.erase, blob.sha256)
        if isinstance(refused, Replayed):
            return await http.replay(request, refused.kept)
        raise
    return await http.json_answer(request, body, status=202, headers={"Location": location})


async def get_harvest(request: Request) -> Response:
    """With `wait`, once its status has changed."""
    caller = await http.caller_of(request)
    wait_s = whole_number(request, "wait", 0, WAIT_MOST_S, 0)
    waiting = _harvests(request).wait(caller, request.path_params["job_id"], wait_s)
    harvest, declined = await unless_gone(request, waiting)  # others have the place of one that hangs up
    shown = harvest_object(harvest, http.services_of(request).links)
    return await http.json_answer(request, shown, headers=DECLINED if declined else {})


async def cancel_harvest(request: Request) -> Response:
    caller = await http.caller_of(request)
    harvest = await _harvests(request).cancel(caller.account_id, request.path_params["job_id"])
    return await http.json_answer(request, harvest_object(harvest, http.services_of(request).links))


async def list_harvests(request: Request) -> Response:
    """Without their links."""
    caller = await http.caller_of(request)
    terms = limit_of(request), after_of(request, HARVEST, "harvest"), status_of(request, HarvestStatus)
    page = await _harvests(request).browse(caller.account_id, *terms)
    shown = [harvest_object(harvest, None) for harvest in page.harvests]
    return await http.json_answer(request, {"object": "list", "data": shown, "has_more": page.has_more})


def harvest_object(harvest: HarvestView, links: Links | BucketLinks | None) -> dict[str, Any]:
    """`links`: None for one of a list, whose `result` is left out."""
    status = HarvestStatus(harvest.status)
    found = _head(harvest.id, status, harvest)
    if harvest.started_at is not None:
        found["started_at"] = _iso(harvest.started_at)
    if status is HarvestStatus.RUNNING:
        found["progress"] = {
            "prompts_done": harvest.prompts_done,
            "tokens_done": harvest.tokens_done,
            "shards_done": harvest.shards_done,
            "bytes_done": harvest.bytes_done,
        }
    if harvest.finished_at is not None:
        found["completed_at"] = _iso(harvest.finished_at)
    if status is HarvestStatus.FAILED:
        word = harvest.word or ""
        found["error"] = {"code": word, "message": _FAULTS.get(word, "The model could not read all prompts.")}
    if harvest.expires_at is not None:
        if links is not None:
            found["result"] = _result(harvest, links)
        found["urls_expire_at"] = _iso(harvest.expires_at)
        if harvest.expired:
            found["urls_expired"] = True
    return found


def _head(harvest_id: str, status: HarvestStatus, sized: HarvestView | HarvestPlan) -> dict[str, Any]:
    """What every Harvest shows, in each status."""
    if isinstance(sized, HarvestPlan):
        model, n_prompts = sized.model.entry.id, len(sized.prompts)
    else:
        model, n_prompts = sized.model, sized.n_prompts
    return {
        "job_id": harvest_id,
        "status": status.value,
        "model": model,
        "n_prompts": n_prompts,
        "n_tokens": sized.n_tokens,
        "created_at": _iso(made_at(harvest_id)),
    }


def _result(harvest: HarvestView, links: Links | BucketLinks) -> dict[str, Any]:
    assert harvest.expires_at is not None
    expires = int(harvest.expires_at.timestamp())

    def url(file: str) -> str:
        return links.url(harvest.id, file, expires)

    gone = harvest.expired
    return {
        "n_shards": harvest.n_shards,
        "layer_indices": harvest.layers,
        "manifest_url": None if gone else url(MANIFEST),
        "shard_urls": [] if gone else [url(file) for file in harvest.files],
        "stats_url": None if gone else url(STATS),
        "timings": {"forward_s": harvest.forward_s, "write_s": harvest.write_s, "tokens": harvest.n_tokens},
    }


def _order(caller: Caller, plan: HarvestPlan, request_id: str, key: IdempotencyKey | None) -> Open:
    return Open(
        hold_id=show(HOLD, uuid7()),
        account_id=caller.account_id,
        key_id=caller.key_id,
        request_id=request_id,
        model=plan.model.entry.id,
        kind="harvest",
        user=None,
        prompt_tokens=plan.n_tokens,
        choices=len(plan.prompts),
        max_tokens=0,  # what the engine generates after a prompt is thrown away, and not charged
        min_tokens=0,
        clamp=False,
        key=key,
    )


def _terms(order: Open, plan: HarvestPlan, plan_sha256: str) -> Terms:
    return Terms(
        account_id=order.account_id,
        key_id=order.key_id,
        model=order.model,
        hold_id=order.hold_id,
        request_id=order.request_id,
        plan_sha256=plan_sha256,
        n_prompts=len(plan.prompts),
        n_tokens=plan.n_tokens,
        n_shards=len(plan.shards),
        layers=plan.layers,
        width=plan.width,
        positions=plan.positions,
        max_bytes=plan.max_bytes,
    )


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _harvests(request: Request) -> HarvestClient:
    return HarvestClient(http.services_of(request).ledger.asks)
