"""A harvest at work: prompts are read in chunks, kept rows gather into shards, shards are written and then noted.

Nothing is ever dropped: who reads waits for who writes. `SHARDS_AT_ONCE` shards are in memory, whatever the size of the
harvest. A shard that is noted is done for good; after a crash a harvest goes on with the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import numpy as np

from acs.events.harvest import WrittenShard
from acs.platform.harvests.reading import CHUNK_TOKENS, PAUSES_S, chunks, read
from acs.platform.harvests.rows import bits_of, kept
from acs.platform.harvests.stored import StoredPlan
from acs.platform.inference.contract import Captured, Engine
from acs.storage.shards.layout import Layout
from acs.storage.shards.manifest import sweep, write_manifest, write_stats
from acs.storage.shards.store import Store
from acs.storage.shards.writer import PromptRows, Shard, write_shard

SHARDS_AT_ONCE = 3  # one is written while the next is read, and a third is ready when writing is the slower of the two
CHUNKS_AT_ONCE = 2  # the engine never waits for us between two

Write = Callable[[int, list[PromptRows]], Awaitable[Shard]]  # raises StoreUnavailable
Note = Callable[[int, WrittenShard], Awaitable[None]]  # returns when it is stored


class Pipeline:
    def __init__(
        self,
        engine: Engine,
        token_texts: Sequence[str],
        plan: StoredPlan,
        layout: Layout,
        positions: str,
        write: Write,
        note: Note,
        *,
        chunk_tokens: int = CHUNK_TOKENS,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """`token_texts`: of each id, as answers show them. `positions`: all, last or mean."""
        self._engine = engine
        self._texts = token_texts
        self._plan = plan
        self._layout = layout
        self._positions = positions
        self._directions = plan.direction_rows
        self._write = write
        self._note = note
        self._chunk_tokens = chunk_tokens
        self._pauses_s = pauses_s
        self._shards = asyncio.Semaphore(SHARDS_AT_ONCE)
        self._chunks = asyncio.Semaphore(CHUNKS_AT_ONCE)
        self.tokens_read = 0  # by this run

    async def run(self, done: Collection[int]) -> None:
        """Returns when every shard is noted; `done` are already. Cancelled, it ends its requests in the engine, and
        lets files that are being written be finished, so that nothing goes on behind its back. Raises the contract's
        errors and StoreUnavailable.
        """
        missing = [number for number in range(len(self._plan.cuts) - 1) if number not in done]
        try:
            async with asyncio.TaskGroup() as group:
                for number in missing:
                    await self._shards.acquire()
                    group.create_task(self._shard(number))
        except ExceptionGroup as faults:
            raise _first(faults) from None

    async def _shard(self, number: int) -> None:
        try:
            first, end = self._plan.cuts[number : number + 2]
            prompts = self._plan.prompts(first, end)
            started = time.monotonic()
            async with asyncio.TaskGroup() as group:
                parts = [
                    group.create_task(self._chunk(first + part.start, prompts[part.start : part.stop]))
                    for part in chunks([*map(len, prompts)], self._chunk_tokens)
                ]
            read_at = time.monotonic()
            rows = [one for part in parts for one in part.result()]
            shard = await _to_its_end(self._write(number, rows))
            written_at = time.monotonic()
            tokens = sum(map(len, prompts))
            times = round((read_at - started) * 1000), round((written_at - read_at) * 1000)
            file = shard.name, shard.rows, shard.bytes, shard.sha256
            await self._note(number, WrittenShard(*file, len(prompts), tokens, *times))
        finally:
            self._shards.release()

    async def _chunk(self, first: int, prompts: list[list[int]]) -> list[PromptRows]:
        """What is kept of the prompts, the first of which has the index `first` in the harvest."""
        async with self._chunks:
            found = await read(self._engine, prompts, [*self._layout.layers], self._pauses_s)
        self.tokens_read += sum(map(len, prompts))
        return await asyncio.to_thread(self._rows, first, prompts, found)

    def _rows(self, first: int, prompts: list[list[int]], found: list[Captured]) -> list[PromptRows]:
        return [
            self._labelled(first + index, ids, kept(bits_of(one), self._positions, self._directions))
            for index, (ids, one) in enumerate(zip(prompts, found, strict=True))
        ]

    def _labelled(self, index: int, ids: list[int], values: Any) -> PromptRows:
        if self._positions == "mean":
            return PromptRows(index, values, None, None, None)
        kept_ids = ids[-values.shape[1] :]
        positions = np.arange(len(ids) - len(kept_ids), len(ids), dtype=np.int32)
        texts = [self._texts[id] for id in kept_ids]
        return PromptRows(index, values, positions, np.array(kept_ids, np.int32), texts)


def in_a_thread(store: Store, layout: Layout) -> Write:
    """Writes shards in this process."""

    async def write(number: int, rows: list[PromptRows]) -> Shard:
        return await asyncio.to_thread(write_shard, store, layout, number, rows)

    return write


def close(store: Store, layout: Layout, shards: Sequence[Shard], facts: dict[str, Any]) -> str:
    """When all shards are noted, and nobody writes any more: what is no part of the harvest goes; then the statistics
    are written, and the manifest last. Returns the manifest's SHA-256. Raises StoreUnavailable.
    """
    sweep(store, shards)
    return write_manifest(store, layout, shards, write_stats(store, layout, shards), facts)


async def _to_its_end(writing: Awaitable[Shard]) -> Shard:
    """Also when we are cancelled meanwhile: a thread cannot be stopped, and must not outlive the run."""
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.cancelled() or task.exception()  # nobody else will look at it
        raise


def _first(faults: ExceptionGroup) -> Exception:
    fault = faults.exceptions[0]
    return _first(fault) if isinstance(fault, ExceptionGroup) else fault
