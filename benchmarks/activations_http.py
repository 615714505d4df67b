"""Reading and steering through the whole server: how long an answer takes, and how many bytes it has.

    .venv/bin/python benchmarks/activations_http.py [--catalogue toy] [--rounds 20]

One client, one request at a time: a new prompt of 512 tokens and one token generated, the kinds in turns. Printed are
medians, and for each kind the difference to plain. Without gzip the client takes the base64 as it is.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from rivals import start_ours

PROMPT_TOKENS = 512


def kinds(depth: int, hidden: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """By name: Accept-Encoding, and what is asked beside the plain request."""
    four = [number * depth // 4 for number in range(4)]
    vector = {"activations": [[0.01] * hidden], "layer_indices": [1]}
    return {
        "plain": ("gzip", {}),
        "4 Layers": ("identity", {"output_residual_stream": four}),
        "4 Layers, gzip": ("gzip", {"output_residual_stream": four}),
        "all Layers": ("identity", {"output_residual_stream": True}),
        "all Layers, gzip": ("gzip", {"output_residual_stream": True}),
        "steered": ("gzip", {"apply_steering_vectors": [vector]}),
    }


def measure(client: httpx.Client, rounds: int) -> None:
    model = client.get("/models").json()["data"][0]
    wanted = kinds(model["capabilities"]["n_layers"], model["capabilities"]["hidden_size"])
    seconds: dict[str, list[float]] = {name: [] for name in wanted}
    sizes: dict[str, list[int]] = {name: [] for name in wanted}
    for number in range(-1, rounds):  # the first is not counted
        for name, (encoding, more) in wanted.items():
            ids = random.Random(f"{number} {name}").choices(range(2, 2000), k=PROMPT_TOKENS)
            body = {"model": model["id"], "prompt": ids, "max_tokens": 1, **more}
            started = time.perf_counter()
            with client.stream("POST", "/completions", json=body, headers={"Accept-Encoding": encoding}) as answer:
                size = sum(map(len, answer.iter_raw()))
            if number >= 0:
                assert answer.status_code == 200
                seconds[name].append(time.perf_counter() - started)
                sizes[name].append(size)
    print(f"{model['id']}, {PROMPT_TOKENS} prompt tokens, 1 client")
    for name in wanted:
        added = statistics.median(a - b for a, b in zip(seconds[name], seconds["plain"], strict=True))
        low, *_, high = statistics.quantiles(seconds[name], n=4)
        spread = f"half of them {1000 * low:.0f} to {1000 * high:.0f}"
        middle = f"{1000 * statistics.median(seconds[name]):6.0f} ms ({spread}), {1000 * added:+.0f} ms"
        print(f"  {name:<18} {middle}, {statistics.median(sizes[name]):,.0f} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalogue", default="toy")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "acs-test-models")
    parser.add_argument("--port", type=int, default=8321)
    arguments = parser.parse_args()
    ours = start_ours(arguments.models, arguments.port, arguments.catalogue)
    try:
        headers = {"Authorization": f"Bearer {ours.key}"}
        with httpx.Client(base_url=ours.base, headers=headers, timeout=120) as client:
            measure(client, arguments.rounds)
    finally:
        ours.stop()


if __name__ == "__main__":
    main()
