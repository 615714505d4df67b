"""The Engine over vLLM's AsyncLLM: one model in this process's care, its worker in another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from acs.platform.catalogue import Model
from acs.platform.inference.contract import (
    Delta,
    EngineStatus,
    Failed,
    FullVocabularyRows,
    Generate,
    LogprobRows,
    PromptRows,
    Sink,
)
from acs.serve_apps.inference import vllm_adapters

FULL_VOCABULARY_ROWS_A_PIECE = 8  # 8 rows of 49,152 float32: 1.5 MB, so that others' frames pass in between
CHOICES_A_TURN = 16
SEED_MODULUS = 2**63


class VllmEngine:
    """Submits each choice as a vLLM request of its own (n = 1): its seed is then ours to set, and a batch of n choices
    is scheduled like any n requests. Prefix caching shares the prompt between them.
    """

    def __init__(self, model: Model, checkpoint: Path) -> None:
        """Loads the model; takes seconds to minutes. Raises what vLLM raises."""
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        vllm_adapters.install_in_front()
        resources = model.resources
        arguments: dict[str, Any] = {
            "max_logprobs": -1,
            "disable_log_stats": True,
            "tensor_parallel_size": resources.tensor_parallel_size,
            "pipeline_parallel_size": resources.pipeline_parallel_size,
            **model.engine,
            # Not for a catalogue to change: the contract and the checks above the engine stand on these.
            "model": str(checkpoint),
            "served_model_name": model.id,
            "generation_config": "vllm",  # the checkpoint's own sampling settings play no part
            "trust_remote_code": False,
            "enable_log_requests": False,  # texts and token ids never reach a log
            "worker_extension_cls": "acs.serve_apps.inference.worker.WorkerExtension",
        }
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self._tasks: tuple[Any, ...] = ()
        self._children: dict[str, list[str]] = {}  # our request id -> vLLM's ids of its choices

    @property
    def max_model_len(self) -> int:
        return int(self._llm.model_config.max_model_len)

    # -- the seam

    def submit(self, request: Generate, sink: Sink) -> None:
        task = asyncio.ensure_future(self._start(request, sink))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _start(self, request: Generate, sink: Sink) -> None:
        children = self._children.setdefault(request.request_id, [])
        fan = _Fan(self, request, sink, children)
        try:
            self._tasks = self._tasks or await self._llm.get_supported_tasks()
            for index in range(len(request.prompts) * request.n):
                if request.request_id not in self._children:  # aborted while we were starting
                    fan.end_unstarted(index)
                    continue
                await self._add(request, index, fan.collector(index))
                if index % CHOICES_A_TURN == CHOICES_A_TURN - 1:
                    await asyncio.sleep(0)  # a thousand choices must not hold up everyone else's tokens
        except Exception as error:
            fan.fail(error)

    async def _add(self, request: Generate, index: int, collector: _Collector) -> None:
        prompt, choice = divmod(index, request.n)
        engine_request = self._llm.input_processor.process_inputs(
            f"{request.request_id}:{index}",
            {"type": "token", "prompt_token_ids": request.prompts[prompt]},
            _sampling_params(request, choice),
            supported_tasks=self._tasks,
        )
        self._llm.input_processor.assign_request_id(engine_request)
        collector.request_id = engine_request.request_id
        self._children[request.request_id].append(engine_request.request_id)
        await self._llm._add_request(engine_request, None, None, 0, collector)  # type: ignore[arg-type]

    def abort(self, request_id: str) -> None:
        children = self._children.pop(request_id, None)
        if children:
            task = asyncio.ensure_future(self._llm.abort(list(children), internal=True))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def forget(self, request_id: str) -> None:
        self._children.pop(request_id, None)

    def status(self) -> EngineStatus:
        return EngineStatus("down" if self._llm.errored else "live", self._llm.get_num_unfinished_requests())

    async def has_work(self) -> bool:
        """What the engine core itself says: whether anything is scheduled or waiting in it."""
        return bool(await self._llm.engine_core.call_utility_async("has_work"))

    async def check_health(self) -> None:
        """Raises when the engine core or its worker is gone."""
        await self._llm.check_health()

    async def warm_up(self) -> None:
        """Run each kind of request once, so that nobody's first one pays for compilation and caches."""
        kinds: list[dict[str, Any]] = [
            {"temperature": 0.0},
            {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 1, "repetition_penalty": 1.1},
        ]
        for number, kind in enumerate(kinds):
            for logprobs in (None, 1):
                request = _warm_up_request(f"warm-{number}-{logprobs}", kind, logprobs)
                ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self.submit(request, _until_ended(ended))
                await ended

    def shutdown(self) -> None:
        self._llm.shutdown()


