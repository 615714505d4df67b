"""The replica's side of the tap: the sheets and vectors of one request, and what may be in flight at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from acs.platform.inference.contract import Captured, Generate
from acs.serve_apps.inference.tap.exchange import Exchange, Layout, Sheet
from acs.serve_apps.inference.tap.requests import KEY

IN_FLIGHT_BYTES = (
    512 * 1024**2
)  # of captures and vectors in one replica; a request beyond waits, first come first served
LONG_BYTES = 2 * 1024**2  # a file of so many takes a millisecond to make, which a thread beside the event loop does


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
        self._removals: set[asyncio.Future[None]] = set()  # that a thread is at
        # Cached blocks are shared by the choices of this request and by nobody else: a fault ends them together, and
        # those of one that only captures may lack the upper Layers.
        self.cache_salt = request.request_id if request.steering or request.only_capture else None
        self.captures = bool(request.capture)
        touched = [*request.capture, *(layer for one in request.steering for layer in one.layers)]
        self._top = max(touched) if request.only_capture else None

    @property
    def size_bytes(self) -> int:
        request = self._request
        positions = sum(len(prompt) + request.sampling.max_tokens - 1 for prompt in request.prompts)
        return request.n * positions * self._layout.record_bytes + sum(len(one.values) for one in request.steering)

    async def open(self) -> None:
        await self._budget.take(self.size_bytes)
        self._open = True
        for one in self._request.steering:
            long = len(one.values) >= LONG_BYTES
            share = self._exchange.share
            file = await asyncio.to_thread(share, one.values) if long else share(one.values)
            self._vectors.append(
                {
                    "file": str(file),
                    "layers": one.layers,
                    "rows": 1 if one.positions is None else len(one.positions),
                    "scale": one.scale,
                    "norm_match": one.norm_match,
                    "positions": one.positions,
                }
            )
        for index in range(len(self._request.prompts) * self._request.n):
            if self._sheet_bytes(index) >= LONG_BYTES:
                self._sheets[index] = await asyncio.to_thread(self._new_sheet, index)

    def extra_args(self, index: int) -> dict[str, Any]:
        """What the worker is told of choice `index`; its sheet is made, if it was too small to be made before."""
        if index not in self._sheets:
            self._sheets[index] = self._new_sheet(index)
        return {
            KEY: {
                "group": self._request.request_id,
                "sheet": str(self._sheets[index].path),
                "layers": self._request.capture,
                "top": self._top,
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
            self._remove(sheet.remove, self._sheet_bytes(index))

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        for index in list(self._sheets):
            self.remove(index)
        for one, vector in zip(self._request.steering, self._vectors, strict=False):  # some, when `open` failed
            self._remove(partial(self._exchange.release, Path(vector["file"])), len(one.values))
        self._give_back()

    # Inside

    def _capacity(self, index: int) -> int:
        return len(self._request.prompts[index // self._request.n]) + self._request.sampling.max_tokens - 1

    def _sheet_bytes(self, index: int) -> int:
        return self._capacity(index) * self._layout.record_bytes

    def _new_sheet(self, index: int) -> Sheet:
        return self._exchange.sheet(self._layout, self._capacity(index))

    def _remove(self, remove: Callable[[], None], size: int) -> None:
        if size < LONG_BYTES:
            return remove()
        removal = asyncio.get_running_loop().run_in_executor(None, remove)
        self._removals.add(removal)
        removal.add_done_callback(self._removed)

    def _removed(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        if not self._open:
            self._give_back()

    def _give_back(self) -> None:
        """Once there is room again."""
        if not self._removals:
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
