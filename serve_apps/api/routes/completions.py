"""POST /v1/completions: parse, plan, run, answer."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from acs.platform.completions.plan import plan_completion
from acs.platform.completions.request import parse_completion
from acs.platform.completions.road import Run
from acs.platform.idempotency import Replayed
from acs.serve_apps.api import http
from acs.serve_apps.api.gathered import gather
from acs.serve_apps.api.hang_up import interrupting
from acs.serve_apps.api.streaming import EventStream
from acs.serve_apps.api.whole_answer import rendered
from acs.serve_apps.api.whole_vocabulary import WholeVocabularyAnswer

_running: set[asyncio.Task[bytes]] = set()  # of this process, whoever still waits for them


async def create_completion(request: Request) -> Response:
    """The checks come in the order of the contract; the engine's own faults come last."""
    services = http.services_of(request)
    admitted = await http.admit_once(request, lambda body: parse_completion(body, services.limits))
    plan = await plan_completion(admitted.wanted, services.models, services.limits)
    run = Run(admitted.caller, plan, services.ledger, services.limits, http.request_id_of(request), admitted.repeatable)
    if plan.request.stream:
        return EventStream(request, run)
    if plan.whole_vocabulary:
        return WholeVocabularyAnswer(request, run)
    try:
        body = await (_body_wanted_again(run) if run.repeatable else _body_wanted_now(request, run))
    except Replayed as replayed:
        return await http.replay(request, replayed.kept)
    gzip, headers, tensors = http.accepts_gzip(request), http.clamped_header(run), bool(plan.generate.capture)
    return await http.bytes_answer(body, gzip, services.limits, headers=headers, tensors=tensors)


async def _body_wanted_now(request: Request, run: Run) -> bytes:
    with interrupting(request, run):
        return await gather(run, lambda gathered: rendered(run, gathered))


async def _body_wanted_again(run: Run) -> bytes:
    """Whoever hangs up now will come back for it with the same Idempotency-Key: the run goes on without them."""
    running = asyncio.create_task(gather(run, lambda gathered: rendered(run, gathered)))
    _running.add(running)
    running.add_done_callback(_running.discard)
    return await asyncio.shield(running)
