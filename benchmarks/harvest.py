"""Harvests against what else reads many prompts: plain vLLM that captures nothing, vllm-lens and Transformers.

    .venv/bin/python benchmarks/harvest.py [--model toy] [--prompts 512] [--rounds 3] [--lens PYTHON]

The prompts are paragraphs of this project's own pages, each made new by a line of its own at the front: what vLLM finds
in its prefix cache it does not read. Each contender has loaded its model before it is asked, and one runs at a time, in
turns. Each is as its users start it, ours by its shipped entry.

    vllm          prefill in one AsyncLLM, one token generated and thrown away; nothing is captured
    acs           POST /v1/harvest to a whole server, until it is done: Parquet on the disk, 3 Layers
    lens          vllm-lens in one AsyncLLM, each prompt's 3 Layers saved as safetensors
    transformers  output_hidden_states in batches of 8, 3 Layers saved as safetensors

Printed are tokens and bytes a second, CPU seconds, and the medians of the rounds' ratios to plain vLLM. At last, what a
direct request of one token takes with and without a harvest beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from activations import CATALOGUES, QUIET, engine_arguments
from load import run_load
from rivals import Rival, cpu_s_of, prepared, start_ours

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
BATCH = 8  # of Transformers
Turn = Callable[[list[list[int]], Path], Awaitable[None]]


# -- the contenders that are a process with an engine


async def begin_vllm(setting: Any, *, lens: bool = False) -> Turn:
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(engine_arguments(setting))
    extra: Any = {"output_residual_stream": setting["layers"]} if lens else None

    async def one(number: int, ids: list[int], folder: Path) -> None:
        params = SamplingParams(
            max_tokens=1, temperature=0.0, extra_args=extra, output_kind=RequestOutputKind.FINAL_ONLY
        )
        async for output in llm.generate({"prompt_token_ids": ids}, params, f"{number}-{time.time_ns()}"):
            if lens:
                from safetensors.torch import save_file

                stream = output.activations["residual_stream"].contiguous()
                await asyncio.to_thread(save_file, {"residual_stream": stream}, folder / f"{number}.safetensors")

    async def turn(prompts: list[list[int]], folder: Path) -> None:
        await asyncio.gather(*(one(number, ids, folder) for number, ids in enumerate(prompts)))

    return turn


async def begin_lens(setting: Any) -> Turn:
    return await begin_vllm(setting, lens=True)


async def begin_transformers(setting: Any) -> Turn:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, setting["engine"]["dtype"])
    model = AutoModelForCausalLM.from_pretrained(setting["checkpoint"], dtype=dtype).eval()

    def batch(first: int, prompts: list[list[int]], folder: Path) -> None:
        longest = max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        mask = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts])
        with torch.inference_mode():
            states = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        for row, prompt in enumerate(prompts):
            stream = torch.stack([states[layer + 1][row, : len(prompt)] for layer in setting["layers"]]).contiguous()
            save_file({"residual_stream": stream}, folder / f"{first + row}.safetensors")

    async def turn(prompts: list[list[int]], folder: Path) -> None:
        for first in range(0, len(prompts), BATCH):
            batch(first, prompts[first : first + BATCH], folder)

    return turn


BEGIN = {"vllm": begin_vllm, "lens": begin_lens, "transformers": begin_transformers}


async def serve_turns(kind: str, setting: Any) -> None:
    """A turn for each line on stdin; "done" on the real stdout, which nothing else writes to."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    turn = await BEGIN[kind](setting)
    print("ready", file=answers, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        work = json.loads(line)
        await turn(json.loads(Path(work["prompts"]).read_text()), Path(work["folder"]))
        print("done", file=answers, flush=True)


class Engine:
    """A contender that is a process of this file."""

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

    def turn(self, prompts: list[list[int]]) -> int:
        """Bytes that it wrote."""
        with tempfile.TemporaryDirectory(prefix="harvest-bench-") as folder:
            asked = Path(folder, "prompts.json")
            asked.write_text(json.dumps(prompts))
            out = Path(folder, "out")
            out.mkdir()
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"prompts": str(asked), "folder": str(out)}) + "\n")
            self._process.stdin.flush()
            assert self._answer() == "done"
            return sum(file.stat().st_size for file in out.iterdir())

    def cpu_s(self) -> float:
        from acs.platform.server import processes

        return sum(map(cpu_s_of, [self._process.pid, *(each.pid for each in processes.descendants(self._process.pid))]))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


