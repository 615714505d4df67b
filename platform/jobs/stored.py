"""What is kept of a Job in blobs: the request it was submitted with, and the error that it ended with.

A request's first line is the Job's id, so that no two Jobs share a blob: what one of them no longer needs is erased. (A
Completion is the answer's own bytes, and has an id of its own in it.)
"""

from __future__ import annotations

from typing import Any

import orjson

from acs.platform.errors import ApiError


def request_blob(job_id: str, body: bytes) -> bytes:
    return job_id.encode() + b"\n" + body


def body_of(request_blob: bytes) -> bytes:
    return request_blob.partition(b"\n")[2]


def error_blob(job_id: str, run: int, error: ApiError) -> bytes:
    return orjson.dumps({"job": job_id, "run": run, "error": error.body("")["error"], "headers": error.headers()})


def error_of(error_blob: bytes, request_id: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The error's body, for an answer with this request id, and its headers."""
    stored = orjson.loads(error_blob)
    return {"error": stored["error"], "request_id": request_id}, stored["headers"]
