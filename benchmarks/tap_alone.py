"""What the tap itself adds to a step, without vLLM: blocks that do nothing, a runner that is made up.

    .venv/bin/python benchmarks/tap_alone.py [--steps 300]

Microseconds of the calling thread a step, the least of all steps and their median: a busy machine disturbs the least
hardly at all. A step of plain vLLM to compare with: `activations.py` prints seconds for a known number of steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from acs.serve_apps.inference.tap.exchange import Exchange
from acs.serve_apps.inference.tap.requests import KEY
from acs.serve_apps.inference.tap.sheet import Layout
from acs.serve_apps.inference.tap.tap import Tap

SIZES = {"toy": (4, 128), "smollm2-135m": (30, 576)}  # Layers, hidden size
BATCHES = {"decode, 64 requests": (64, 1), "prefill, 4 requests of 512": (4, 512)}


class Idle(torch.nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return first, second


class Bench:
    def __init__(self, exchange: Exchange, depth: int, hidden: int, requests: int, tokens: int) -> None:
        self._exchange, self._requests, self._tokens, self._hidden = exchange, requests, tokens, hidden
        blocks = [Idle() for _ in range(depth)]
        rows = requests * tokens
        first, second = torch.randn(rows, hidden), torch.randn(rows, hidden)
        positions = torch.arange(tokens).repeat(requests)
        ids = torch.zeros(rows, dtype=torch.int32)

        def forward(**_: Any) -> None:
            for block in blocks:
                block(first, second)

        self._runner: Any = SimpleNamespace(
            device=torch.device("cpu"),
            model_config=SimpleNamespace(get_hidden_size=lambda: hidden, dtype=torch.float32),
            input_batch=SimpleNamespace(
                req_id_to_index={str(number): number for number in range(requests)},
                num_computed_tokens_cpu=np.zeros(requests, np.int32),
            ),
            query_start_loc=SimpleNamespace(np=np.arange(0, rows + 1, tokens, dtype=np.int32)),
            _model_forward=forward,
            execute_model=lambda _: self._runner._model_forward(positions=positions, input_ids=ids),
        )
        Tap(self._runner, blocks)

    def step_us(self, layers: list[int], steered: bool, steps: int) -> list[float]:
        names = [str(number) for number in range(self._requests)]
        self._step(new=[self._new(name, layers, steered) for name in names] if layers or steered else [])
        taken = []
        for _ in range(steps):
            started = time.thread_time()
            self._step()
            taken.append(1e6 * (time.thread_time() - started))
        self._step(ended=names)
        return taken

    def _step(self, new: list[Any] | None = None, ended: list[str] | None = None) -> None:
        rows = 0 if ended else self._requests * self._tokens
        self._runner.execute_model(
            SimpleNamespace(scheduled_new_reqs=new or [], finished_req_ids=ended or [], total_num_scheduled_tokens=rows)
        )

    def _new(self, name: str, layers: list[int], steered: bool) -> Any:
        sheet = self._exchange.sheet(Layout(len(layers), self._hidden, "float32"), self._tokens)
        values = np.full((1, 1, self._hidden), 0.01, "<f4").tobytes()
        vector = {"layers": [1], "rows": 1, "scale": 1.0, "norm_match": False, "positions": None}
        vectors = [{**vector, "file": str(self._exchange.share(values))}] if steered else []
        given = {
            "group": name,
            "sheet": str(sheet.path),
            "records": [0, self._tokens],
            "again": False,
            "layers": layers,
            "top": None,
        }
        params = SimpleNamespace(extra_args={KEY: {**given, "steering": vectors}})
        return SimpleNamespace(req_id=name, sampling_params=params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as tensors:
        exchange = Exchange(Path(tensors) / "tensors")
        for model, (depth, hidden) in SIZES.items():
            for batch, (requests, tokens) in BATCHES.items():
                bench = Bench(exchange, depth, hidden, requests, tokens)
                idle = min(bench.step_us([], False, steps))
                kinds = {"1 Layer": [1], "4 Layers": [0, 1, 2, 3], "all Layers": list(range(depth)), "steered": []}
                print(f"{model}, {batch}")
                for name, layers in kinds.items():
                    taken = bench.step_us(layers, name == "steered", steps)
                    print(f"  {name:<12}{min(taken) - idle:8.0f} µs (median {statistics.median(taken) - idle:.0f})")
        exchange.close()


if __name__ == "__main__":
    main()