class Ours:
    """A whole server."""

    def __init__(self, rival: Rival, model: str, layers: list[int]) -> None:
        self._rival = rival
        self._model, self._layers = model, layers
        self._http = httpx.Client(base_url=rival.base, headers={"Authorization": f"Bearer {rival.key}"}, timeout=120)

    def submit(self, prompts: list[list[int]]) -> str:
        body = {"model": self._model, "prompts": prompts, "layers": self._layers}
        answer = self._http.post("/harvest", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    def done(self, job_id: str) -> Any:
        while (found := self._http.get(f"/harvest/{job_id}?wait=60").json())["status"] in ("pending", "running"):
            pass
        assert found["status"] == "done", found
        return found

    def turn(self, prompts: list[list[int]]) -> int:
        found = self.done(self.submit(prompts))
        manifest = httpx.get(found["result"]["manifest_url"]).json()
        return sum(shard["bytes"] for shard in manifest["shards"])

    def cancel(self, job_id: str) -> None:
        self._http.delete(f"/harvest/{job_id}")

    def running(self, job_id: str) -> bool:
        return bool(self._http.get(f"/harvest/{job_id}").json()["status"] == "running")

    def cpu_s(self) -> float:
        return sum(self._rival.cpu_s().values())

    def stop(self) -> None:
        self._rival.stop()


# -- the comparison


def texts(tokenizer: Any, name: str, count: int) -> list[list[int]]:
    whole = "\n\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    parts = [part.strip()[:2000] for part in re.split(r"\n\s*\n", whole) if len(part.strip()) > 40]
    return [tokenizer.encode(f"{index} {name}\n{parts[index % len(parts)]}") for index in range(count)]


def compare(contenders: dict[str, Engine | Ours], tokenizer: Any, count: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-1, rounds):  # the first is not counted: caches, compilation
        for name, contender in contenders.items():
            prompts = texts(tokenizer, f"{number} {name}", count)
            before, started = contender.cpu_s(), time.perf_counter()
            size = contender.turn(prompts)
            took, used = time.perf_counter() - started, contender.cpu_s() - before
            if number >= 0:
                tokens = sum(map(len, prompts))
                rates[name].append(tokens / took)
                cpu[name].append(used / tokens)
                said = f"{tokens / took:8,.0f} tokens/s {size / took / 1e6:7.1f} MB/s {used:6.1f} s of CPU"
                print(f"  round {number}: {name:<13} {tokens:,} tokens in {took:6.2f} s, {said}", flush=True)
    for name in contenders:
        ratios = sorted(ours / plain for plain, ours in zip(rates["vllm"], rates[name], strict=True))
        busy = statistics.median(ours / plain for plain, ours in zip(cpu["vllm"], cpu[name], strict=True))
        spread = f"({ratios[0]:.2f}–{ratios[-1]:.2f})"
        print(f"{name:<13} {statistics.median(ratios):.2f} × {spread} the rate of plain vLLM, {busy:.2f} × its CPU")


def beside(ours: Ours, rival: Rival, model: str, tokenizer: Any, count: int, seconds: float) -> None:
    """One client whose requests follow each other without a pause, alone and while a harvest runs."""
    body = {"model": model, "prompt": list(range(2, 34)), "max_tokens": 1}
    url = rival.base + "/completions"
    asyncio.run(run_load(url, rival.key, body, 1, 1.0))
    alone = asyncio.run(run_load(url, rival.key, body, 1, seconds))
    prompts = texts(tokenizer, "beside", count)
    job_id = ours.submit(prompts * max(1, 4000 // len(prompts)))
    time.sleep(1)  # it runs by then
    with_it = asyncio.run(run_load(url, rival.key, body, 1, seconds))
    assert ours.running(job_id), "the harvest ended too early to say anything"
    ours.cancel(job_id)
    for title, load in (("alone", alone), ("beside a harvest", with_it)):
        print(f"direct, {title:<17} p50 {load.percentile_ms(0.5):6.1f} ms, p95 {load.percentile_ms(0.95):6.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=CATALOGUES, default="toy")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside-s", type=float, default=10.0)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "acs-test-models")
    parser.add_argument("--port", type=int, default=8331)
    parser.add_argument("--lens", help="the interpreter of an environment with vllm-lens")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        asyncio.run(serve_turns(arguments.child, json.loads(arguments.setting)))
        return
    from acs.platform.tokenizer import ModelTokenizer
    from acs.serve_apps.inference.replica import KEEPS_MEMORY

    catalogue = CATALOGUES[arguments.model]
    model, checkpoint = prepared(catalogue, arguments.models)
    depth = json.loads((checkpoint / "config.json").read_text())["num_hidden_layers"]
    layers = sorted({depth * quarter // 4 for quarter in (1, 2, 3)})
    setting = {
        "checkpoint": str(checkpoint),
        "engine": dict(model.engine),
        "env": KEEPS_MEMORY | dict(model.env),  # as ours has it
        "layers": layers,
    }
    rival = start_ours(arguments.models, arguments.port, catalogue)
    ours = Ours(rival, arguments.model, layers)
    contenders: dict[str, Engine | Ours] = {"acs": ours}
    try:
        contenders = {"vllm": Engine("vllm", setting), "acs": ours}
        if arguments.lens:
            contenders["lens"] = Engine("lens", setting, arguments.lens)
        contenders["transformers"] = Engine("transformers", setting)
        tokenizer = ModelTokenizer(checkpoint)
        compare(contenders, tokenizer, arguments.prompts, arguments.rounds)
        if arguments.beside_s:
            beside(ours, rival, arguments.model, tokenizer, arguments.prompts, arguments.beside_s)
    finally:
        for contender in contenders.values():
            contender.stop()


if __name__ == "__main__":
    main()
