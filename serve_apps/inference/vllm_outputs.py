"""From vLLM's outputs to Pieces: one Fan a request, one Collector a choice, and a Failed for each kind of fault."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from acs.platform.inference.contract import (
    Captured,
    Delta,
    Failed,
    FullVocabularyRows,
    Generate,
    LogprobRows,
    PromptRows,
    Sink,
)
from acs.serve_apps.inference.tap.choices import TappedChoices, TappedTokens
from acs.serve_apps.inference.tap.sheet import BeyondRange, Incomplete
from acs.serve_apps.inference.vllm_adapters import Row, pack_rows

log = logging.getLogger("ray.serve")
FULL_VOCABULARY_ROWS_A_PIECE = 8  # 8 rows of 49,152 float32: 1.5 MB, so that others' frames pass in between


class EngineEnds(Exception):
    """vLLM was told to end, and so ends what runs in it."""


class Fan:
    """Turns what vLLM says of the choices of one request into the Pieces of the seam.

    `forget` is called when every choice has ended, `abort` when a fault ends the request before that; `aborted` tells
    whether somebody has asked for its end. `tapped` is set for a request that captures or is steered, and closed in
    both cases.
    """

    def __init__(
        self,
        request: Generate,
        sink: Sink,
        *,
        forget: Callable[[str], None],
        abort: Callable[[str], None],
        aborted: Callable[[str], bool],
    ) -> None:
        self.tapped: TappedChoices | None = None
        self._request = request
        self._sink = sink
        self._reading: set[asyncio.Task[None]] = set()
        self._forget = forget
        self._abort = abort
        self._aborted = aborted
        self._unfinished = len(request.prompts) * request.n
        self.failed = False

    def collector(self, index: int) -> Collector:
        """What is given to vLLM for choice `index`."""
        request = self._request
        tokens = TappedTokens(self.tapped, index, request.prompts[index // request.n]) if self.tapped else None
        return Collector(self, index, whole=not request.stream, tapped=tokens)

    def emit(self, piece: Delta | PromptRows | FullVocabularyRows | Captured) -> None:
        if self.failed:
            return
        self._sink(piece)
        if isinstance(piece, Delta) and piece.finish_reason is not None:
            self._unfinished -= 1
            if not self._unfinished:
                self._forget(self._request.request_id)
                self._close()

    def prompt_rows(self, index: int, tensors: Any) -> None:
        prompt = index // self._request.n
        ids, logprobs, ranks = (tensors[part].numpy() for part in range(3))
        if self._request.prompt_logprobs != -1:
            self.emit(PromptRows(prompt, LogprobRows(ids.shape[1], ids.tobytes(), logprobs.tobytes(), ranks.tobytes())))
            return
        rows = logprobs[:, 1:]  # column 0 repeats the prompt's own token
        for first in range(0, len(rows), FULL_VOCABULARY_ROWS_A_PIECE):
            block = np.ascontiguousarray(rows[first : first + FULL_VOCABULARY_ROWS_A_PIECE], dtype="<f4")
            self.emit(FullVocabularyRows(prompt, first + 1, block.tobytes()))

    def emit_captured(self, tokens: TappedTokens, last: Delta) -> None:
        """What the choice has captured, once it is read; then its last Delta."""

        async def read() -> None:
            try:
                captured = await tokens.read()
            except Exception as error:
                self.fail(error)
            else:
                self.emit(captured)
                self.emit(last)

        task = asyncio.create_task(read())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    @property
    def aborted(self) -> bool:
        return self._aborted(self._request.request_id)

    def end_unstarted(self, index: int) -> None:
        self.emit(Delta(index, [], [], None, "abort"))

    def fail(self, error: Exception) -> None:
        """One fault ends the whole request: its other choices are aborted."""
        if self.failed:
            return
        self._abort(self._request.request_id)
        self.failed = True
        self._close()
        where = "".join(traceback.format_tb(error.__traceback__))  # not its text: see `failure`
        log.error("Request %s failed in the engine: %s\n%s", self._request.request_id, type(error).__name__, where)
        self._sink(failure(error))

    def _close(self) -> None:
        if self.tapped is not None:
            self.tapped.close()


class Collector:
    """What vLLM calls with each output of one choice (in the place of its RequestOutputCollector)."""

    def __init__(self, fan: Fan, index: int, whole: bool, tapped: TappedTokens | None = None) -> None:
        self.request_id = ""
        self._fan = fan
        self._index = index
        self._whole = whole  # keep everything until the choice has ended
        self._tapped = tapped
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._rows: list[Row] = []

    def put(self, output: Any) -> None:
        if self._fan.failed:  # what vLLM had made when it was told to stop
            return
        if isinstance(output, Exception):
            return self._fan.fail(output)
        for tensors in output.prompt_logprobs or ():
            self._fan.prompt_rows(self._index, tensors)
        completion = output.outputs[0]
        if completion.finish_reason == "error":
            return self._fan.fail(RuntimeError("vLLM ended the request by an error"))
        if completion.finish_reason == "abort" and not self._fan.aborted:
            return self._fan.fail(EngineEnds())
        if self._tapped is not None:
            try:
                self._tapped.add(completion.token_ids, output.num_cached_tokens or 0)
            except Exception as error:  # raised into vLLM, it would end every request
                return self._fan.fail(error)
        self._token_ids.extend(completion.token_ids)
        self._texts.append(completion.text)
        self._rows.extend(completion.logprobs or ())
        if self._whole and completion.finish_reason is None:
            return
        rows = pack_rows(self._rows) if self._rows else None
        cached = (output.num_cached_tokens or 0) if completion.finish_reason is not None else 0
        delta = Delta(self._index, self._token_ids, self._texts, rows, completion.finish_reason, cached)
        self._token_ids, self._texts, self._rows = [], [], []
        if self._tapped is not None and self._tapped.captures and completion.finish_reason != "abort":
            self._fan.emit_captured(self._tapped, delta)
        else:
            self._fan.emit(delta)


def failure(error: Exception) -> Failed:
    """The contract's word for a fault of the engine. Its text, which may hold paths or people's tokens, goes to no one
    but the client whose request the engine refused.
    """
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineEnds | EngineDeadError | FileNotFoundError):  # a server that ends removes its folder
        return Failed("vllm_engine_dead", "The model's engine has died and is being replaced. Send the request again.")
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return Failed("vllm_oom", "The model ran out of memory on this request. Try again, or send less at once.")
    if isinstance(error, BeyondRange):
        return Failed("invalid_request", f"apply_steering_vectors: {error}.")
    if isinstance(error, Incomplete):
        return Failed("upstream_server_error", "The residual stream could not be read or steered at every position.")
    if isinstance(error, VLLMClientError | ValueError):
        return Failed("invalid_request", f"The engine refused the request: {error}")
    return Failed("upstream_server_error", "The model's engine failed on this request.")
