"""Our server against vLLM's own OpenAI server: same toy model, same machine, in turns in one run.

    .venv/bin/python benchmarks/completions.py [--pairs 10] [--seconds 3] [--against CHECKOUT]

With `--against`, the other side is this server as another working tree has it: what a change costs or saves.

Prints, for each kind of request, requests a second, p50, p95 and first token of both, the ratio of the rates (median of
the pairs, with its spread), the difference of p50, and the CPU that each process spent a request; then idle memory.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import Load, run_load
from rivals import Rival, prepared, start_ours, start_vllm

from acs.serve_apps.inference.vllm_engine import IN_PROCESS

PROMPT = "The sky is"
KINDS: list[tuple[str, int, dict[str, Any]]] = [
    ("1 token, whole, 32 clients", 32, {"max_tokens": 1}),
    ("64 tokens, whole, 32 clients", 32, {"max_tokens": 64, "ignore_eos": True}),
    ("64 tokens, stream, 32 clients", 32, {"max_tokens": 64, "ignore_eos": True, "stream": True}),
    ("1 token, stream, 32 clients", 32, {"max_tokens": 1, "stream": True}),
    ("1 token, whole, 1 client", 1, {"max_tokens": 1}),
    ("64 tokens, whole, 1 client", 1, {"max_tokens": 64, "ignore_eos": True}),
    ("64 tokens, stream, 1 client", 1, {"max_tokens": 64, "ignore_eos": True, "stream": True}),
]


@dataclass
class Side:
    loads: list[Load] = field(default_factory=list)
    cpu_ms: dict[str, float] = field(default_factory=dict)  # summed over the turns
    requests: int = 0

    async def turn(self, rival: Rival, clients: int, body: dict[str, Any], seconds: float) -> None:
        before = rival.cpu_s()
        load = await run_load(f"{rival.base}/completions", rival.key, body, clients, seconds)
        after = rival.cpu_s()
        self.loads.append(load)
        self.requests += len(load.latencies_s)
        for kind, spent in after.items():
            self.cpu_ms[kind] = self.cpu_ms.get(kind, 0) + 1000 * (spent - before.get(kind, spent))

    def median(self, of) -> float:  # type: ignore[no-untyped-def]
        return statistics.median(of(load) for load in self.loads)

    def line(self, name: str) -> str:
        rate = self.median(lambda load: load.rate)
        p50, p95 = (self.median(lambda load, share=share: load.percentile_ms(share)) for share in (0.5, 0.95))
        figures = f"{rate:8.1f} req/s  p50 {p50:7.2f} ms  p95 {p95:7.2f} ms"
        if self.loads[0].first_token_s:
            figures += f"  first token {self.median(lambda load: load.first_token_ms):7.2f} ms"
        spent = sorted(((ms / max(1, self.requests), kind) for kind, ms in self.cpu_ms.items()), reverse=True)
        cpu = ", ".join(f"{kind} {ms:.2f}" for ms, kind in spent if ms >= 0.01)
        return f"  {name:<7}{figures}\n        CPU ms a request: {sum(ms for ms, _ in spent):.2f} ({cpu})"


async def compare(ours: Rival, theirs: Rival, pairs: int, seconds: float, only: str | None) -> None:
    for title, clients, fields in KINDS:
        if only and only not in title:
            continue
        body = {"model": "toy", "prompt": PROMPT, **fields}
        sides = {ours.name: Side(), theirs.name: Side()}
        for rival in (ours, theirs):  # not counted: connections, caches
            await run_load(f"{rival.base}/completions", rival.key, body, clients, min(1.0, seconds))
        for number in range(pairs):
            for rival in (ours, theirs) if number % 2 else (theirs, ours):
                await sides[rival.name].turn(rival, clients, body, seconds)
        report(title, sides[ours.name], sides[theirs.name], theirs.name)


def report(title: str, ours: Side, theirs: Side, against: str) -> None:
    ratios = sorted(mine.rate / other.rate for mine, other in zip(ours.loads, theirs.loads, strict=True))
    slower = sorted(
        mine.percentile_ms(0.5) - other.percentile_ms(0.5) for mine, other in zip(ours.loads, theirs.loads, strict=True)
    )
    print(f"{title}\n{ours.line('acs')}\n{theirs.line(against)}")
    print(
        f"  ratio {statistics.median(ratios):.2f} × (from {ratios[0]:.2f} to {ratios[-1]:.2f}), "
        f"p50 {statistics.median(slower):+.2f} ms (from {slower[0]:+.2f} to {slower[-1]:+.2f})\n",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "acs-test-models")
    parser.add_argument("--port", type=int, default=8311)
    parser.add_argument("--same-executor", action="store_true", help="give vLLM's server our executor, not its default")
    parser.add_argument("--against", type=Path, help="another working tree of this project, instead of vLLM's server")
    parser.add_argument("--only", help="the kinds whose title holds this")
    arguments = parser.parse_args()
    prepared("toy", arguments.models)
    if arguments.against:
        theirs = start_ours(arguments.models, arguments.port + 1, checkout=arguments.against)
    else:
        executor = IN_PROCESS if arguments.same_executor else None
        theirs = start_vllm(arguments.models, arguments.port + 1, executor=executor)
    try:
        ours = start_ours(arguments.models, arguments.port)
        try:
            for rival in (ours, theirs):
                memory = rival.memory_mb()
                parts = ", ".join(f"{kind} {mb:.0f}" for kind, mb in sorted(memory.items(), key=lambda item: -item[1]))
                print(f"{rival.name}: idle memory {sum(memory.values()):.0f} MB ({parts})")
            print()
            asyncio.run(compare(ours, theirs, arguments.pairs, arguments.seconds, arguments.only))
        finally:
            ours.stop()
    finally:
        theirs.stop()


if __name__ == "__main__":
    main()
