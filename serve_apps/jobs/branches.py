"""What the choices of a Branch leave behind: a blob for each Node, and its terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from acs.platform.inference.contract import LogprobRows
from acs.platform.ledger.job_contract import Grown, RunJob
from acs.platform.looms.stored import NodeContent
from acs.platform.tokenizer import ModelTokenizer
from acs.serve_apps.api.gathered import ChoiceParts, Gathered
from acs.serve_apps.api.render.logprobs import arrays_of
from acs.storage.blobs import Blobs


def keep_nodes(work: RunJob, gathered: Gathered, looms: Blobs) -> list[Grown]:
    """Blocks. Raises BlobUnavailable."""
    plan = gathered.plan
    tokenizer = plan.model.tokenizer
    (path,) = plan.generate.prompts
    before = len(tokenizer.settled(path))
    grown = []
    for node_id, choice in zip(work.node_ids, gathered.choices, strict=True):
        text = tokenizer.settled([*path, *choice.token_ids])[before:]
        content = _content(choice, text, len(path), tokenizer, logprobs=plan.generate.logprobs is not None)
        blob = looms.put(content.blob(node_id, work.run))
        known = content.token_logprobs
        logprob = None if known is None else math.fsum(known)
        assert choice.finish_reason is not None, "every choice has ended"
        grown.append(Grown(node_id, blob.sha256, blob.size, len(choice.token_ids), choice.finish_reason, logprob))
    return grown


def _content(
    choice: ChoiceParts, text: str, path_tokens: int, tokenizer: ModelTokenizer, *, logprobs: bool
) -> NodeContent:
    own = len(choice.token_ids)
    return NodeContent(
        text=text,
        token_ids=choice.token_ids,
        finish_reason=choice.finish_reason,
        usage={
            "prompt_tokens": path_tokens,
            "completion_tokens": own,
            "total_tokens": path_tokens + own,
            "cached_tokens": choice.cached_tokens,
        },
        logprobs=_logprobs(choice.rows, tokenizer.token_texts) if logprobs else None,
    )


def _logprobs(blocks: Sequence[LogprobRows], texts: Sequence[str]) -> dict[str, Any]:
    """Parallel lists, an entry a token. Two tokens may have one text: the likeliest are there by their ids too."""
    tokens, token_logprobs, top_logprobs, top_token_ids = [], [], [], []
    for block in blocks:
        ids, rows, _ = arrays_of(block)
        for row_ids, row in zip(ids, rows, strict=True):
            tokens.append(texts[row_ids[0]])
            token_logprobs.append(row[0])
            top_logprobs.append({texts[id]: value for id, value in zip(row_ids, row, strict=True)})
            top_token_ids.append({str(id): value for id, value in zip(row_ids, row, strict=True)})
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "top_token_ids": top_token_ids,
    }
