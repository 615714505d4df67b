"""The six places where vLLM 0.32 is told to do less, each with its reason. Everything else uses vLLM as it comes.

1. Log probabilities stay arrays. vLLM turns every row into dicts of objects and decodes every token's text on the
   event loop (measured: half a minute for 64 prompt tokens over a whole vocabulary). The ingress knows the vocabulary
   and renders from arrays, off its loop.
2. A whole-vocabulary row is not sorted in the worker: a top-k over the whole vocabulary holds up the step of everyone
   in the batch. Whoever renders the row sorts it.
3. Outputs go to a sink as they are made, one a token; vLLM's own queue merges what its reader has not fetched yet, and
   the border between two tokens' texts is lost.
4. A seeded request draws nothing in a step whose token is thrown away, as in all but the last step of a long prompt.
   vLLM draws, and then turns the generator back, which a CPU's cannot do: the engine died of it.
5. A continuation's text does not repeat its prompt. Where the prompt's last bytes are no whole character, vLLM's stream
   of texts begins with all of it.
6. No line in the log when the scheduler is paused and goes on: for a harvest on a CPU that is twice a step.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np

from acs.platform.inference.contract import LogprobRows
from acs.platform.tokenizer import UNFINISHED

CHARACTER_TOKENS = 4  # the most that one character can be spread over: its bytes
Row = tuple[np.ndarray, np.ndarray, int]  # ids [width], logprobs [width], rank of column 0


class ArrayLogprobs:
    """Stands in for vllm.v1.engine.logprobs.LogprobsProcessor: keeps the engine core's rows as they come."""

    cumulative_logprob = None
    prompt_token_id_logprobs = None

    def __init__(self, wants_rows: bool, wants_prompt_rows: bool) -> None:
        self.logprobs: list[Row] | None = [] if wants_rows else None
        self.prompt_logprobs: list[Any] | None = [] if wants_prompt_rows else None

    @classmethod
    def from_new_request(cls, tokenizer: Any, request: Any) -> ArrayLogprobs:
        params = request.sampling_params
        return cls(params.num_logprobs is not None, params.prompt_logprobs is not None)

    def update_from_output(self, output: Any) -> None:
        if output.new_logprobs is not None and self.logprobs is not None:
            ids, logprobs, ranks, _ = output.new_logprobs
            self.logprobs.extend(zip(ids, logprobs, ranks.tolist(), strict=True))
        if output.new_prompt_logprobs_tensors is not None and self.prompt_logprobs is not None:
            self.prompt_logprobs.append(output.new_prompt_logprobs_tensors)

    def pop_prompt_logprobs(self) -> list[Any] | None:
        popped, self.prompt_logprobs = self.prompt_logprobs, [] if self.prompt_logprobs is not None else None
        return popped

    def pop_prompt_token_id_logprobs(self) -> None:
        return None


def pack_rows(rows: list[Row]) -> LogprobRows:
    ids = np.stack([row[0] for row in rows]).astype("<i4", copy=False)
    logprobs = np.stack([row[1] for row in rows]).astype("<f4", copy=False)
    ranks = np.array([row[2] for row in rows], dtype="<i4")
    return LogprobRows(ids.shape[1], ids.tobytes(), logprobs.tobytes(), ranks.tobytes())


def install_in_front() -> None:
    """In the replica's own process, before its AsyncLLM is made."""
    from vllm.v1.engine import detokenizer, output_processor

    output_processor.LogprobsProcessor = ArrayLogprobs
    detokenizer.FastIncrementalDetokenizer = continuation_alone()


@cache
def continuation_alone() -> Any:
    """vLLM's own class, made once, whose texts begin behind the prompt."""
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    class ContinuationAlone(FastIncrementalDetokenizer):
        def __init__(self, tokenizer: Any, request: Any) -> None:
            super().__init__(tokenizer, request)
            ids = request.prompt_token_ids or []
            unfinished = self._text_of(ids[-CHARACTER_TOKENS:]).endswith(UNFINISHED)
            self._repeated = self._text_of(ids).rstrip(UNFINISHED) if unfinished else ""

        def decode_next(self, next_token_id: int) -> str:
            text: str = super().decode_next(next_token_id)
            if text and self._repeated:
                text, self._repeated = text.removeprefix(self._repeated), ""
            return text

        def _text_of(self, ids: list[int]) -> str:
            text: str = self.tokenizer.decode(ids, skip_special_tokens=self.skip_special_tokens)
            return text

    return ContinuationAlone


def install_in_worker() -> None:
    """In the process that runs the model: importing our worker extension does it."""
    logging.getLogger("vllm.v1.core.sched.scheduler").setLevel(logging.WARNING)
    import torch
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    sorted_rows = Sampler.gather_logprobs

    def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        if num_logprobs < logprobs.shape[-1]:
            return sorted_rows(logprobs, num_logprobs, token_ids)
        count, vocabulary = logprobs.shape
        column0 = token_ids.unsqueeze(-1)
        ids = torch.arange(-1, vocabulary, dtype=torch.int32, device=logprobs.device).repeat(count, 1)
        ids[:, 0] = token_ids
        scores = torch.cat((logprobs.gather(-1, column0), logprobs), dim=1)
        ranks = torch.ones(count, dtype=torch.int32, device=logprobs.device)  # unknown: whoever sorts finds it
        return LogprobsTensors(ids, scores, ranks)

    Sampler.gather_logprobs = staticmethod(gather_logprobs)

    sample = GPUModelRunner.sample_tokens

    def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        thrown_away = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist()
        resting = {index: batch.generators.pop(index) for index in thrown_away if index in batch.generators}
        try:
            return sample(runner, *args, **kwargs)
        finally:
            batch.generators.update(resting)

    GPUModelRunner.sample_tokens = sample_tokens
