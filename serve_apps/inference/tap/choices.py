"""The replica's side of the tap: the sheets and vectors of one request, and what may be in flight at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acs.platform.inference.contract import Captured, Generate
from acs.serve_apps.inference.tap.exchange import Exchange, Layout, Sheet
from acs.serve_apps.inference.tap.requests import KEY

IN_FLIGHT_BYTES = (
    512 * 1024**2
)  # of captures and vectors in one replica; a request beyond waits, first come first served


@dataclass(frozen=True, slots=True)
class TappedModel:
    """What the worker said when its tap was opened."""

    layers: int
    hidden: int
    dtype: str


class Budget:
    """Bytes in flight. A request that alone is larger than all of it passes when nothing else is in flight."""

    def __init__(self, limit: int = IN_FLIGHT_BYTES) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, amount: int) -> None:
        if self._waiting or not self._fits(amount):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((amount, turn))
            await turn
        else:
            self._taken += amount

    def give_back(self, amount: int) -> None:
        self._taken -= amount
        while self._waiting and self._fits(self._waiting[0][0]):
            taken, turn = self._waiting.popleft()
            self._taken += taken
            turn.set_result(None)

    def _fits(self, amount: int) -> bool:
        return not self._taken or self._taken + amount <= self._limit


class TappedChoices:
    """Made for a request that captures or is steered; `open` before its first choice, `close` when it has ended."""

    def __init__(self, request: Generate, model: TappedModel, exchange: Exchange, budget: Budget) -> None:
        self._request = request
        self._layout = Layout(len(request.capture), model.hidden, model.dtype)
        self._exchange = exchange
        self._budget = budget
        self._sheets: dict[int, Sheet] = {}
        self._vectors: list[dict[str, Any]] = []
        self._open = False
        # Cached blocks are shared by the choices of this request and by nobody else: a fault ends them together.
        self.cache_salt = request.request_id if request.steering else None
        self.captures = bool(request.capture)

    @property
    def size_bytes(self) -> int:
        request = self._request
        positions = sum(len(prompt) + request.sampling.max_tokens - 1 for prompt in request.prompts)
        return request.n * positions * self._layout.record_bytes + sum(len(one.values) for one in request.steering)

    async def open(self) -> None:
        await self._budget.take(self.size_bytes)
        self._open = True
        for one in self._request.steering:
            self._vectors.append(
                {
                    "file": str(self._exchange.share(one.values)),
                    "layers": one.layers,
                    "rows": 1 if one.positions is None else len(one.positions),
                    "scale": one.scale,
                    "norm_match": one.norm_match,
                    "positions": one.positions,
                }
            )

    def extra_args(self, index: int) -> dict[str, Any]:
        """What the worker is told of choice `index`; its sheet is made."""
        request = self._request
        capacity = len(request.prompts[index // request.n]) + request.sampling.max_tokens - 1
        self._sheets[index] = sheet = self._exchange.sheet(self._layout, capacity)
        return {
            KEY: {
                "group": request.request_id,
                "sheet": str(sheet.path),
                "capacity": capacity,
                "layers": request.capture,
                "steering": self._vectors,
            }
        }

    def check(self, index: int, first: int, token_ids: list[int]) -> None:
        """Whether the rows of these tokens, from position `first` on, were steered. Raises Incomplete."""
        self._sheets[index].check(first, token_ids)

    def read(self, index: int, token_ids: list[int]) -> Captured:
        """The rows of exactly these tokens. Raises Incomplete. May take a while: call it beside the event loop."""
        layout = self._layout
        data = self._sheets[index].read(token_ids)
        return Captured(index, (layout.layers, len(token_ids), layout.hidden), layout.dtype, data)

    def remove(self, index: int) -> None:
        """Choice `index` has ended."""
        sheet = self._sheets.pop(index, None)
        if sheet is not None:
            sheet.remove()

    def close(self) -> None:
        if self._open:
            self._open = False
            for index in list(self._sheets):
                self.remove(index)
            for vector in self._vectors:
                self._exchange.release(Path(vector["file"]))
            self._budget.give_back(self.size_bytes)


class TappedTokens:
    """The tokens of one choice that captures or is steered, which its sheet must show."""

    def __init__(self, tapped: TappedChoices, index: int, prompt: list[int]) -> None:
        self.captures = tapped.captures
        self._tapped = tapped
        self._index = index
        self._token_ids = list(prompt)
        self._checked: int | None = None  # positions before this are known to be steered

    def add(self, token_ids: list[int], cached: int) -> None:
        """`cached`: positions of the prompt that vLLM took from its cache: other choices of this request made them.

        Raises Incomplete when what made these tokens was not steered.
        """
        self._token_ids += token_ids
        if not self.captures and token_ids:
            first, self._checked = self._checked if self._checked is not None else cached, len(self._token_ids) - 1
            self._tapped.check(self._index, first, self._token_ids[first:-1])

    def read(self) -> Captured:
        """Raises Incomplete."""
        return self._tapped.read(self._index, self._token_ids[:-1])
