"""Completion Jobs: submit one, look at it, fetch its result, cancel it, list them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from acs.events.ids import JOB, show, uuid7
from acs.events.job import JobStatus
from acs.platform.completions.charge import order_of
from acs.platform.completions.plan import plan_completion
from acs.platform.completions.request import CompletionRequest, parse_completion
from acs.platform.errors import ApiError, InternalError, JobEnded, PartUnavailable
from acs.platform.idempotency import HEADER, Replayed, check_key, idempotency_key
from acs.platform.jobs.client import JobClient
from acs.platform.jobs.stored import error_of, request_blob
from acs.platform.ledger.job_contract import JobView
from acs.serve_apps.api import http
from acs.serve_apps.api.routes.listing import after_of, limit_of, status_of
from acs.serve_apps.api.stored_answer import StoredAnswer
from acs.storage.blobs import BlobUnavailable

PATH = "/v1/completion-jobs"
WHOLE_BYTES = 4 << 20  # larger results are sent bit by bit


async def submit_job(request: Request) -> Response:
    """The checks of a completion, in their order; what it would run is kept instead."""
    services = http.services_of(request)

    def parse_with_text(body: Any) -> tuple[CompletionRequest, bytes]:
        return parse_completion(body, services.limits, streamable=False), orjson.dumps(body)

    admitted = await http.admit_once(request, parse_with_text)
    wanted, text = admitted.wanted
    plan = await plan_completion(wanted, services.models, services.limits)
    key = admitted.repeatable.key if admitted.repeatable else None
    order = order_of(admitted.caller, plan, http.request_id_of(request), key)
    order = msgspec.structs.replace(order, kind="job", clamp=False)
    job = _new_job(wanted.model)
    body, headers = orjson.dumps(job_object(job)), {"Location": f"{PATH}/{job.id}"}
    try:
        blob = await asyncio.to_thread(services.jobs.put, request_blob(job.id, text))
    except BlobUnavailable as error:
        raise PartUnavailable("The request cannot be kept at the moment. Try again.") from error
    kept = None
    if admitted.repeatable is not None:
        kept = await admitted.repeatable.keep(202, body, location=headers["Location"])
    try:
        await _jobs(request).submit(job.id, order, blob.sha256, job.created_at, kept)
    except PartUnavailable:
        raise  # the ledger may have taken it
    except (ApiError, Replayed) as refused:
        await asyncio.to_thread(services.jobs.erase, blob.sha256)
        if isinstance(refused, Replayed):
            return await http.replay(request, refused.kept)
        raise
    return await http.json_answer(request, body, status=202, headers=headers)


async def get_job(request: Request) -> Response:
    return await http.json_answer(request, job_object(await _job(request)))


async def get_job_result(request: Request) -> Response:
    """The Completion's own status and body, once it has ended."""
    services = http.services_of(request)
    job = await _job(request)
    if job.http_status is None:
        if JobStatus(job.status).ended:
            raise JobEnded(f"The Job was {job.status}; it has no result.")
        return await http.json_answer(request, job_object(job), status=202, headers={"Retry-After": "1"})
    if job.result_bytes > WHOLE_BYTES:
        return StoredAnswer(services.jobs.parts(job.result_sha256 or ""), http.accepts_gzip(request), services.limits)
    try:
        stored = await asyncio.to_thread(services.jobs.get, job.result_sha256 or "")
    except (BlobUnavailable, ValueError) as error:
        raise InternalError("The Job's result cannot be read.") from error
    if job.http_status == 200:
        return await http.json_answer(request, stored)
    body, headers = error_of(stored, http.request_id_of(request))
    return await http.json_answer(request, body, status=job.http_status, headers=headers)


async def cancel_job(request: Request) -> Response:
    """It takes no body, and passes over one that comes."""
    caller = await http.caller_of(request)
    name = check_key(request.headers.getlist(HEADER))
    key = idempotency_key(caller, request.method, request.scope["path"], name, sha256="") if name else None
    job, repeated = await _jobs(request).cancel(caller.account_id, request.path_params["job_id"], key)
    headers = {"Idempotent-Replayed": "true"} if repeated else {}
    return await http.json_answer(request, job_object(job), headers=headers)


async def list_jobs(request: Request) -> Response:
    caller = await http.caller_of(request)
    limit, after, status = limit_of(request), after_of(request, JOB, "Job"), status_of(request, JobStatus)
    page = await _jobs(request).browse(caller.account_id, limit, after, status)
    jobs = [job_object(job) for job in page.jobs]
    return await http.json_answer(request, {"object": "list", "data": jobs, "has_more": page.has_more})


def job_object(job: JobView) -> dict[str, Any]:
    return {
        "id": job.id,
        "object": "completion_job",
        "status": job.status,
        "model": job.model,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "http_status": job.http_status,
        "expires_at": job.expires_at,
    }


def _new_job(model: str) -> JobView:
    """As it is told to its client, who may be told the same again."""
    id = show(JOB, uuid7())
    return JobView(id, JobStatus.QUEUED.value, model, int(time.time()), None, None, None, None, None, 0)


def _jobs(request: Request) -> JobClient:
    return JobClient(http.services_of(request).ledger.asks)


async def _job(request: Request) -> JobView:
    caller = await http.caller_of(request)
    return await _jobs(request).get(caller.account_id, request.path_params["job_id"])
