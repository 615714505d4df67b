"""The real engine for a test, without Ray or HTTP: requests in, what they brought out."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acs.platform.catalogue import Catalogue, Model
from acs.platform.inference.contract import Captured, Delta, Failed, Generate, Piece, Sampling
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.serve_apps.inference.vllm_engine import VllmEngine

ANSWER_S = 300
_numbers = itertools.count()


@dataclass
class Choice:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the sampled tokens
    finish_reason: str | None = None
    captured: np.ndarray | None = None  # float32 [layers, positions, hidden]


@dataclass
class Answer:
    request: Generate
    choices: list[Choice]
    pieces: list[Piece] = field(default_factory=list)
    failed: Failed | None = None

    @property
    def choice(self) -> Choice:
        (choice,) = self.choices
        return choice

    def add(self, piece: Piece) -> bool:
        """Whether the request has ended."""
        self.pieces.append(piece)
        if isinstance(piece, Failed):
            self.failed = piece
            return True
        if isinstance(piece, Captured):
            self.choices[piece.index].captured = np.frombuffer(piece.data, "<f4").reshape(piece.shape)
        if isinstance(piece, Delta):
            choice = self.choices[piece.index]
            choice.token_ids += piece.token_ids
            if piece.logprobs is not None:
                rows = np.frombuffer(piece.logprobs.logprobs, "<f4").reshape(-1, piece.logprobs.width)
                choice.logprobs += rows[:, 0].tolist()
            choice.finish_reason = piece.finish_reason
        return all(choice.finish_reason for choice in self.choices)


def request(prompt: list[int] | list[list[int]], max_tokens: int = 4, n: int = 1, **fields: Any) -> Generate:
    """Greedy, and on after the end-of-text token, unless `sampling` says otherwise."""
    prompts = prompt if isinstance(prompt[0], list) else [prompt]
    sampling = fields.pop("sampling", Sampling(max_tokens, temperature=0.0, ignore_eos=True))
    return Generate(f"request-{next(_numbers)}", prompts, n, sampling, **fields)  # type: ignore[arg-type]


class Running:
    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine

    async def run(self, asked: Generate) -> Answer:
        answer = Answer(asked, [Choice() for _ in range(len(asked.prompts) * asked.n)])
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sink(piece: Piece) -> None:
            if answer.add(piece) and not ended.done():
                ended.set_result(None)

        self.engine.submit(asked, sink)
        async with asyncio.timeout(ANSWER_S):
            await ended
        return answer

    async def together(self, asked: list[Generate]) -> list[Answer]:
        return await asyncio.gather(*map(self.run, asked))

    async def worker(self, method: str, *args: Any) -> Any:
        (answer,) = await self.engine._llm.collective_rpc(method, args=args)
        return answer

    def files(self) -> list[str]:
        """What lies in the replica's folder of shared memory but its lock and the sheets that are used again."""
        exchange = self.engine._exchange
        kept = {"lock", *(spare.path.name for spare in exchange._spares)}
        return sorted(path.name for path in exchange.folder.iterdir() if path.name not in kept)


class BreakableEngine(VllmEngine):
    worker_extension = "engine.breaking.BreakableExtension"


def toy(**engine: Any) -> Model:
    model = Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"]
    return dataclasses.replace(model, engine={**model.engine, **engine})


async def start(model: Model, checkpoint: Path, tensors: Path) -> Running:
    os.environ.update({"VLLM_PLUGINS": "", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1", **model.env})
    running = Running(BreakableEngine(model, checkpoint, tensors))
    try:
        await running.engine.open_tap()
    except BaseException:
        running.engine.shutdown()
        raise
    return running
