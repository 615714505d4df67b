"""Rows of log probabilities, as the engine's arrays, to the objects of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from acs.platform.inference.contract import LogprobRows

LOWEST = -9999.0  # JSON has no -infinity; vLLM's floor


def arrays_of(rows: LogprobRows) -> tuple[list[list[int]], list[list[float]], list[int]]:
    """ids [rows][width], log probabilities [rows][width] (float32 values, printed in full), ranks [rows]."""
    ids = np.frombuffer(rows.ids, "<i4").reshape(-1, rows.width)
    logprobs = np.frombuffer(rows.logprobs, "<f4").reshape(-1, rows.width)
    ranks = np.frombuffer(rows.ranks, "<i4")
    return ids.tolist(), np.maximum(logprobs, np.float32(LOWEST)).tolist(), ranks.tolist()


class LogprobLists:
    """The four parallel lists of `choices[].logprobs`, grown token by token.

    `text_offset` is in characters of the returned text, and counts what earlier tokens added to it.
    """

    def __init__(self, token_texts: list[str], offset: int = 0) -> None:
        self._token_texts = token_texts
        self._offset = offset
        self.text_offset: list[int] = []
        self.token_logprobs: list[float | None] = []
        self.tokens: list[str] = []
        self.top_logprobs: list[dict[str, float] | None] = []

    def add_first(self, token_id: int, text: str) -> None:
        """A prompt's first token: nothing stands before it, so it has no log probability."""
        self._add(token_id, text, None, None)

    def add(self, rows: LogprobRows, texts: list[str], keep: int | None = None) -> None:
        """`keep`: how many of the likeliest to show, when the rows hold more; the token itself is always there."""
        names = self._token_texts
        ids, logprobs, _ = arrays_of(rows)
        for row_ids, row, text in zip(ids, logprobs, texts, strict=True):
            width = len(row) if keep is None else keep + 1
            top = {names[token_id]: value for token_id, value in zip(row_ids[:width], row[:width], strict=True)}
            self._add(row_ids[0], text, row[0], top)

    def _add(self, token_id: int, text: str, logprob: float | None, top: dict[str, float] | None) -> None:
        self.text_offset.append(self._offset)
        self.token_logprobs.append(logprob)
        self.tokens.append(self._token_texts[token_id])
        self.top_logprobs.append(top)
        self._offset += len(text)

    def after(self, offset: int) -> LogprobLists:
        """Go on at this offset: a text prompt's length need not be the sum of its tokens' texts."""
        self._offset = offset
        return self

    def take(self) -> dict[str, Any]:
        """The lists so far, leaving empty ones that go on at the same offset (a stream sends each token once)."""
        taken = {
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        }
        self.text_offset, self.token_logprobs, self.tokens, self.top_logprobs = [], [], [], []
        return taken


def prompt_logprobs_of(rows: list[LogprobRows], token_texts: list[str], keep: int) -> list[Any]:
    """`choices[].prompt_logprobs`: null for the first token, then a map of token id to log probability, rank and text.

    The prompt's own token comes first, with its true rank; the others' ranks are their places.
    """
    entries: list[Any] = [None]
    for block in rows:
        for (own, *likeliest), (logprob, *logprobs), rank in zip(*arrays_of(block), strict=True):
            entry = {str(own): _entry(logprob, rank, token_texts[own])}
            for place, (token_id, value) in enumerate(zip(likeliest[:keep], logprobs[:keep], strict=True), 1):
                if token_id != own:
                    entry[str(token_id)] = _entry(value, place, token_texts[token_id])
            entries.append(entry)
    return entries


def _entry(logprob: float, rank: int, text: str) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": text}
