"""The tokens of a path: those of each Node from the root on, as far as the next one continues it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from acs.platform.errors import InvalidRequest
from acs.platform.looms.stored import NodeContent
from acs.platform.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class Path:
    token_ids: list[int]
    logprob: float | None  # of all generated tokens; None: not known of each


def path_along(contents: Sequence[NodeContent], parent_tokens: Sequence[int | None], at_token: int | None) -> Path:
    """`contents`: from the root on. `parent_tokens`: of each of them, how many tokens of the one before it it continues
    (None: all). `at_token`: how many of the last one. Raises InvalidRequest when that has fewer.
    """
    last = len(contents[-1].token_ids)
    if at_token is not None and at_token > last:
        raise InvalidRequest(f"at_token is {at_token}; the Node has {last} tokens.", param="at_token")
    token_ids: list[int] = []
    logprobs: list[float] | None = []
    for number, (content, taken) in enumerate(zip(contents, [*parent_tokens[1:], at_token], strict=True)):
        token_ids += content.token_ids[:taken]
        if number:  # the root was not generated
            known = content.token_logprobs
            logprobs = None if known is None or logprobs is None else [*logprobs, *known[:taken]]
    return Path(token_ids, None if logprobs is None else math.fsum(logprobs))


def text_along(contents: Sequence[NodeContent], parent_tokens: Sequence[int | None], tokenizer: ModelTokenizer) -> str:
    """The text of a path, to the end of its last Node."""
    texts: list[str] = []
    before: list[int] = []
    for content, taken in zip(contents, [*parent_tokens[1:], None], strict=True):
        ids = content.token_ids[:taken]
        if len(ids) == len(content.token_ids):
            texts.append(content.text)
        else:
            texts.append(tokenizer.settled([*before, *ids])[len(tokenizer.settled(before)) :])
        before += ids
    return "".join(texts)
