"""Looms and their Nodes as JSON, made of what the ledger tells and of the blobs that it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from acs.platform.completions.request import SEED_MAX
from acs.platform.jobs.stored import error_of
from acs.platform.ledger.loom_contract import BranchView, LoomView, NodeView
from acs.platform.looms.stored import NodeContent, asked_of, read_content, title_of
from acs.storage.blobs import Blobs

CANCELLED = {"message": "The account was suspended.", "type": "authentication_error", "param": None}
CANCELLED |= {"code": "account_suspended"}


def loom_head(loom: LoomView, looms: Blobs) -> dict[str, Any]:
    """Without its Nodes. Raises BlobUnavailable."""
    return head_of(loom, None if loom.title_sha256 is None else title_of(looms.get(loom.title_sha256)))


def head_of(loom: LoomView, title: str | None) -> dict[str, Any]:
    return {
        "id": loom.id,
        "object": "loom",
        "title": title,
        "version": loom.version,
        "created_at": loom.created_at,
    }


def loom_parts(loom: LoomView, looms: Blobs, *, deleted: bool) -> Iterator[bytes]:
    """The bytes of a Loom, bit by bit. `deleted`: whether it names the Nodes that were. Raises BlobUnavailable."""
    yield orjson.dumps(loom_head(loom, looms))[:-1] + b',"nodes":['
    asked: dict[str, dict[str, Any]] = {}  # of the Branch at hand: its Nodes come one after the other
    branches = {branch.id: branch for branch in loom.branches}
    for number, node in enumerate(loom.nodes):
        branch = branches.get(node.branch_id or "")
        if branch is not None and branch.id not in asked:
            asked = {branch.id: asked_of(looms.get(branch.asked_sha256))}
        shown = _node(loom, node, branch, asked[branch.id] if branch else None, looms)
        yield (b"," if number else b"") + orjson.dumps(shown)
    yield b"]" + (b',"deleted":' + orjson.dumps(loom.deleted) if deleted else b"") + b"}"


def size_of(loom: LoomView) -> int:
    """About, in bytes."""
    asked = {branch.id: branch.asked_bytes for branch in loom.branches}
    return sum(node.content_bytes + asked.get(node.branch_id or "", 0) for node in loom.nodes)


def _node(
    loom: LoomView, node: NodeView, branch: BranchView | None, asked: dict[str, Any] | None, looms: Blobs
) -> dict[str, Any]:
    content = read_content(looms, node.content_sha256) if node.content_sha256 is not None else None
    error = None
    if branch is not None and node.status == "failed":
        kept = branch.error_sha256
        error = error_of(looms.get(kept), "")[0]["error"] if kept is not None else CANCELLED
    return node_object(
        node,
        content,
        model=branch.model if branch else content.model if content else None,
        sampling=sampling_of(asked, node.number) if asked is not None else content.sampling if content else None,
        created_at=branch.created_at if branch else loom.created_at,
        error=error,
    )


def node_object(
    node: NodeView,
    content: NodeContent | None,
    *,
    model: str | None,
    sampling: dict[str, Any] | None,
    created_at: int,
    error: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """`content`: None until it is done."""
    return {
        "id": node.id,
        "parent_id": node.parent_id,
        "parent_token": node.parent_token,
        "status": node.status,
        "text": content.text if content else None,
        "token_ids": content.token_ids if content else None,
        "model": model,
        "sampling": sampling,
        "finish_reason": content.finish_reason if content else None,
        "usage": content.usage if content else None,
        "logprobs": content.logprobs if content else None,
        "created_at": created_at,
        "error": error,
    }


def sampling_of(asked: dict[str, Any], number: int) -> dict[str, Any]:
    """Of one choice: a Completion with these fields and its path as the prompt draws the same tokens."""
    if "seed" not in asked:
        return asked
    return {**asked, "seed": (asked["seed"] + number) % (SEED_MAX + 1)}
