"""The Nodes of another Loom, or of another tool's, as Nodes of ours: their tokens, judged, and where they stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from acs.events.ids import NODE, show, uuid7
from acs.platform.errors import ContextLengthExceeded, InvalidRequest
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
    path_tokens: int  # in front of it
    path_logprob: float | None
    depth: int

    @property
    def logprob(self) -> float | None:
        known = self.content.token_logprobs
        return None if known is None else math.fsum(known)


def plant(nodes: Sequence[ImportedNode], tokenizer: ModelTokenizer, model_id: str, max_model_len: int) -> list[Planted]:
    """In their order, the root first. Blocks for a second or more. Raises InvalidRequest, and ContextLengthExceeded for
    a Node whose path and tokens are more than `max_model_len`.
    """
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
        taken = node.parent_token
        before, logprob = _path_to(parent, taken, where)
        ids = _ids(node, parent is None, tokenizer, where)
        if before + len(ids) > max_model_len:  # judged first: each Node's path is copied and decoded
            raise ContextLengthExceeded(
                f"{where} ends after {before + len(ids)} tokens of its path; the context of {model_id} is "
                f"{max_model_len} tokens.",
                param=where,
            )
        content = _content(node, _ids_before(parent, taken), ids, tokenizer, model_id, where)
        depth = 0 if parent is None else parent.depth + 1
        planted[node.id] = Planted(show(NODE, uuid7()), parent, taken, content, before, logprob, depth)
    return list(planted.values())


def _path_to(parent: Planted | None, taken: int | None, where: str) -> tuple[int, float | None]:
    """How many tokens, and the log probability of those that were generated."""
    if parent is None:
        return 0, 0.0
    tokens = len(parent.content.token_ids)
    if taken is not None and taken > tokens:
        raise InvalidRequest(
            f"{where}.parent_token is {taken}; the parent has {tokens} tokens.", param=f"{where}.parent_token"
        )
    path = parent.path_tokens + (tokens if taken is None else taken)
    if parent.parent is None:
        return path, 0.0
    known, before = parent.content.token_logprobs, parent.path_logprob
    return path, None if known is None or before is None else before + math.fsum(known[:taken])


def _ids_before(parent: Planted | None, taken: int | None) -> list[int]:
    segments: list[list[int]] = []
    while parent is not None:
        segments.append(parent.content.token_ids[:taken])
        taken, parent = parent.parent_token, parent.parent
    return list(chain.from_iterable(reversed(segments)))


def _ids(node: ImportedNode, is_root: bool, tokenizer: ModelTokenizer, where: str) -> list[int]:
    if node.token_ids is not None:
        return node.token_ids
    if not node.text:
        raise InvalidRequest(f"{where} has neither text nor token_ids.", param=f"{where}.text")
    return tokenizer.encode(node.text, add_special_tokens=is_root)


def _content(
    node: ImportedNode, path: list[int], ids: list[int], tokenizer: ModelTokenizer, model_id: str, where: str
) -> NodeContent:
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
