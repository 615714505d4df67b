"""An Engine without a model, for fast tests of everything in front of one: it ships, and never stands in for the real
thing in an acceptance test. It counts what it runs, remembers what it was asked, and fails when told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np

from acs.platform.inference.contract import (
    Captured,
    Delta,
    EngineStatus,
    Failed,
    FullVocabularyRows,
    Generate,
    LogprobRows,
    PromptRows,
    Sink,
)
from acs.platform.tokenizer import ModelTokenizer


class FakeEngine:
    """Token j of choice i of a prompt is a fixed function of the prompt, the seed plus i, and j; one token a turn of
    the loop, or every `step_s` seconds. `fail_next` is a Failed that the next request ends with.
    """

    def __init__(self, tokenizer: ModelTokenizer, step_s: float = 0.0) -> None:
        self.asked: list[Generate] = []
        self.fail_next: Failed | None = None
        self.step_s = step_s
        self._tokenizer = tokenizer
        self._running: dict[str, dict[int, asyncio.Task[None]]] = {}
        self._aborted: set[str] = set()

    def submit(self, request: Generate, sink: Sink) -> None:
        self.asked.append(request)
        if self.fail_next is not None:
            failed, self.fail_next = self.fail_next, None
            asyncio.get_running_loop().call_soon(sink, failed)
            return
        tasks = self._running.setdefault(request.request_id, {})
        for index in range(len(request.prompts) * request.n):
            tasks[index] = asyncio.create_task(self._run(request, index, sink))

    def abort(self, request_id: str) -> None:
        if request_id in self._running:
            self._aborted.add(request_id)

    def status(self) -> EngineStatus:
        return EngineStatus("live", sum(map(len, self._running.values())))

    async def has_work(self) -> bool:
        return bool(self._running)

    async def check_health(self) -> None:
        """Always well."""

    async def warm_up(self) -> None:
        """Nothing is cold."""

    def shutdown(self) -> None:
        """Nothing to stop."""

    async def _run(self, request: Generate, index: int, sink: Sink) -> None:
        prompt, choice = divmod(index, request.n)
        if request.prompt_logprobs is not None and choice == 0:
            for piece in self._prompt_rows(request, prompt):
                sink(piece)
        sampling = request.sampling
        whole_ids: list[int] = []
        whole_text = ""
        finish: str | None = None
        for j, token_id in enumerate(self._tokens(request.prompts[prompt], sampling.seed or 0, choice)):
            await asyncio.sleep(self.step_s)
            text = self._tokenizer.token_texts[token_id]
            finish = "length" if j + 1 == sampling.max_tokens else None
            if request.request_id in self._aborted:
                finish, token_id, text = "abort", -1, ""
            for stop in sampling.stop:
                if stop in whole_text + text:
                    finish, text = "stop", (whole_text + text).split(stop)[0][len(whole_text) :]
            whole_ids += [token_id] if token_id >= 0 else []
            whole_text += text
            if request.stream:
                ids = whole_ids[-1:] if finish != "abort" else []
                rows = self._rows(ids, request.logprobs) if request.logprobs is not None and ids else None
                sink(Delta(index, ids, [text] if ids else [], rows, finish))
            if finish:
                break
        if request.capture and finish != "abort":
            sink(self._captured(request, index, [*request.prompts[prompt], *whole_ids[:-1]]))
        if not request.stream:
            rows = self._rows(whole_ids, request.logprobs) if request.logprobs is not None and whole_ids else None
            texts = [self._tokenizer.token_texts[i] for i in whole_ids] if rows else [whole_text]
            sink(Delta(index, whole_ids, texts, rows, finish))
        tasks = self._running[request.request_id]
        del tasks[index]
        if not tasks:
            del self._running[request.request_id]
            self._aborted.discard(request.request_id)

    def _tokens(self, prompt: list[int], seed: int, choice: int) -> Iterator[int]:
        state = sum(prompt) + 7919 * (seed + choice)
        while True:
            state = (state * 1_103_515_245 + 12_345) % 2**31
            yield 100 + state % (self._tokenizer.vocab_size - 200)

    def _captured(self, request: Generate, index: int, ids: list[int]) -> Captured:
        """At Layer l, position p and dimension d of token t: t + p / 2¹² + l / 2⁴ (+ scale × vector), d = 0 alone."""
        hidden = int(self._tokenizer.config["hidden_size"])
        stream = np.zeros((len(request.capture), len(ids), hidden), "<f4")
        stream[:, :, 0] = np.array(request.capture)[:, None] / 16 + np.arange(len(ids)) / 4096 + np.array(ids)
        for one in request.steering:
            values = np.frombuffer(one.values, "<f4").reshape(len(one.layers), -1, hidden)
            for layer, rows in zip(one.layers, values, strict=True):
                if layer in request.capture:
                    where = range(len(ids)) if one.positions is None else one.positions
                    for position, row in zip(where, np.broadcast_to(rows, (len(where), hidden)), strict=True):
                        stream[request.capture.index(layer), position : position + 1] += one.scale * row
        return Captured(index, stream.shape, "float32", memoryview(stream.tobytes()))

    def _rows(self, ids: list[int], k: int) -> LogprobRows:
        ranked = np.arange(k, dtype="<i4")
        table = np.stack([np.concatenate(([token_id], ranked)) for token_id in ids]).astype("<i4")
        logprobs = np.concatenate(([-5.5], -1.0 - 0.125 * ranked)).astype("<f4")
        ranks = np.full(len(ids), k + 1, dtype="<i4")
        return LogprobRows(k + 1, table.tobytes(), np.tile(logprobs, len(ids)).tobytes(), ranks.tobytes())

    def _prompt_rows(self, request: Generate, prompt: int) -> Iterator[PromptRows | FullVocabularyRows]:
        ids = request.prompts[prompt][1:]
        if not ids or request.prompt_logprobs is None:
            return
        if request.prompt_logprobs >= 0:
            yield PromptRows(prompt, self._rows(ids, request.prompt_logprobs))
            return
        row = -np.arange(self._tokenizer.vocab_size, dtype="<f4") / 8
        for first in range(len(ids)):
            yield FullVocabularyRows(prompt, first + 1, row.tobytes())
