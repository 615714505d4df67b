"""Whole-vocabulary rows to JSON: 49,152 entries a prompt token, millions an answer, near a gigabyte of text.

A row is rendered in one go from parts prepared once a model: sort by NumPy, all the rest by Arrow (measured: a
third of the time of Python's own join). The caller renders row by row in a thread while the row before is being sent,
so that memory stays at a few rows and the event loop stays free.
"""

from __future__ import annotations

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from acs.platform.inference.contract import LogprobRows
from acs.serve_apps.api.render.logprobs import LOWEST

_NOTHING = pa.scalar(b"", pa.binary())  # between the parts of an entry


class VocabularyJson:
    """The constant text around the numbers, for every token id and every rank, as Arrow arrays: Arrow gathers, prints
    and joins them without an object an entry and without the interpreter's lock.
    """

    def __init__(self, token_texts: list[str]) -> None:
        ids = range(len(token_texts))
        self._heads = pa.array([b'"%d":{"logprob":' % token_id for token_id in ids], pa.binary())
        self._ranks = pa.array([b',"rank":%d,"decoded_token":' % (rank + 1) for rank in ids], pa.binary())
        self._tails = pa.array([orjson.dumps(text) + b"}," for text in token_texts], pa.binary())

    def row(self, logprobs: np.ndarray, token_id: int) -> bytes:
        """One entry of `prompt_logprobs`: `token_id`, the prompt's own, first; then every other by rank.

        logprobs: float32 [vocabulary].
        """
        by_rank = np.argsort(-logprobs, kind="stable")
        place = int(np.flatnonzero(by_rank == token_id)[0])
        ranks = np.concatenate(([place], np.delete(np.arange(len(by_rank)), place)))
        ids = pa.array(by_rank[ranks])
        values = np.maximum(logprobs[by_rank[ranks]], np.float32(LOWEST)).astype(np.float64)
        numbers = pc.cast(pc.cast(pa.array(values), pa.string()), pa.binary())
        entries = pc.binary_join_element_wise(
            self._heads.take(ids), numbers, self._ranks.take(pa.array(ranks)), self._tails.take(ids), _NOTHING
        )
        text = memoryview(entries.buffers()[2])  # the entries' bytes, one after the other
        return b"".join((b"{", text[: -len(b",")], b"}"))


def likeliest(block: np.ndarray, token_ids: list[int], k: int) -> LogprobRows:
    """The k likeliest of whole-vocabulary rows, as the engine gives them when asked for k. block: [rows, vocabulary]"""
    own = np.array(token_ids, dtype="<i4")[:, None]
    own_logprobs = np.take_along_axis(block, own, axis=1)
    top = np.argsort(-block, axis=1, kind="stable")[:, :k].astype("<i4")
    ids = np.concatenate((own, top), axis=1)
    logprobs = np.concatenate((own_logprobs, np.take_along_axis(block, top, axis=1)), axis=1).astype("<f4")
    ranks = (block >= own_logprobs).sum(axis=1).astype("<i4")
    return LogprobRows(k + 1, ids.tobytes(), logprobs.tobytes(), ranks.tobytes())
