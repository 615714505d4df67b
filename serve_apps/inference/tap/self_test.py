"""What a replica proves before it promises Activations: that its tap reads and steers this very model as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import torch

from acs.platform.inference.contract import Captured, Delta, Engine, Failed, Generate, Piece, Sampling, Steering
from acs.serve_apps.inference.tap.choices import TappedModel
from acs.serve_apps.inference.tap.sheet import ITEM_BYTES

PROMPT = [1, 2, 3, 5, 8]
TOKENS = 3
ASK = Callable[[str], Awaitable[Any]]


class SelfTestFailed(Exception):
    """One sentence for the operator: which check failed. `activations = false` serves the model without."""

    def __init__(self, check: str, found: str) -> None:
        super().__init__(
            f"The self-test of the tap failed at {check}: {found}. "
            "With `activations = false` in its catalogue entry the model is served without Activations and steering."
        )


class SelfTest:
    """`ask` calls a method of the worker. Nothing else may run in the engine meanwhile."""

    def __init__(self, engine: Engine, model: TappedModel, ask: ASK) -> None:
        self._engine = engine
        self._model = model
        self._ask = ask

    async def run(self, expected: TappedModel) -> None:
        """Raises SelfTestFailed."""
        model = self._model
        if model.layers != expected.layers:
            raise SelfTestFailed("the layer count", f"{model.layers} blocks were found, {expected.layers} expected")
        if model.hidden != expected.hidden:
            raise SelfTestFailed("the hidden size", f"it is {model.hidden}, {expected.hidden} expected")
        if model.dtype not in ITEM_BYTES:
            raise SelfTestFailed("the dtype", f"it is {model.dtype}, neither of {', '.join(ITEM_BYTES)}")
        plain = await self._stream("reading", [])
        middle = model.layers // 2
        zero = await self._stream("steering by zero", [self._vector([middle], 0.0)])
        if not torch.equal(zero[: middle + 1], plain[: middle + 1]):
            raise SelfTestFailed("steering by zero", "the stream is not what it was")
        for layer in sorted({0, middle, model.layers - 1}):
            steering = self._vector([layer], 0.5)
            steered = await self._stream("steering by a known vector", [steering])
            added = torch.frombuffer(bytearray(steering.values), dtype=torch.float32)
            wanted = (plain[layer].float() + added).to(plain.dtype)
            if not torch.equal(steered[:layer], plain[:layer]) or not torch.equal(steered[layer], wanted):
                raise SelfTestFailed("steering by a known vector", f"Layer {layer} is not the stream plus the vector")

    def _vector(self, layers: list[int], size: float) -> Steering:
        """`size` with changing sign."""
        values = torch.full((len(layers), 1, self._model.hidden), size)
        values[..., ::2] *= -1
        return Steering(layers, values.numpy().astype("<f4").tobytes())

    async def _stream(self, check: str, steering: list[Steering]) -> torch.Tensor:
        """[layers, positions, hidden] at the prompt, by the tap; it must be what each block's successor was given."""
        await self._ask("acs_start_probe")
        captured = await self._capture(check, steering)
        seen = await self._ask("acs_take_probe")
        dtype = getattr(torch, self._model.dtype)
        stream = torch.frombuffer(bytearray(captured.data), dtype=dtype).view(captured.shape)
        for layer, rows in enumerate(seen):
            if rows != stream[layer].contiguous().view(torch.uint8).numpy().tobytes():
                raise SelfTestFailed(check, f"what leaves Layer {layer} is not what the module after it is given")
        return stream[:, : len(PROMPT)]

    async def _capture(self, check: str, steering: list[Steering]) -> Captured:
        sampling = Sampling(TOKENS, temperature=0.0, ignore_eos=True)
        layers = list(range(self._model.layers))
        request = Generate(f"self-test-{check}", [PROMPT], 1, sampling, capture=layers, steering=steering)
        ended: asyncio.Future[Captured] = asyncio.get_running_loop().create_future()

        def sink(piece: Piece) -> None:
            if isinstance(piece, Captured):
                ended.set_result(piece)
            elif isinstance(piece, Failed):
                ended.set_exception(SelfTestFailed(check, piece.message.rstrip(".")))
            else:
                assert isinstance(piece, Delta)

        self._engine.submit(request, sink)
        return await ended
