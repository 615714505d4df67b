"""Jobs against direct calls of the same work, on the toy, in turns in one run.

    .venv/bin/python benchmarks/jobs.py [--jobs 2000] [--rounds 5] [--tokens 16]

A round is its share of the Jobs, from the first submission to the end of the last, and as many direct calls. Prints
both rates, the ratio (median of the rounds, with its spread), the time of a submission, and each process's CPU a Job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from load import Load, run_count
from rivals import Rival, prepared, start_ours

SUBMITTERS = 32
DIRECT_CLIENTS = 64  # as many as the toy has slots, so that both keep it as busy
LOOK_S = 0.1


async def job_round(rival: Rival, body: dict[str, Any], count: int) -> tuple[float, Load]:
    """(Jobs a second, the submissions)"""
    start = time.perf_counter()
    submissions = await run_count(f"{rival.base}/completion-jobs", rival.key, body, SUBMITTERS, count, status=202)
    while await asyncio.to_thread(unfinished, rival):  # noqa: ASYNC110 - another process makes it true
        await asyncio.sleep(LOOK_S)
    return count / (time.perf_counter() - start), submissions


def unfinished(rival: Rival) -> bool:
    return any(listed(rival, status) for status in ("queued", "running"))


def listed(rival: Rival, status: str, limit: int = 1) -> list[Any]:
    request = urllib.request.Request(
        f"{rival.base}/completion-jobs?limit={limit}&status={status}",
        headers={"Authorization": f"Bearer {rival.key}"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]
        return found


async def compare(rival: Rival, jobs: int, rounds: int, tokens: int) -> None:
    body = {"model": "toy", "prompt": "The sky is", "max_tokens": tokens, "ignore_eos": True}
    count = jobs // rounds
    url = f"{rival.base}/completions"
    await run_count(url, rival.key, body, DIRECT_CLIENTS, 100)  # not counted: connections, caches
    await job_round(rival, body, 100)
    rates, submissions, cpu_ms = [], [], [{}, {}]  # type: ignore[var-annotated]
    for number in range(rounds):
        pair = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            before = rival.cpu_s()
            if side == 0:
                pair[0], submitted = await job_round(rival, body, count)
                submissions += submitted.latencies_s
            else:
                pair[1] = (load := await run_count(url, rival.key, body, DIRECT_CLIENTS, count)).rate
                assert len(load.latencies_s) == count
            for kind, spent in rival.cpu_s().items():
                more = 1000 * (spent - before.get(kind, spent)) / count / rounds
                cpu_ms[side][kind] = cpu_ms[side].get(kind, 0.0) + more
        rates.append(pair)
    assert not listed(rival, "failed"), "a Job failed"
    ratios = sorted(mine / direct for mine, direct in rates)
    print(f"{jobs} Jobs of {tokens} tokens in {rounds} rounds")
    for side, name in enumerate(("Jobs", "direct")):
        spent = sorted(((ms, kind) for kind, ms in cpu_ms[side].items() if ms >= 0.01), reverse=True)
        cpu = ", ".join(f"{kind} {ms:.2f}" for ms, kind in spent)
        print(f"  {name:<6} {statistics.median(pair[side] for pair in rates):7.1f} a second  CPU ms each: {cpu}")
    print(f"  ratio {statistics.median(ratios):.2f} × (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
    ordered = sorted(submissions)
    print(f"  submission, {SUBMITTERS} clients at once: p50 {1000 * ordered[len(ordered) // 2]:.1f} ms")
    alone = await run_count(f"{rival.base}/completion-jobs", rival.key, {**body, "max_tokens": 1}, 1, 300, status=202)
    print(f"  submission, one client: p50 {alone.percentile_ms(0.5):.1f} ms, p95 {alone.percentile_ms(0.95):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "acs-test-models")
    parser.add_argument("--port", type=int, default=8331)
    arguments = parser.parse_args()
    prepared("toy", arguments.models)
    rival = start_ours(arguments.models, arguments.port)
    try:
        asyncio.run(compare(rival, arguments.jobs, arguments.rounds, arguments.tokens))
    finally:
        rival.stop()


if __name__ == "__main__":
    main()
