"""The Engine over vLLM's AsyncLLM: one model in this process's care, its worker in another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from acs.platform.catalogue import Model, Resources
from acs.platform.inference.contract import Delta, EngineStatus, Failed, Generate, Piece, Sampling, Sink
from acs.serve_apps.inference import vllm_adapters
from acs.serve_apps.inference.lane import Lane, Step
from acs.serve_apps.inference.tap.choices import Budget, TappedChoices, TappedModel
from acs.serve_apps.inference.tap.exchange import Exchange
from acs.serve_apps.inference.tap.self_test import SelfTest
from acs.serve_apps.inference.vllm_outputs import Collector, Fan
from acs.serve_apps.inference.vllm_sampling import sampling_params

CHOICES_A_TURN = 16
PAUSES = 64  # unanswered at most: vLLM keeps a little for each
STEPS_AHEAD = 2  # of requests that give way: one is computed while the next waits in the engine

# On a CPU vLLM runs the model in a process of its own and both sides spin while they wait for the other. In the engine
# core's process, as on a GPU, a step costs a fifth less, a core stays free, and 600 MB with it (benchmarks/README.md).
IN_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


class VllmEngine:
    """Submits each choice as a vLLM request of its own (n = 1): its seed is then ours to set, and a batch of n choices
    is scheduled like any n requests. Prefix caching shares the prompt between them.
    """

    worker_extension = "acs.serve_apps.inference.worker.WorkerExtension"

    def __init__(self, model: Model, checkpoint: Path, tensors: Path) -> None:
        """Loads the model; takes seconds to minutes. Raises what vLLM raises.

        `tensors`: the folder of shared memory in which captures and steering vectors pass.
        """
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        vllm_adapters.install_in_front()
        resources = model.resources
        arguments: dict[str, Any] = {
            "max_logprobs": -1,
            "disable_log_stats": True,
            "tensor_parallel_size": resources.tensor_parallel_size,
            "pipeline_parallel_size": resources.pipeline_parallel_size,
            **({"distributed_executor_backend": IN_PROCESS} if _on_one_cpu(resources) else {}),
            **model.engine,
            # Not for a catalogue to change: the contract and the checks above the engine stand on these.
            "model": str(checkpoint),
            "served_model_name": model.id,
            "generation_config": "vllm",  # the checkpoint's own sampling settings play no part
            "trust_remote_code": False,
            "enable_log_requests": False,  # texts and token ids never reach a log
            "worker_extension_cls": self.worker_extension,
        }
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self._model = model
        self._exchange = Exchange(tensors)
        self._budgets = {gives_way: Budget() for gives_way in (False, True)}  # so that nobody waits for a harvest's
        scheduler = self._llm.vllm_config.scheduler_config
        step = Step(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
        alike = resources.num_gpus == 0  # a GPU's sums are not the same twice anyhow
        self._lane = Lane(STEPS_AHEAD * step.tokens, step if alike else None)
        self._tapped_model: TappedModel | None = None  # once the tap is open
        self._supported_tasks: tuple[Any, ...] = ()
        self._background: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references
        self._pausing: set[asyncio.Task[None]] = set()
        self._children: dict[str, list[str]] = {}  # our request id -> vLLM's ids of its choices

    # -- the seam

    def submit(self, request: Generate, sink: Sink) -> None:
        self._children[request.request_id] = []  # here and not in the task: an abort may come before it runs
        self._in_background(self._start(request, self._lane.watched(request, sink)))

    async def _start(self, request: Generate, sink: Sink) -> None:
        fan = Fan(request, sink, forget=self._forget, abort=self.abort, aborted=self._aborted)
        try:
            fan.tapped = tapped = self._tapped(request)
            if tapped is not None:
                await tapped.open()
            self._supported_tasks = self._supported_tasks or await self._llm.get_supported_tasks()
            choices = range(len(request.prompts) * request.n)
            if not request.gives_way:
                return await self._add_all(request, choices, fan, tapped)
            assert tapped is not None, "who gives way captures"
            left = set(choices)
            while left:
                together = await self._lane.enter(request)
                if not together or self._aborted(request.request_id):  # while we were starting
                    for index in sorted(left):
                        fan.end_unstarted(index)
                    return
                async with self._in_one_step(len(together)) if self._lane.in_steps else contextlib.nullcontext():
                    await self._add_all(request, together, fan, tapped)
                self._lane.taken(request, together, partial(tapped.have_begun, together))
                left.difference_update(together)
        except Exception as error:
            fan.fail(error)

    async def _add_all(self, request: Generate, indices: Iterable[int], fan: Fan, tapped: TappedChoices | None) -> None:
        for index in indices:
            if self._aborted(request.request_id):
                fan.end_unstarted(index)
                continue
            await self._add(request, index, fan.collector(index), tapped)
            if index % CHOICES_A_TURN == CHOICES_A_TURN - 1:
                await asyncio.sleep(0)  # a thousand choices must not hold up everyone else's tokens

    @contextlib.asynccontextmanager
    async def _in_one_step(self, choices: int) -> AsyncIterator[None]:
        """What is added inside begins together: no step is scheduled until all of it is there. Returns when the engine
        core has taken it. It takes what is sent in its order, between two steps: all is sent while one runs, and none
        waits for us.
        """
        core = self._llm.engine_core
        if choices == 1:
            yield
            await core.call_utility_async("is_scheduler_paused")  # answered after what was sent before
            return
        pausing = asyncio.create_task(core.call_utility_async("pause_scheduler", "keep", False))
        self._pausing.add(pausing)
        pausing.add_done_callback(self._paused)
        await asyncio.sleep(0)  # it is sent; its answer comes when the engine has nothing to do
        if len(self._pausing) > PAUSES:
            await asyncio.wait(self._pausing)
        try:
            yield
        finally:
            await core.call_utility_async("resume_scheduler")

    def _paused(self, pausing: asyncio.Task[None]) -> None:
        self._pausing.discard(pausing)
        if not pausing.cancelled():
            pausing.exception()  # as of the engine's death, which whatever follows it meets too

    def _tapped(self, request: Generate) -> TappedChoices | None:
        if not request.capture and not request.steering:
            return None
        if self._tapped_model is None:
            raise ValueError("this model's residual stream can be neither read nor steered")
        return TappedChoices(request, self._tapped_model, self._exchange, self._budgets[request.gives_way])

    async def _add(self, request: Generate, index: int, collector: Collector, tapped: TappedChoices | None) -> None:
        prompt, choice = divmod(index, request.n)
        given: dict[str, Any] = {"type": "token", "prompt_token_ids": request.prompts[prompt]}
        params = sampling_params(request, choice)
        if tapped is not None:
            params.extra_args = tapped.extra_args(index)
            if tapped.cache_salt is not None:
                given["cache_salt"] = tapped.cache_salt
        engine_request = self._llm.input_processor.process_inputs(
            f"{request.request_id}:{index}", given, params, supported_tasks=self._supported_tasks
        )
        self._llm.input_processor.assign_request_id(engine_request)
        collector.request_id = engine_request.request_id
        self._children[request.request_id].append(engine_request.request_id)
        await self._llm._add_request(engine_request, None, None, 0, collector)

    def abort(self, request_id: str) -> None:
        children = self._children.pop(request_id, None)
        self._lane.drop(request_id)
        if children:
            self._in_background(self._llm.abort(children, internal=True))

    def _aborted(self, request_id: str) -> bool:
        """Of a request that has not ended."""
        return request_id not in self._children

    def _forget(self, request_id: str) -> None:
        self._children.pop(request_id, None)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def status(self) -> EngineStatus:
        return EngineStatus("down" if self._llm.errored else "live", self._llm.get_num_unfinished_requests())

    async def has_work(self) -> bool:
        """What the engine core itself says: whether anything is scheduled or waiting in it."""
        return bool(await self._llm.engine_core.call_utility_async("has_work"))

    async def check_health(self) -> None:
        """Raises when the engine core or its worker is gone, or the folder that we share with it."""
        await self._llm.check_health()
        self._exchange.folder.stat()

    async def warm_up(self) -> None:
        """Run each kind of request once, so that nobody's first one pays for compilation and caches."""
        kinds: list[dict[str, Any]] = [
            {"temperature": 0.0},
            {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 1, "repetition_penalty": 1.1},
        ]
        for number, kind in enumerate(kinds):
            for logprobs in (None, 1):
                sampling = Sampling(max_tokens=3, **kind)
                request = Generate(f"warm-{number}-{logprobs}", [[1, 2, 3]], 1, sampling, logprobs, logprobs)
                ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self.submit(request, _until_ended(ended))
                await ended
        if self._model.activations:
            await self.open_tap()

    async def open_tap(self) -> None:
        """Read and steer from now on. Raises SelfTestFailed."""
        facts = await self._ask_worker("acs_install_tap")
        self._tapped_model = TappedModel(**facts)
        config = self._llm.model_config.hf_text_config
        expected = TappedModel(config.num_hidden_layers, config.hidden_size, facts["dtype"])
        await SelfTest(self, self._tapped_model, self._ask_worker).run(expected)

    async def _ask_worker(self, method: str) -> Any:
        (answer, *_) = await self._llm.collective_rpc(method)
        return answer

    def shutdown(self) -> None:
        self._llm.shutdown()
        self._exchange.close()


def _on_one_cpu(resources: Resources) -> bool:
    return resources.num_gpus == 0 and resources.tensor_parallel_size * resources.pipeline_parallel_size == 1


def _until_ended(ended: asyncio.Future[None]) -> Sink:
    def sink(piece: Piece) -> None:
        if isinstance(piece, Failed):
            ended.set_exception(RuntimeError(f"warm-up: {piece.code}: {piece.message}"))
        elif isinstance(piece, Delta) and piece.finish_reason is not None:
            ended.set_result(None)

    return sink
