"""A Loom against as many separate Completions of the same paths, on the default model.

    .venv/bin/python benchmarks/loom.py [--nodes 500] [--wide 8] [--tokens 16] [--prompt-tokens 128]

The tree grows by Branches of `--wide`, every Node of a level before the next, as deep as it takes. Then, on a server
started anew, each Node by itself in a mixed order: once as the only Branch of a Loom planted with its path, which says
what the engine had cached, and once, on a third server, as a direct Completion. Prints Nodes and tokens a second, and
the share of the paths' tokens that were cached.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rivals import Rival, prepared, start_ours

CLIENTS = 32  # as many as the model has slots
MODEL = "smollm2-135m"
PROMPT_WORDS = "The sky was the colour of a television tuned to a channel that had long since stopped. "


@dataclass
class Grown:
    """What was grown in `seconds`."""

    seconds: float
    tokens: int
    path_tokens: int = 0
    cached_tokens: int = 0
    prompts: list[list[int]] | None = None  # token ids in front of each Node

    def shown(self, name: str) -> str:
        share = f"{self.cached_tokens / self.path_tokens:6.1%} of path tokens cached" if self.path_tokens else ""
        return f"  {name:<22} {self.tokens / self.seconds:7.1f} tokens a second, {self.seconds:6.1f} s  {share}"


class Client:
    def __init__(self, rival: Rival) -> None:
        headers = {"Authorization": f"Bearer {rival.key}"}
        limits = httpx.Limits(max_connections=2 * CLIENTS)
        self._http = httpx.AsyncClient(base_url=rival.base, headers=headers, timeout=600, limits=limits)
        self._seen: dict[str, int] = {}  # Loom → a version that it has passed

    async def ask(self, method: str, path: str, **fields: Any) -> Any:
        answer = await self._http.request(method, path, **fields)
        answer.raise_for_status()
        return answer.json()

    async def plant(self, prompt: str | list[int]) -> dict[str, Any]:
        loom: dict[str, Any] = await self.ask("POST", "/looms", json={"model": MODEL, "prompt": prompt})
        return loom

    async def grow(self, loom_id: str, node_id: str, **sampling: Any) -> list[dict[str, Any]]:
        """The Nodes, done."""
        since = self._seen.get(loom_id, 1)
        path = f"/looms/{loom_id}/nodes/{node_id}/branch"
        asked = await self.ask("POST", path, json={"model": MODEL, "ignore_eos": True, **sampling})
        waiting = {node["id"] for node in asked["nodes"]}
        nodes = []
        while waiting:
            changed = await self.ask("GET", f"/looms/{loom_id}", params={"since": since, "wait": 30})
            since = self._seen[loom_id] = changed["version"]
            ended = [n for n in changed["nodes"] if n["id"] in waiting and n["status"] in ("done", "failed")]
            assert all(node["status"] == "done" for node in ended), ended
            waiting -= {node["id"] for node in ended}
            nodes += ended
        return nodes


async def at_once(work: list[Callable[[], Awaitable[Any]]]) -> list[Any]:
    places = asyncio.Semaphore(CLIENTS)

    async def one(do: Callable[[], Awaitable[Any]]) -> Any:
        async with places:
            return await do()

    return await asyncio.gather(*map(one, work))


def counted(nodes: list[dict[str, Any]], seconds: float) -> Grown:
    usages = [node["usage"] for node in nodes]
    return Grown(
        seconds,
        sum(usage["completion_tokens"] for usage in usages),
        sum(usage["prompt_tokens"] for usage in usages),
        sum(usage["cached_tokens"] for usage in usages),
    )


async def tree(rival: Rival, count: int, wide: int, tokens: int, prompt: str) -> Grown:
    client = Client(rival)
    loom = await client.plant(prompt)
    level = [(loom["nodes"][0]["id"], loom["nodes"][0]["token_ids"])]
    nodes: list[dict[str, Any]] = []
    prompts: list[list[int]] = []
    start = time.perf_counter()
    while len(nodes) < count:
        parents = level[: -(-(count - len(nodes)) // wide)]
        branching = [
            partial(client.grow, loom["id"], id, n=wide, max_tokens=tokens, seed=len(nodes)) for id, _ in parents
        ]
        found = await at_once(branching)
        level = []
        for (_, path), children in zip(parents, found, strict=True):
            level += [(child["id"], path + child["token_ids"]) for child in children]
            prompts += [path] * len(children)
            nodes += children
    grown = counted(nodes, time.perf_counter() - start)
    grown.prompts = prompts
    return grown


async def apart(rival: Rival, prompts: list[list[int]], tokens: int) -> Grown:
    client = Client(rival)
    looms = await at_once([partial(client.plant, prompt) for prompt in prompts])
    start = time.perf_counter()
    branching = [partial(client.grow, loom["id"], loom["nodes"][0]["id"], max_tokens=tokens) for loom in looms]
    found = await at_once(branching)
    return counted([node for nodes in found for node in nodes], time.perf_counter() - start)


async def direct(rival: Rival, prompts: list[list[int]], tokens: int) -> Grown:
    client = Client(rival)

    def body(prompt: list[int]) -> dict[str, Any]:
        return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}

    start = time.perf_counter()
    answers = await at_once([partial(client.ask, "POST", "/completions", json=body(prompt)) for prompt in prompts])
    seconds = time.perf_counter() - start
    return Grown(seconds, sum(answer["usage"]["completion_tokens"] for answer in answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--wide", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "acs-test-models")
    parser.add_argument("--port", type=int, default=8341)
    arguments = parser.parse_args()
    prepared("default", arguments.models)
    count, wide, tokens = arguments.nodes, arguments.wide, arguments.tokens
    prompt = PROMPT_WORDS * (1 + arguments.prompt_tokens // 18)

    def on_a_new_server(run: Callable[[Rival], Any]) -> Grown:
        rival = start_ours(arguments.models, arguments.port, "default")
        try:
            grown: Grown = asyncio.run(run(rival))
            return grown
        finally:
            rival.stop()

    grown = on_a_new_server(lambda rival: tree(rival, count, wide, tokens, prompt))
    assert grown.prompts is not None
    prompts = random.Random(0).sample(grown.prompts, len(grown.prompts))
    print(f"{len(prompts)} Nodes of {tokens} tokens, {wide} wide, paths of {min(map(len, prompts))} to "
          f"{max(map(len, prompts))} tokens; {CLIENTS} at once")  # fmt: skip
    print(grown.shown("one Loom"))
    print(on_a_new_server(lambda rival: apart(rival, prompts, tokens)).shown("each in a Loom of one"))
    print(on_a_new_server(lambda rival: direct(rival, prompts, tokens)).shown("separate Completions"))


if __name__ == "__main__":
    main()
