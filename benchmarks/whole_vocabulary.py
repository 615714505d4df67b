"""`prompt_logprobs: -1` on 256 tokens of the default model: 12.5 million entries, near a gigabyte of JSON.

    .venv/bin/python benchmarks/whole_vocabulary.py [--tokens 256]

Prints our time a prompt token and that of vLLM's own server (on 16 tokens: it is slow), the most memory that each of
our processes took above idle, and what another client's one-token requests saw meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from load import Load, run_load
from rivals import Rival, prepared, start_ours, start_vllm

VLLM_TOKENS = 16
WATCH_S = 0.5  # reading the memory maps of fifteen processes costs more than a moment


async def ask(rival: Rival, tokens: int, gzip: bool) -> tuple[float, int]:
    """Seconds and bytes of one answer, read and thrown away."""
    body = {"model": "smollm2-135m", "prompt": [*range(1000, 1000 + tokens)], "max_tokens": 1, "prompt_logprobs": -1}
    headers = {"Authorization": f"Bearer {rival.key}", "Accept-Encoding": "gzip" if gzip else "identity"}
    began, size = time.perf_counter(), 0
    async with (
        httpx.AsyncClient(timeout=600) as client,
        client.stream("POST", f"{rival.base}/completions", json=body, headers=headers) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for part in response.aiter_raw():
            size += len(part)
    return time.perf_counter() - began, size


async def watch_memory(rival: Rival, peaks: dict[str, float]) -> None:
    while True:
        for kind, mb in rival.memory_mb().items():
            peaks[kind] = max(peaks.get(kind, 0.0), mb)
        await asyncio.sleep(WATCH_S)


async def beside(rival: Rival, over: asyncio.Event) -> list[float]:
    """Latencies of another client's one-token requests until `over`."""
    body = {"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 1}
    latencies = []
    while not over.is_set():
        load: Load = await run_load(f"{rival.base}/completions", rival.key, body, 1, 0.001)
        latencies += load.latencies_s
        await asyncio.sleep(0.02)
    return latencies


async def measure(ours: Rival, tokens: int, gzip: bool) -> float:
    idle, peaks, over = ours.memory_mb(), {}, asyncio.Event()
    watching = asyncio.create_task(watch_memory(ours, peaks))
    other = asyncio.create_task(beside(ours, over))
    seconds, size = await ask(ours, tokens, gzip)
    over.set()
    latencies = sorted(await other)
    watching.cancel()
    above = {kind: mb - idle.get(kind, 0.0) for kind, mb in peaks.items() if mb - idle.get(kind, 0.0) > 5}
    print(f"acs, {tokens} tokens, {'gzip' if gzip else 'plain'}: {seconds:.1f} s, {size / 1e6:.0f} MB")
    print("  above idle, MB: " + ", ".join(f"{kind} {mb:.0f}" for kind, mb in above.items()))
    p95 = latencies[int(0.95 * len(latencies))]
    print(
        f"  another client's {len(latencies)} one-token requests: p50 {1000 * statistics.median(latencies):.0f} ms, "
        f"p95 {1000 * p95:.0f} ms, worst {1000 * latencies[-1]:.0f} ms"
    )
    return seconds / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "acs-test-models")
    parser.add_argument("--port", type=int, default=8321)
    arguments = parser.parse_args()
    prepared("default", arguments.models)
    ours = start_ours(arguments.models, arguments.port, "default")
    try:
        each = [asyncio.run(measure(ours, arguments.tokens, gzip)) for gzip in (False, True)]
    finally:
        ours.stop()
    theirs = start_vllm(arguments.models, arguments.port + 1, "default")
    try:
        asyncio.run(ask(theirs, 2, False))
        seconds, size = asyncio.run(ask(theirs, VLLM_TOKENS, False))
        print(f"vllm, {VLLM_TOKENS} tokens, plain: {seconds:.1f} s, {size / 1e6:.0f} MB")
    finally:
        theirs.stop()
    print(f"a token: acs {1000 * each[0]:.0f} ms, vllm {1000 * seconds / VLLM_TOKENS:.0f} ms", end="")
    print(f", {seconds / VLLM_TOKENS / each[0]:.1f} × faster")


if __name__ == "__main__":
    main()
