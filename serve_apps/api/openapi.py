"""The OpenAPI page: the same models that validate, and every answer a route can give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from acs.events.harvest import HarvestStatus
from acs.events.job import JobStatus
from acs.platform.completions.request import CompletionRequest
from acs.platform.harvests.request import HarvestRequest
from acs.platform.looms.request import BranchRequest, LoomChange, LoomRequest
from acs.serve_apps.api import answers
from acs.serve_apps.api.routes import files, harvests, loom_planting
from acs.serve_apps.api.routes.jobs import PATH
from acs.serve_apps.api.routes.listing import LISTED, LISTED_MOST
from acs.serve_apps.api.routes.tokenizer import DetokenizeRequest, TokenizeRequest
from acs.serve_apps.api.routes.usage import MONTH

PAGE: dict[str, Any] = {
    "title": "acs: a research API over base language models",
    "version": "1",
    "description": "Sample, score and stream from base models. Send `Authorization: Bearer sk-acs-…`. "
    "Errors: every answer of 400 and above is an Error object; `docs/errors.md` lists the codes.",
}
ERRORS: dict[int, str] = {
    400: "The request cannot be answered as it stands: bad_json, invalid_request, model_not_found, "
    "context_length_exceeded, deadline_infeasible or harvest_unsupported.",
    401: "missing_authorization, invalid_api_key, key_revoked, key_disabled or account_suspended.",
    405: "Not a method of this route; `Allow` lists them.",
    404: "job_not_found or harvest_job_not_found: unknown, another account's, or kept no longer. Of a Loom or a Node: "
    "null.",
    409: "Of an Idempotency-Key: running, no_answer or idempotency_conflict. Of a Job that has ended, and of a Node "
    "that is not done: null. Of a harvest that has ended: harvest_not_cancellable.",
    413: "request_too_large.",
    416: "The range begins behind the end of the file.",
    429: "Not let in: rate_limited, queue_full, spend_cap, budget_exceeded, job_capacity, "
    "harvest_concurrency_exceeded, harvest_capacity_exceeded or harvest_quota_exceeded.",
    500: "internal_error.",
    502: "Inference: upstream_unreachable, upstream_server_error, vllm_oom or vllm_engine_dead.",
    503: "circuit_open, upstream_unreachable while a cold model wakes, or a part of the platform coming back.",
    504: "upstream_deadline.",
}
EVENT: dict[str, Any] = {
    "type": "object",
    "description": "One Server-Sent Event a token; then, with include_usage, one with the counts; then [DONE].",
    "properties": {"data": {"type": "string", "description": "A Completion's next part, an Error, or [DONE]."}},
    "required": ["data"],
}
LOOM_ID, NODE_ID = "^loom_[0-9a-f]{32}$", "^node_[0-9a-f]{32}$"
JOB_ID, HARVEST_ID = "^job_[0-9a-f]{32}$", "^hrv_[0-9a-f]{32}$"
BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
SIGNED: dict[str, Any] = {
    "expires": {"type": "integer", "description": "Unix seconds."},
    "signature": {"type": "string"},
}
OF_ALL = (401, 405, 500, 503)
OF_BODIES = (400, 413)
OF_INFERENCE = (409, 429, 502, 504)


@dataclass(frozen=True)
class Operation:
    """One route of the contract. The first of `paths` is the documented one; the others answer the same."""

    name: str
    method: str
    paths: tuple[str, ...]
    summary: str
    extra: dict[str, Any]
    responses: dict[int | str, dict[str, Any]]


@cache
def operations() -> list[Operation]:
    """In the order of the page."""
    return [
        *_of_completions(),
        *_of_jobs(),
        *_of_harvests(),
        *_of_files(),
        *_of_looms(),
        *_of_accounts_and_models(),
        *_of_tokenizers(),
    ]


def _of_completions() -> list[Operation]:
    return [
        _operation(
            "create_completion",
            "POST",
            ("/v1/completions",),
            "Sample continuations",
            answers.Completion,
            (*OF_ALL, *OF_BODIES, *OF_INFERENCE),
            body=CompletionRequest,
            stream=True,
        ),
    ]


def _of_jobs() -> list[Operation]:
    return [
        _operation(
            "submit_job",
            "POST",
            (PATH,),
            "Leave a completion to the server",
            answers.CompletionJob,
            (*OF_ALL, *OF_BODIES, 409, 429),
            body=CompletionRequest,
            status=202,
        ),
        _operation(
            "list_jobs",
            "GET",
            (PATH,),
            "Your account's Jobs",
            answers.CompletionJobList,
            (400, *OF_ALL),
            query=_listing(JOB_ID, JobStatus),
        ),
        _operation("get_job", "GET", (f"{PATH}/{{job_id}}",), "A Job's status", answers.CompletionJob, (404, *OF_ALL)),
        _operation(
            "get_job_result",
            "GET",
            (f"{PATH}/{{job_id}}/result",),
            "A Job's result: the Completion, or the error that it ended with",
            answers.Completion,
            (400, 404, *OF_ALL, *OF_INFERENCE),
            not_yet=answers.CompletionJob,
        ),
        _operation(
            "cancel_job",
            "POST",
            (f"{PATH}/{{job_id}}/cancel",),
            "End a Job",
            answers.CompletionJob,
            (404, 409, *OF_ALL),
        ),
    ]


def _of_harvests() -> list[Operation]:
    one = (f"{harvests.PATH}/{{job_id}}",)
    submit = _operation(
        "submit_harvest",
        "POST",
        (harvests.PATH,),
        "Read the residual stream of many prompts",
        answers.Harvest,
        (*OF_ALL, *OF_BODIES, 409, 429),
        body=HarvestRequest,
        query={"dry_run": {"type": "string", "enum": ["true", "false"], "default": "false"}},
        status=202,
    )
    content = {"application/json": {"schema": _inline(answers.HarvestEstimate, answers=True)}}
    submit.responses[200] = {"description": "With `dry_run`: what it would cost.", "content": content}
    wait = {"type": "integer", "minimum": 0, "maximum": harvests.WAIT_MOST_S, "default": 0}
    return [
        submit,
        _operation(
            "list_harvests",
            "GET",
            (harvests.PATH,),
            "Your account's harvests",
            answers.HarvestList,
            (400, *OF_ALL),
            query=_listing(HARVEST_ID, HarvestStatus),
        ),
        _operation(
            "get_harvest",
            "GET",
            one,
            "A harvest: how far it is, then its files",
            answers.Harvest,
            (400, 404, *OF_ALL),
            query={"wait": wait},
        ),
        _operation("cancel_harvest", "DELETE", one, "End a harvest", answers.Harvest, (404, 409, *OF_ALL)),
    ]


def _of_files() -> list[Operation]:
    return [
        _operation(name, method, (files.PATH,), summary, None, (400, 404, 405, 416, 500, 503), query=SIGNED, key=False)
        for name, method, summary in (
            ("get_file", "GET", "A file of a harvest, by its signed link"),
            ("look_at_file", "HEAD", "Its size, without it"),
        )
    ]


def _listing(id_pattern: str, statuses: Iterable[str] | None = None) -> dict[str, Any]:
    terms: dict[str, Any] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": LISTED_MOST, "default": LISTED},
        "after": {"type": "string", "pattern": id_pattern},
    }
    return terms if statuses is None else {**terms, "status": {"type": "string", "enum": list(map(str, statuses))}}


def _of_looms() -> list[Operation]:
    loom, node = f"{loom_planting.PATH}/{{loom_id}}", f"{loom_planting.PATH}/{{loom_id}}/nodes/{{node_id}}"
    page = _listing(LOOM_ID)
    read = {
        "since": {"type": "integer", "minimum": 0, "description": "A version: what changed after it."},
        "wait": {"type": "integer", "minimum": 0, "maximum": 60, "description": "Seconds, until something has."},
        "format": {"type": "string", "enum": ["json", "text"], "description": "text: of one path, as plain text."},
        "node": {"type": "string", "pattern": NODE_ID, "description": "With format=text: where the path ends."},
    }
    made = (*OF_ALL, *OF_BODIES, 409)
    return [
        _operation(
            "create_loom",
            "POST",
            (loom_planting.PATH,),
            "Plant a Loom",
            answers.Loom,
            made,
            body=LoomRequest,
            status=201,
        ),
        _operation(
            "list_looms",
            "GET",
            (loom_planting.PATH,),
            "Your account's Looms",
            answers.LoomList,
            (400, *OF_ALL),
            query=page,
        ),
        _operation(
            "get_loom", "GET", (loom,), "A Loom, or what changed", answers.Loom, (400, 404, 409, *OF_ALL), query=read
        ),
        _operation(
            "change_loom",
            "PATCH",
            (loom,),
            "Retitle a Loom",
            answers.LoomHead,
            (404, *OF_ALL, *OF_BODIES),
            body=LoomChange,
        ),
        _operation("delete_loom", "DELETE", (loom,), "Delete a Loom", answers.LoomDeleted, (404, *OF_ALL)),
        _operation("delete_node", "DELETE", (node,), "Delete a subtree", answers.NodesDeleted, (400, 404, *OF_ALL)),
        _operation(
            "branch",
            "POST",
            (f"{node}/branch",),
            "Continue a path",
            answers.Branch,
            (404, 429, *made),
            body=BranchRequest,
            status=202,
        ),
    ]


def _of_accounts_and_models() -> list[Operation]:
    return [
        _operation("list_models", "GET", ("/v1/models",), "List the models", answers.ModelList, OF_ALL),
        _operation(
            "get_usage",
            "GET",
            ("/v1/usage",),
            "What your account used in a month",
            answers.UsageReport,
            (400, *OF_ALL),
            query={"month": {"type": "string", "pattern": f"^{MONTH}$", "examples": ["2026-11"]}},
        ),
        _operation(
            "health", "GET", ("/health",), "Whether the server answers", answers.Health, (405, 500, 503), key=False
        ),
    ]


def _of_tokenizers() -> list[Operation]:
    return [
        _operation(
            "tokenize",
            "POST",
            ("/tokenize", "/v1/completions/tokenize"),
            "Text to token ids",
            answers.Tokenized,
            (*OF_ALL, *OF_BODIES),
            body=TokenizeRequest,
        ),
        _operation(
            "detokenize",
            "POST",
            ("/detokenize", "/v1/completions/detokenize"),
            "Token ids to text",
            answers.Detokenized,
            (*OF_ALL, *OF_BODIES),
            body=DetokenizeRequest,
        ),
        _operation(
            "tokenizer_info",
            "GET",
            ("/tokenizer_info", "/v1/completions/tokenizer_info"),
            "The checkpoint's tokenizer settings",
            answers.TokenizerInfo,
            (400, *OF_ALL),
            query={"model": {"type": "string"}},
        ),
    ]


def _operation(
    name: str,
    method: str,
    paths: tuple[str, ...],
    summary: str,
    answer: type[BaseModel] | None,
    errors: tuple[int, ...],
    *,
    body: type[BaseModel] | None = None,
    query: dict[str, Any] | None = None,
    status: int = 200,
    not_yet: type[BaseModel] | None = None,
    stream: bool = False,
    key: bool = True,
) -> Operation:
    extra: dict[str, Any] = {"security": [{"key": []}] if key else []}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": _inline(body)}}}
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in (query or {}).items()
    ]
    for part in re.findall(r"{(\w+)}", paths[0]):
        parameters.append({"name": part, "in": "path", "required": True, "schema": {"type": "string"}})
    if parameters:
        extra["parameters"] = parameters
    content: dict[str, Any] = (
        BYTES if answer is None else {"application/json": {"schema": _inline(answer, answers=True)}}
    )
    if stream:
        content["text/event-stream"] = {"schema": EVENT}
    responses: dict[int | str, dict[str, Any]] = {status: {"description": "The answer.", "content": content}}
    if not_yet is not None:
        pending = {"application/json": {"schema": _inline(not_yet, answers=True)}}
        responses[202] = {"description": "It has not ended; ask again after `Retry-After`.", "content": pending}
    for fault in sorted(errors):
        responses[fault] = {
            "description": ERRORS[fault],
            "content": {"application/json": {"schema": _inline(answers.Error, answers=True)}},
        }
    return Operation(name, method, paths, summary, extra, responses)


def _inline(model: type[BaseModel], *, answers: bool = False) -> dict[str, Any]:
    """The model's JSON schema with its parts written out where they are used."""
    schema = model.model_json_schema(mode="serialization" if answers else "validation")
    parts = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(parts[node["$ref"].rsplit("/", 1)[-1]])
            return {name: resolve(value) for name, value in node.items()}
        return [resolve(value) for value in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved
