"""POST /v1/completions: parse, plan, run, answer."""

from __future__ import annotations

import asyncio
import time

import orjson
from starlette.requests import Request
from starlette.responses import Response

from acs.platform.completions.plan import Plan, plan_completion
from acs.platform.completions.request import parse_completion
from acs.platform.ledger.contract import Caller
from acs.serve_apps.api import http
from acs.serve_apps.api.gathered import gather
from acs.serve_apps.api.hang_up import interrupting
from acs.serve_apps.api.render.completion import completion_of
from acs.serve_apps.api.streaming import EventStream
from acs.serve_apps.api.whole_vocabulary import WholeVocabularyAnswer

RENDER_INLINE_ENTRIES = 2_000  # about 1 ms of rendering; larger answers are rendered beside the event loop


async def create_completion(request: Request) -> Response:
    """The checks come in the order of the contract; the engine's own faults come last."""
    services = http.services_of(request)
    caller, wanted = await http.admit(request, lambda body: parse_completion(body, services.limits))
    plan = await plan_completion(wanted, services.models, services.limits)
    if wanted.stream:
        return EventStream(request, caller, plan)
    if plan.whole_vocabulary:
        return WholeVocabularyAnswer(request, caller, plan)
    return await _whole(request, caller, plan)


async def _whole(request: Request, caller: Caller, plan: Plan) -> Response:
    run = http.run_of(request, caller, plan)
    with interrupting(request, run):
        gathered = await gather(run)
    created = int(time.time())

    def render() -> bytes:
        return orjson.dumps(completion_of(gathered, created))

    body = await asyncio.to_thread(render) if gathered.entries > RENDER_INLINE_ENTRIES else render()
    headers = {name.decode(): value.decode() for name, value in http.clamp_header(run)}
    return await http.bytes_answer(body, http.accepts_gzip(request), http.services_of(request).limits, headers=headers)
