"""Whole-vocabulary rows to JSON: 49,152 entries a prompt token, millions an answer, near a gigabyte of text.

A row is rendered in one go from parts prepared once a model: sort by NumPy, numbers by orjson, one join. Measured
figures are in `benchmarks/README.md`. The caller renders row by row in a thread and sends each before the next, so
that memory stays at a few rows and the event loop stays free.
"""

from __future__ import annotations

import numpy as np
import orjson

from acs.platform.inference.contract import LogprobRows
from acs.serve_apps.api.render.logprobs import LOWEST


class VocabularyJson:
    """The constant text around the numbers, for every token id and every rank."""

    def __init__(self, token_texts: list[str]) -> None:
        size = len(token_texts)
        self._heads = _objects([b'"%d":{"logprob":' % token_id for token_id in range(size)])
        self._tails = _objects([orjson.dumps(text) + b"}," for text in token_texts])
        self._ranks = [b',"rank":%d,"decoded_token":' % rank for rank in range(1, size + 1)]

    def row(self, logprobs: np.ndarray, token_id: int) -> bytes:
        """One entry of `prompt_logprobs`: `token_id`, the prompt's own, first; then every other by rank.

        logprobs: float32 [vocabulary].
        """
        order = np.argsort(-logprobs, kind="stable")
        values = np.maximum(logprobs[order], np.float32(LOWEST)).astype(np.float64)
        numbers = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        parts: list[bytes] = [b""] * (4 * len(order))
        parts[0::4] = self._heads[order].tolist()
        parts[1::4] = numbers
        parts[2::4] = self._ranks
        parts[3::4] = self._tails[order].tolist()
        place = 4 * int(np.flatnonzero(order == token_id)[0])
        own = parts[place : place + 4]
        del parts[place : place + 4]
        return b"{" + b"".join([*own, *parts])[:-1] + b"}"


def likeliest(block: np.ndarray, token_ids: list[int], k: int) -> LogprobRows:
    """The k likeliest of whole-vocabulary rows, as the engine gives them when asked for k. block: [rows, vocabulary]"""
    own = np.array(token_ids, dtype="<i4")[:, None]
    own_logprobs = np.take_along_axis(block, own, axis=1)
    top = np.argsort(-block, axis=1, kind="stable")[:, :k].astype("<i4")
    ids = np.concatenate((own, top), axis=1)
    logprobs = np.concatenate((own_logprobs, np.take_along_axis(block, top, axis=1)), axis=1).astype("<f4")
    ranks = (block >= own_logprobs).sum(axis=1).astype("<i4")
    return LogprobRows(k + 1, ids.tobytes(), logprobs.tobytes(), ranks.tobytes())


def _objects(parts: list[bytes]) -> np.ndarray:
    table = np.empty(len(parts), dtype=object)
    table[:] = parts
    return table
