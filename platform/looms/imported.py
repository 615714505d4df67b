"""The Nodes of another Loom, or of another tool's, as Nodes of ours: their tokens, judged, and where they stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from acs.events.ids import NODE, show, uuid7
from acs.platform.errors import InvalidRequest
from acs.platform.looms.request import ImportedNode
from acs.platform.looms.stored import NodeContent
from acs.platform.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class Planted:
    """A Node with the path in front of it."""

    node_id: str
    parent: Planted | None
    parent_token: int | None
    content: NodeContent
    path: list[int]  # token ids in front of it
    path_logprob: float | None
    depth: int

    @property
    def logprob(self) -> float | None:
        known = self.content.token_logprobs
        return None if known is None else math.fsum(known)


def plant(nodes: Sequence[ImportedNode], tokenizer: ModelTokenizer, model_id: str) -> list[Planted]:
    """In their order, the root first. Blocks for a second or more. Raises InvalidRequest."""
    planted: dict[str, Planted] = {}
    for number, node in enumerate(nodes):
        where = f"nodes[{number}]"
        parent = planted.get(node.parent_id) if node.parent_id is not None else None
        if node.id in planted:
            raise InvalidRequest(f"{where}.id is {node.id!r}, as an earlier Node's.", param=f"{where}.id")
        if (parent is None) != (number == 0) or (parent is None and node.parent_id is not None):
            raise InvalidRequest(
                f"{where}.parent_id must name an earlier Node, and be null for the first alone.",
                param=f"{where}.parent_id",
            )
        path, logprob = _path_to(parent, node.parent_token, where)
        content = _content(node, path, tokenizer, model_id, where)
        depth = 0 if parent is None else parent.depth + 1
        planted[node.id] = Planted(show(NODE, uuid7()), parent, node.parent_token, content, path, logprob, depth)
    return list(planted.values())


def _path_to(parent: Planted | None, taken: int | None, where: str) -> tuple[list[int], float | None]:
    """Token ids, and the log probability of those that were generated."""
    if parent is None:
        return [], 0.0
    tokens = len(parent.content.token_ids)
    if taken is not None and taken > tokens:
        raise InvalidRequest(
            f"{where}.parent_token is {taken}; the parent has {tokens} tokens.", param=f"{where}.parent_token"
        )
    path = [*parent.path, *parent.content.token_ids[:taken]]
    if parent.parent is None:
        return path, 0.0
    known, before = parent.content.token_logprobs, parent.path_logprob
    return path, None if known is None or before is None else before + math.fsum(known[:taken])


def _content(node: ImportedNode, path: list[int], tokenizer: ModelTokenizer, model_id: str, where: str) -> NodeContent:
    ids = node.token_ids
    if ids is None:
        if not node.text:
            raise InvalidRequest(f"{where} has neither text nor token_ids.", param=f"{where}.text")
        ids = tokenizer.encode(node.text, add_special_tokens=not path)
    if max(ids) >= tokenizer.vocab_size:
        raise InvalidRequest(
            f"{where}.token_ids holds {max(ids)}; the vocabulary of {model_id} ends at {tokenizer.vocab_size - 1}.",
            param=f"{where}.token_ids",
        )
    text = tokenizer.settled([*path, *ids])[len(tokenizer.settled(path)) :]
    spelled = [tokenizer.encode(node.text or "", add_special_tokens=special) for special in (True, False)]
    if not path and node.text and ids in spelled:
        text = node.text  # as it was sent: a prompt may spell special tokens out
    if node.text is not None and node.text != text:
        raise InvalidRequest(
            f"{where}.text is not what its tokens add to the path's text with the tokenizer of {model_id}.",
            param=f"{where}.text",
        )
    logprobs = node.logprobs.model_dump() if node.logprobs is not None else None
    if logprobs is not None and any(len(entries) != len(ids) for entries in logprobs.values()):
        raise InvalidRequest(f"{where}.logprobs must have an entry for each token.", param=f"{where}.logprobs")
    model = node.model or (model_id if not path else None)
    return NodeContent(text, ids, node.finish_reason, node.usage, logprobs, model, node.sampling)
