"""A Loom as its account may see it, or what changed of it since a version."""

from __future__ import annotations

from collections.abc import Iterable

from acs.events.loom_tree import LoomRecord, NodeRecord
from acs.platform.ledger.loom_contract import BranchView, LoomView, NodeView


def view(loom_id: str, version: int, record: LoomRecord, since: int = 0, only: Iterable[str] | None = None) -> LoomView:
    """The Nodes that changed after version `since`, or `only` these; with `since`, also those deleted after it."""
    shown = [(node_id, record.nodes[node_id]) for node_id in (record.nodes if only is None else only)]
    nodes = [_node(node_id, node, record) for node_id, node in shown if node.version > since]
    return LoomView(
        id=loom_id,
        title_sha256=record.title_sha256,
        model=record.model,
        tokenizer_sha256=record.tokenizer_sha256,
        version=version,
        created_at=record.created_at,
        nodes=nodes,
        branches=_branches(nodes, record),
        deleted=[node_id for node_id, at in record.gone.items() if at > since] if since else [],
    )


def _node(node_id: str, node: NodeRecord, record: LoomRecord) -> NodeView:
    branch = record.branches[node.branch_id] if node.branch_id is not None else None
    return NodeView(
        id=node_id,
        parent_id=node.parent_id,
        parent_token=node.parent_token,
        status=record.status_of(node),
        branch_id=node.branch_id,
        number=branch.node_ids.index(node_id) if branch is not None else 0,
        content_sha256=node.content_sha256,
        content_bytes=node.content_bytes,
    )


def _branches(nodes: list[NodeView], record: LoomRecord) -> list[BranchView]:
    """Those that the Nodes came from, each once."""
    found = dict.fromkeys(node.branch_id for node in nodes if node.branch_id is not None)
    return [
        BranchView(id, of.model, of.created_at, of.asked_sha256, of.asked_bytes, of.error_sha256)
        for id, of in ((id, record.branches[id]) for id in found)
    ]
