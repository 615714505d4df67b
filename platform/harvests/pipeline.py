"""A harvest at work: prompts are read in chunks, a shard is written while they come in, and noted when it is whole.

Nothing is ever dropped: who reads waits for who writes. `CHUNKS_AT_ONCE` chunks are in memory, whatever the size of the
harvest. A shard that is noted is done for good; after a crash a harvest goes on with the others.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from acs.events.harvest import WrittenShard
from acs.platform.harvests.feed import Feed
from acs.platform.harvests.reading import CHUNK_TOKENS, PAUSES_S, chunks, read
from acs.platform.harvests.rows import bits_of, kept
from acs.platform.harvests.stored import StoredPlan
from acs.platform.inference.contract import Captured, Engine
from acs.storage.shards.layout import Layout
from acs.storage.shards.manifest import sweep, write_manifest, write_stats
from acs.storage.shards.store import Store
from acs.storage.shards.writer import PromptRows, Shard, write_shard

SHARDS_AT_ONCE = 3  # one is brought onto the disk and noted, the next is read, and a third is behind it in the engine
CHUNKS_AT_ONCE = 4  # in memory, until they are written
READ_AT_ONCE = 2  # of those: the engine never waits for us between two

Write = Callable[[int, Iterable[PromptRows]], Awaitable[Shard]]  # raises StoreUnavailable
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
        self._reading = asyncio.Semaphore(READ_AT_ONCE)
        self.tokens_read = 0  # by this run

    async def run(self, done: Collection[int]) -> None:
        """Returns when every shard is noted; `done` are already. Cancelled, it ends its requests in the engine, and
        waits until files that are not whole are gone, so that nothing goes on behind its back. Raises the contract's
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
            feed = Feed(self._chunks.release)
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(_to_its_end(self._write(number, feed)))
                with feed:
                    parts = deque(
                        group.create_task(self._chunk(first + part.start, prompts[part.start : part.stop]))
                        for part in chunks([*map(len, prompts)], self._chunk_tokens)
                    )
                    while parts:
                        feed.put(await parts.popleft())
            shard, took_s = writing.result(), time.monotonic() - started
            tokens = sum(map(len, prompts))
            times = round(feed.waited_s * 1000), round((took_s - feed.waited_s) * 1000)
            file = shard.name, shard.rows, shard.bytes, shard.sha256
            await self._note(number, WrittenShard(*file, len(prompts), tokens, *times))
        finally:
            self._shards.release()

    async def _chunk(self, first: int, prompts: list[list[int]]) -> list[PromptRows]:
        """What is kept of the prompts, the first of which has the index `first` in the harvest."""
        await self._chunks.acquire()  # until it is written
        async with self._reading:
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


def in_threads(store: Store, layout: Layout) -> Write:
    """Writes shards in this process, each in a thread that waits for its rows: none of the pool that others share."""
    pool = ThreadPoolExecutor(SHARDS_AT_ONCE, "shard", initializer=_give_way)

    async def write(number: int, rows: Iterable[PromptRows]) -> Shard:
        return await asyncio.get_running_loop().run_in_executor(pool, write_shard, store, layout, number, rows)

    return write


def _give_way() -> None:
    """Beside a busy engine this thread has a tenth of a core: an engine's threads wait for each other, so whoever takes
    one of their cores for a moment holds up all of them. In its pauses there is time enough to write.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # on Linux, of the thread alone


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
