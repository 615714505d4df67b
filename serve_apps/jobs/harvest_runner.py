"""Runs Harvests: the pipeline between a model's replicas and the files, and what the ledger is told of it.

Files are written by threads of this process, not by Ray tasks: the encoders let go of the interpreter's lock, so that
threads use all cores; a task's worker process costs a second and 100 MB, and its arguments would be copied through an
object store that is smaller than a shard may be. Nothing but this process has to be killed to kill a writer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from acs.events.harvest import WrittenShard
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ApiError
from acs.platform.harvests import pipeline
from acs.platform.harvests.pipeline import Pipeline, in_threads
from acs.platform.harvests.provenance import facts_of, provenance_of
from acs.platform.harvests.reading import chunk_tokens
from acs.platform.harvests.stored import StoredPlan, decode
from acs.platform.jobs.stored import body_of
from acs.platform.ledger.asks import Asks
from acs.platform.ledger.harvest_contract import (
    AskKept,
    EndHarvest,
    HarvestNoted,
    HarvestWork,
    KeptTold,
    NoteShard,
    RunHarvest,
    StopHarvest,
)
from acs.storage.blobs import Blobs, BlobUnavailable
from acs.storage.shards.layout import Layout
from acs.storage.shards.manifest import sweep
from acs.storage.shards.store import UNAVAILABLE, Store, StoreUnavailable
from acs.storage.shards.writer import Shard

log = logging.getLogger("ray.serve")
SWEEP_S = 300.0


class Superseded(Exception):
    """Another run has taken this one's place, or the Harvest has ended."""


@dataclass(slots=True)
class _Run:
    work: RunHarvest
    task: asyncio.Task[None] | None = None
    pipeline: Pipeline | None = None  # once it reads
    telling: asyncio.Task[bool] | None = None  # once it ends: tells the ledger how

    @property
    def tokens_read(self) -> int:
        """With what earlier runs had noted; never more than the prompts have."""
        noted = sum(shard.tokens for shard in self.work.shards.values())
        return noted + (self.pipeline.tokens_read if self.pipeline is not None else 0)


class HarvestRunner:
    def __init__(self, models: Mapping[str, ServedModel], asks: Asks, plans: Blobs, files: Store) -> None:
        """`asks`: on the runner's own link. `files`: a place for each Harvest in it."""
        self._models = models
        self._asks = asks
        self._plans = plans
        self._files = files
        self._running: dict[tuple[str, int], _Run] = {}  # until the ledger has noted how they ended

    def do(self, work: HarvestWork) -> None:
        """What the ledger says; it may say it twice."""
        known = self._running.get((work.harvest_id, work.run))
        if isinstance(work, RunHarvest) and known is None:
            run = self._running[work.harvest_id, work.run] = _Run(work)
            run.task = asyncio.create_task(self._run(run))  # which never begins, if it is to stop at once
            run.task.add_done_callback(lambda _: self._running.pop((work.harvest_id, work.run)))
        elif isinstance(work, StopHarvest) and known is not None and known.telling is None:
            assert known.task is not None
            known.telling = asyncio.create_task(
                self._tell_end(known, None, None)
            )  # before files are written to their end
            known.task.cancel()

    async def follow(self) -> None:
        """For ever: removes the files that nobody wants, those that a killed server left among them."""
        while True:
            try:
                await self.sweep()
            except StoreUnavailable as error:
                log.warning("Leftover files of harvests cannot be removed: %s", error.word)
            await asyncio.sleep(SWEEP_S)

    async def sweep(self) -> None:
        """What has expired, failed or been cancelled, and what is of no Harvest at all. Raises StoreUnavailable."""
        found = await asyncio.to_thread(self._files.places)  # before the ledger is asked: what comes later is wanted
        told = await self._asks.ask(AskKept(self._asks.number()), None)
        assert isinstance(told, KeptTold)
        kept = {*told.harvest_ids, *(harvest_id for harvest_id, _ in self._running)}
        for name in found:
            if name not in kept:
                await self._remove(name)

    async def _run(self, run: _Run) -> None:
        work = run.work
        manifest_sha256 = word = None
        try:
            manifest_sha256 = await self._harvested(run)
        except asyncio.CancelledError:
            if run.telling is None:  # the process ends
                raise
        except Superseded:
            return
        except StoreUnavailable as error:
            log.warning("A harvest's files cannot be written: %s", error.__cause__ or error)
            word = error.word
        except BlobUnavailable:
            log.exception("A harvest's plan cannot be read.")
            word = UNAVAILABLE
        except ApiError as error:
            word = error.code or "unavailable"
        except Exception:
            log.exception("A harvest failed by our own fault.")
            word = "internal_error"
        if run.telling is None:
            run.telling = asyncio.create_task(self._tell_end(run, manifest_sha256, word))
        counted = await run.telling
        if counted and manifest_sha256 is None:
            await self._remove(work.harvest_id)

    async def _tell_end(self, run: _Run, manifest_sha256: str | None, word: str | None) -> bool:
        """Whether the run counted still."""
        whose = run.work.harvest_id, run.work.run
        ended = EndHarvest(self._asks.number(), *whose, run.tokens_read, manifest_sha256, word)
        told = await self._asks.ask(ended, None)
        assert isinstance(told, HarvestNoted)
        return told.counts

    async def _remove(self, harvest_id: str) -> None:
        try:
            await asyncio.to_thread(self._files.inside(harvest_id).remove_all)
        except StoreUnavailable as error:  # the next sweep tries again
            log.warning("The files of harvest %s cannot be removed: %s", harvest_id, error.word)

    async def _harvested(self, run: _Run) -> str:
        """The manifest's SHA-256. Raises the contract's errors, StoreUnavailable, BlobUnavailable and Superseded."""
        work, terms = run.work, run.work.terms
        plan = decode(body_of(await asyncio.to_thread(self._plans.get, terms.plan_sha256)))
        model, store = self._models[terms.model], self._files.inside(work.harvest_id)
        layout = Layout(tuple(terms.layers), terms.width, provenance_of(work.harvest_id, model))
        noted = dict(work.shards)
        await asyncio.to_thread(sweep, store, map(_shard, noted.values()))
        run.pipeline = self._pipeline(run, model, plan, layout, store, noted)
        await run.pipeline.run(set(noted))
        shards = [_shard(noted[number]) for number in sorted(noted)]
        return await asyncio.to_thread(pipeline.close, store, layout, shards, facts_of(work.harvest_id, terms, plan))

    def _pipeline(
        self,
        run: _Run,
        model: ServedModel,
        plan: StoredPlan,
        layout: Layout,
        store: Store,
        noted: dict[int, WrittenShard],
    ) -> Pipeline:
        work = run.work

        async def note(number: int, shard: WrittenShard) -> None:
            command = NoteShard(self._asks.number(), work.harvest_id, work.run, number, shard)
            told = await self._asks.ask(command, None)
            assert isinstance(told, HarvestNoted)
            if not told.counts:
                raise Superseded()
            noted[number] = shard

        return Pipeline(
            model.engine,
            model.tokenizer.token_texts,
            plan,
            layout,
            work.terms.positions,
            in_threads(store, layout),
            note,
            chunk_tokens=chunk_tokens(model.capture_bytes(len(layout.layers))),
        )


def _shard(written: WrittenShard) -> Shard:
    return Shard(written.file, written.rows, written.bytes, written.sha256)