def _warm_up_request(request_id: str, kind: dict[str, Any], logprobs: int | None) -> Generate:
    from acs.platform.inference.contract import Sampling

    return Generate(request_id, [[1, 2, 3]], 1, Sampling(max_tokens=3, **kind), logprobs, logprobs)


def _until_ended(ended: asyncio.Future[None]) -> Sink:
    def sink(piece: Any) -> None:
        if isinstance(piece, Failed):
            ended.set_exception(RuntimeError(f"warm-up: {piece.code}: {piece.message}"))
        elif isinstance(piece, Delta) and piece.finish_reason is not None:
            ended.set_result(None)

    return sink


def _sampling_params(request: Generate, choice: int) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = request.sampling
    per_token = request.stream or request.logprobs is not None
    # Every choice of a prompt has the same prompt rows: the first one brings them for all.
    prompt_logprobs = request.prompt_logprobs if choice == 0 else None
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=None if sampling.seed is None else (sampling.seed + choice) % SEED_MODULUS,
        stop=sampling.stop,
        logit_bias=sampling.logit_bias,
        ignore_eos=sampling.ignore_eos,
        min_tokens=sampling.min_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
        output_kind=RequestOutputKind.DELTA if per_token else RequestOutputKind.FINAL_ONLY,
    )


class _Fan:
    """Gathers what vLLM says of the choices of one request into the Pieces of the seam."""

    def __init__(self, engine: VllmEngine, request: Generate, sink: Sink, children: list[str]) -> None:
        self._engine = engine
        self._request = request
        self._sink = sink
        self._unfinished = len(request.prompts) * request.n
        self._failed = False

    def collector(self, index: int) -> _Collector:
        return _Collector(self, index, whole=not self._request.stream)

    def emit(self, piece: Delta | PromptRows | FullVocabularyRows) -> None:
        if self._failed:
            return
        self._sink(piece)
        if isinstance(piece, Delta) and piece.finish_reason is not None:
            self._unfinished -= 1
            if not self._unfinished:
                self._engine.forget(self._request.request_id)

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

    def end_unstarted(self, index: int) -> None:
        self.emit(Delta(index, [], [], None, "abort"))

    def fail(self, error: Exception) -> None:
        """One fault ends the whole request: its other choices are aborted."""
        if self._failed:
            return
        self._engine.abort(self._request.request_id)
        self._failed = True
        self._sink(failure(error))


class _Collector:
    """What vLLM calls with each output of one choice (in the place of its RequestOutputCollector)."""

    def __init__(self, fan: _Fan, index: int, whole: bool) -> None:
        self.request_id = ""
        self._fan = fan
        self._index = index
        self._whole = whole  # keep everything until the choice has ended
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._rows: list[vllm_adapters.Row] = []

    def put(self, output: Any) -> None:
        if isinstance(output, Exception):
            return self._fan.fail(output)
        for tensors in output.prompt_logprobs or ():
            self._fan.prompt_rows(self._index, tensors)
        completion = output.outputs[0]
        if completion.finish_reason == "error":
            return self._fan.fail(RuntimeError("vLLM ended the request by an error"))
        self._token_ids.extend(completion.token_ids)
        self._texts.append(completion.text)
        self._rows.extend(completion.logprobs or ())
        if self._whole and completion.finish_reason is None:
            return
        rows = vllm_adapters.pack_rows(self._rows) if self._rows else None
        delta = Delta(self._index, self._token_ids, self._texts, rows, completion.finish_reason)
        self._token_ids, self._texts, self._rows = [], [], []
        self._fan.emit(delta)


def failure(error: Exception) -> Failed:
    """The contract's word for a fault of the engine. Its text stays here: it may hold paths or people's tokens."""
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return Failed("vllm_engine_dead", "The model's engine has died and is being replaced. Send the request again.")
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return Failed("vllm_oom", "The model ran out of memory on this request. Try again, or send less at once.")
    if isinstance(error, VLLMClientError | ValueError):
        return Failed("invalid_request", f"The engine refused the request: {error}")
    return Failed("upstream_server_error", "The model's engine failed on this request.")
