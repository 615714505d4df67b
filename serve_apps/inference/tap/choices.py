"""The replica's side of the tap: the sheets and vectors of one request, and what may be in flight at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from acs.platform.inference.contract import Captured, Generate
from acs.serve_apps.inference.tap.exchange import AGAIN_BYTES, Exchange
from acs.serve_apps.inference.tap.requests import KEY
from acs.serve_apps.inference.tap.sheet import Layout, Sheet

IN_FLIGHT_BYTES = 512 * 1024**2  # of captures and vectors; a request beyond waits, first come first served
LONG_BYTES = 2 * 1024**2  # so many take a millisecond to make a file of, or to copy: a thread does it
Done = TypeVar("Done")


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
        capacities = [len(prompt) + request.sampling.max_tokens - 1 for prompt in request.prompts]
        repeated = [capacity for capacity in capacities for _ in range(request.n)]
        self._bounds = [0, *accumulate(repeated)]  # of each choice's records in the sheet
        self._sheet: Sheet | None = None  # while open
        rows_bytes = self._bounds[-1] * self._layout.record_bytes
        self._again = request.only_capture and rows_bytes <= AGAIN_BYTES
        self._sheet_bytes = AGAIN_BYTES if self._again else rows_bytes
        self._unread = len(repeated)
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
        return self._sheet_bytes + sum(len(one.values) for one in self._request.steering)

    async def open(self) -> None:
        await self._budget.take(self.size_bytes)
        self._open = True
        for one in self._request.steering:
            file = await _beside(len(one.values), partial(self._exchange.share, one.values))
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
        sheet = partial(self._exchange.sheet, self._layout, self._bounds[-1], again=self._again)
        self._sheet = await _beside(self._sheet_bytes, sheet)

    def extra_args(self, index: int) -> dict[str, Any]:
        """What the worker is told of choice `index`."""
        return {
            KEY: {
                "group": self._request.request_id,
                "sheet": str(self._opened.path),
                "records": self._bounds[index : index + 2],
                "again": self._again,
                "layers": self._request.capture,
                "top": self._top,
                "steering": self._vectors,
            }
        }

    def have_begun(self, indices: Iterable[int]) -> bool:
        """Whether each of these choices has been in a step that has begun."""
        return all(self._opened.has_begun(self._bounds[index]) for index in indices)

    def check(self, index: int, first: int, token_ids: list[int]) -> None:
        """Whether the rows of these tokens, from position `first` on, were steered. Raises Incomplete."""
        self._opened.check(first, token_ids, self._bounds[index])

    async def read(self, index: int, token_ids: list[int]) -> Captured:
        """The rows of exactly these tokens. Raises Incomplete."""
        layout = self._layout
        read = partial(self._opened.read, token_ids, self._bounds[index])
        data = await _beside(len(token_ids) * layout.record_bytes, read)
        self._unread -= 1
        return Captured(index, (layout.layers, len(token_ids), layout.hidden), layout.dtype, data)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._sheet is not None:
            well = self._again and not self._unread
            remove = partial(self._exchange.spare, self._sheet) if well else self._sheet.remove
            self._remove(remove, self._sheet_bytes)
        for one, vector in zip(self._request.steering, self._vectors, strict=False):  # some, when `open` failed
            self._remove(partial(self._exchange.release, Path(vector["file"])), len(one.values))
        self._give_back()

    # Inside

    @property
    def _opened(self) -> Sheet:
        assert self._sheet is not None, "opened before the first choice"
        return self._sheet

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


async def _beside(size: int, work: Callable[[], Done]) -> Done:
    """Work on so many bytes: beside the event loop when that takes long."""
    return await asyncio.to_thread(work) if size >= LONG_BYTES else work()


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

    async def read(self) -> Captured:
        """Raises Incomplete."""
        return await self._tapped.read(self._index, self._token_ids[:-1])
