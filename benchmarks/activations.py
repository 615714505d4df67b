"""What reading and steering cost: plain vLLM, vllm-lens and our engine, the same prompts, in turns in one run.

    .venv/bin/python benchmarks/activations.py [--model toy] [--rounds 10] [--lens PYTHON] [--compiled]

Plain vLLM has the same engine arguments; `--compiled` adds it with its own default, torch.compile. `--lens` names the
interpreter of an environment that has vllm-lens (Python 3.12 and the same vLLM: see README.md). Each contender is a
process with an engine of its own, and one runs at a time, with new prompts each time: none is cached. Printed are the
medians of the rounds' ratios to plain vLLM, of time and of CPU, each with its quartiles: on a machine that does other
things too, CPU is the steadier. Delivery is included: a capture counts when its
bytes have arrived in the process that asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@dataclass(frozen=True)
class Work:
    prompts: int
    length: int  # tokens of a prompt
    tokens: int  # to generate
    capture: int = 0  # Layers, spread over the depth
    steer: bool = False
    seed: int = 0

    def token_ids(self) -> list[list[int]]:
        draw = random.Random(self.seed)
        return [[draw.randrange(2, 2000) for _ in range(self.length)] for _ in range(self.prompts)]

    def layers(self, depth: int) -> list[int]:
        return [number * depth // self.capture for number in range(self.capture)]


WORKLOADS = {  # by model: what one turn asks
    "toy": {"prefill 16 × 512": Work(16, 512, 1), "decode 64 × 64": Work(64, 8, 64)},
    "smollm2-135m": {"prefill 4 × 256": Work(4, 256, 1), "decode 16 × 16": Work(16, 8, 16)},
}
CATALOGUES = {"toy": "toy", "smollm2-135m": "default"}
Turn = Callable[[Work], Awaitable[None]]


# -- the contenders, each in a process of its own


async def serve_turns(begin: Callable[[Any], Awaitable[Turn]], setting: Any) -> None:
    """A turn for each line of work on stdin; its seconds on the real stdout, which nothing else writes to."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    turn = await begin(setting)
    print("ready", file=answers, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        work = Work(**json.loads(line))
        started = time.perf_counter()
        await turn(work)
        print(time.perf_counter() - started, file=answers, flush=True)


def engine_arguments(setting: Any, **more: Any) -> Any:
    from vllm import AsyncEngineArgs

    executor = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    fixed = {"model": setting["checkpoint"], "disable_log_stats": True, "distributed_executor_backend": executor}
    return AsyncEngineArgs(**{**fixed, "generation_config": "vllm", **setting["engine"], **more})


async def begin_vllm(setting: Any, **more: Any) -> Turn:
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(engine_arguments(setting, **more))

    async def one(number: int, work: Work, ids: list[int], extra: Any) -> None:
        params = SamplingParams(
            max_tokens=work.tokens,
            temperature=0.0,
            ignore_eos=True,
            extra_args=extra,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for output in llm.generate({"prompt_token_ids": ids}, params, f"{work.seed}-{number}-{time.time_ns()}"):
            if work.capture:  # vllm-lens
                positions = len(ids) + work.tokens - 1
                assert output.activations["residual_stream"].shape[:2] == (work.capture, positions)

    async def turn(work: Work) -> None:
        extra: Any = None
        if work.capture:
            extra = {"output_residual_stream": work.layers(setting["depth"])}
        if work.steer:
            import torch
            from vllm_lens import SteeringVector

            vector = SteeringVector(activations=torch.full((1, setting["hidden"]), 0.01), layer_indices=[1], scale=1.0)
            extra = {"apply_steering_vectors": [vector]}
        await asyncio.gather(*(one(number, work, ids, extra) for number, ids in enumerate(work.token_ids())))

    return turn


async def begin_compiled(setting: Any) -> Turn:
    return await begin_vllm(setting, enforce_eager=False)


async def begin_acs(setting: Any) -> Turn:
    import numpy as np

    from acs.platform.catalogue import Catalogue
    from acs.platform.inference.contract import Captured, Delta, Failed, Generate, Piece, Sampling, Steering
    from acs.platform.settings import SHIPPED_CATALOGUES
    from acs.serve_apps.inference.vllm_engine import VllmEngine

    model = Catalogue.load(SHIPPED_CATALOGUES / f"{CATALOGUES[setting['model']]}.toml")[setting["model"]]
    engine = VllmEngine(model, Path(setting["checkpoint"]), Path(setting["tensors"]))
    await engine.open_tap()
    values = np.full((1, 1, setting["hidden"]), 0.01, "<f4").tobytes()

    async def one(number: int, work: Work, ids: list[int]) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sink(piece: Piece) -> None:
            if isinstance(piece, Captured):
                assert piece.shape[:2] == (work.capture, len(ids) + work.tokens - 1)
            elif isinstance(piece, Failed):
                ended.set_exception(RuntimeError(piece.message))
            elif isinstance(piece, Delta) and piece.finish_reason:
                ended.set_result(None)

        name, sampling = f"{number}-{time.time_ns()}", Sampling(work.tokens, temperature=0.0, ignore_eos=True)
        steering = [Steering([1], values)] if work.steer else []
        capture = work.layers(setting["depth"]) if work.capture else []
        engine.submit(Generate(name, [ids], 1, sampling, capture=capture, steering=steering), sink)
        await ended

    async def turn(work: Work) -> None:
        await asyncio.gather(*(one(number, work, ids) for number, ids in enumerate(work.token_ids())))

    return turn


BEGIN = {"vllm": begin_vllm, "compiled": begin_compiled, "acs": begin_acs, "lens": begin_vllm}


class Contender:
    def __init__(self, kind: str, setting: Any, python: str = sys.executable) -> None:
        plugins = {} if kind == "lens" else {"VLLM_PLUGINS": ""}
        self._process = subprocess.Popen(
            [python, __file__, "--child", kind, "--setting", json.dumps(setting)],
            env={**os.environ, **QUIET, **setting["env"], **plugins},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its engine core is a process of its own, and must end with it
        )
        assert self._answer() == "ready", f"{kind} did not start"

    def turn(self, work: Work) -> tuple[float, float]:
        """Seconds that went by, and seconds of CPU that all its processes took."""
        assert self._process.stdin is not None
        before = self._cpu_s()
        self._process.stdin.write(json.dumps(asdict(work)) + "\n")
        self._process.stdin.flush()
        seconds = float(self._answer())
        return seconds, self._cpu_s() - before

    def _cpu_s(self) -> float:
        from rivals import cpu_s_of

        from acs.platform.server import processes

        return sum(map(cpu_s_of, [self._process.pid, *(each.pid for each in processes.descendants(self._process.pid))]))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


# -- the comparison


def rows(depth: int, kinds: set[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """By name: who, and what beside the plain work."""
    captures = {1: "1 Layer", 4: "4 Layers", depth: "all Layers"}
    wanted: dict[str, tuple[str, dict[str, Any]]] = {"vllm, compiled": ("compiled", {}), "acs": ("acs", {})}
    for who in ("acs", "lens"):
        wanted |= {f"{who}, {name}": (who, {"capture": count}) for count, name in captures.items()}
        wanted[f"{who}, steered"] = (who, {"steer": True})
    return {name: row for name, row in wanted.items() if row[0] in kinds}


def compare(contenders: dict[str, Contender], setting: Any, rounds: int) -> None:
    wanted = rows(setting["depth"], set(contenders))
    for title, plain in WORKLOADS[setting["model"]].items():
        ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in wanted}  # of time, of CPU
        base: list[float] = []
        for number in range(-1, rounds):  # the first is not counted: caches, compilation
            spent: dict[str, tuple[float, float]] = {}
            order = [("vllm", "vllm", {}), *((name, who, more) for name, (who, more) in wanted.items())]
            random.Random(number).shuffle(order)
            for turn, (name, who, more) in enumerate(order):
                seed = 1000 * number + turn
                spent[name] = contenders[who].turn(Work(**{**asdict(plain), **more, "seed": seed}))
            if number >= 0:
                seconds, cpu = spent["vllm"]
                base.append(seconds)
                for name in wanted:
                    ratios[name].append((spent[name][0] / seconds, spent[name][1] / cpu))
        print(f"{setting['model']}, {title}: plain vLLM {statistics.median(base):.2f} s")
        for name, pairs in ratios.items():
            time_part, cpu_part = (spread([pair[part] for pair in pairs]) for part in (0, 1))
            print(f"  {name:<18} time {time_part}, CPU {cpu_part}", flush=True)


def spread(ratios: list[float]) -> str:
    low, *_, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.3f} × ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORKLOADS, default="toy")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "acs-test-models")
    parser.add_argument("--lens", help="the interpreter of an environment with vllm-lens")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        asyncio.run(serve_turns(BEGIN[arguments.child], json.loads(arguments.setting)))
        return
    from rivals import prepared

    from acs.serve_apps.inference.replica import KEEPS_MEMORY

    model, checkpoint = prepared(CATALOGUES[arguments.model], arguments.models)
    config = json.loads((checkpoint / "config.json").read_text())
    setting = {
        "model": arguments.model,
        "checkpoint": str(checkpoint),
        "engine": dict(model.engine),
        "env": KEEPS_MEMORY | dict(model.env),  # for all of them: what it brings is told apart (README.md)
        "depth": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
    }
    contenders: dict[str, Contender] = {}
    memory = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    setting["tensors"] = memory.name
    try:
        for kind in ("vllm", "acs", *(["compiled"] if arguments.compiled else [])):
            contenders[kind] = Contender(kind, setting)
        if arguments.lens:
            contenders["lens"] = Contender("lens", setting, arguments.lens)
        compare(contenders, setting, arguments.rounds)
    finally:
        for contender in contenders.values():
            contender.stop()
        memory.cleanup()


if __name__ == "__main__":
    main()
