"""Runs Jobs and Branches: the plan, run and answer of a client's own request, with the result kept instead of sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from acs.platform.completions.charge import ClientGone
from acs.platform.completions.plan import Plan, plan_completion
from acs.platform.completions.request import parse_completion
from acs.platform.completions.road import Run
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ApiError, InternalError
from acs.platform.jobs.held import HeldAlready
from acs.platform.jobs.stored import body_of, error_blob
from acs.platform.ledger.asks import Asks
from acs.platform.ledger.contract import Caller, Settle
from acs.platform.ledger.job_contract import Finish, Grown, RunJob, StopJob, Work
from acs.platform.limits import Limits
from acs.platform.wiring import WHOLE_VOCABULARY_AT_ONCE
from acs.serve_apps.api.gathered import Gathered, gather
from acs.serve_apps.api.json_body import parse_json
from acs.serve_apps.api.render.vocabulary import VocabularyJson
from acs.serve_apps.api.whole_answer import rendered
from acs.serve_apps.api.whole_vocabulary import rendered_parts
from acs.serve_apps.jobs.branches import keep_nodes
from acs.storage.blobs import Blob, Blobs, BlobUnavailable

log = logging.getLogger("ray.serve")
Result = Blob | list[Grown]  # of a Job, of a Branch
OFFER_S = 0.5  # how often it looks which models can be had


@dataclass(slots=True)
class _Running:
    work: RunJob
    task: asyncio.Task[None] | None = None
    road: Run | None = None  # once it is on it
    stopped: bool = False


class Runner:
    def __init__(
        self, models: Mapping[str, ServedModel], asks: Asks, jobs: Blobs, looms: Blobs, limits: Limits
    ) -> None:
        """`asks`: on the runner's own link."""
        self._models = models
        self._asks = asks
        self._jobs = jobs
        self._looms = looms
        self._limits = limits
        self._running: dict[tuple[str, int], _Running] = {}  # until the ledger has noted how they ended
        self._whole_vocabulary = asyncio.Semaphore(WHOLE_VOCABULARY_AT_ONCE)
        self._tables: dict[str, VocabularyJson] = {}
        self._offered: list[str] | None = None

    def do(self, work: Work) -> None:
        """What the ledger says; it may say it twice."""
        known = self._running.get((work.job_id, work.run))
        if isinstance(work, RunJob) and known is None:
            running = self._running[work.job_id, work.run] = _Running(work)
            running.task = asyncio.create_task(self._run(running))
        elif isinstance(work, StopJob) and known is not None:
            known.stopped = True
            if known.road is not None:
                known.road.interrupt(ClientGone())

    async def offer(self) -> None:
        """For ever: tells the ledger which models can be had, so that no Job is started in vain."""
        while True:
            self.offer_now()
            await asyncio.sleep(OFFER_S)

    def offer_now(self) -> None:
        models = [name for name, model in self._models.items() if model.engine.status().status != "down"]
        if models != self._offered:
            self._offered = models
            self._asks.offer(models)

    async def _run(self, running: _Running) -> None:
        await self._asks.ask(await self._outcome(running), None)
        del self._running[running.work.job_id, running.work.run]

    async def _outcome(self, running: _Running) -> Finish:
        work, held = running.work, HeldAlready(running.work.max_tokens)
        try:
            result = await self._result(running, held)
        except ClientGone:
            used = await held.resolution if running.road is not None else None
            return self._finish(work, used if isinstance(used, Settle) else None, http_status=None)
        except ApiError as error:
            return await self._failed(work, error)
        except Exception:
            log.exception("A Job failed by our own fault.")
            return await self._failed(work, InternalError())
        used = await held.resolution
        assert isinstance(used, Settle), "what was answered is charged"
        return self._finish(work, used, http_status=200, result=result)

    async def _result(self, running: _Running, held: HeldAlready) -> Result:
        """Raises the contract's errors, ClientGone when it was stopped, and BlobUnavailable."""
        work = running.work
        plan = await self._plan(work)
        caller = Caller(work.account_id, work.key_id, "")
        if running.stopped:
            raise ClientGone()
        running.road = run = Run(caller, plan, held, self._limits, work.request_id)

        async def keep(gathered: Gathered) -> Result:
            if work.node_ids:
                return await asyncio.to_thread(keep_nodes, work, gathered, self._looms)
            if not plan.whole_vocabulary:
                return await asyncio.to_thread(self._jobs.put, await rendered(run, gathered))
            parts = rendered_parts(gathered, int(time.time()), self._tables)
            return await asyncio.to_thread(self._jobs.put_parts, parts)

        if not plan.whole_vocabulary:
            return await gather(run, keep)
        async with self._whole_vocabulary:
            return await gather(run, keep)

    async def _plan(self, work: RunJob) -> Plan:
        """What was planned when the Job was submitted, as long as its model is the same."""
        body = body_of(await asyncio.to_thread(self._blobs(work).get, work.request_sha256))
        plan = await plan_completion(parse_completion(parse_json(body), self._limits), self._models, self._limits)
        if plan.prompt_tokens != work.prompt_tokens:
            raise InternalError("The model's tokenizer has changed since the Job was submitted.")
        return plan

    def _blobs(self, work: RunJob) -> Blobs:
        """Where its request is, and its result is to be."""
        return self._looms if work.node_ids else self._jobs

    async def _failed(self, work: RunJob, error: ApiError) -> Finish:
        self.offer_now()  # before the failure is told: the model may be gone
        try:
            result = await asyncio.to_thread(self._blobs(work).put, error_blob(work.job_id, work.run, error))
        except BlobUnavailable:
            log.exception("A Job's error cannot be kept.")
            result = Blob("", 0)
        retryable = getattr(error, "retryable", False)
        return self._finish(work, None, http_status=error.status, code=error.code, retryable=retryable, result=result)

    def _finish(
        self,
        work: RunJob,
        used: Settle | None,
        *,
        http_status: int | None,
        code: str | None = None,
        retryable: bool = False,
        result: Result | None = None,
    ) -> Finish:
        blob, grown = (None, result) if isinstance(result, list) else (result, [])
        return Finish(
            self._asks.number(),
            work.job_id,
            work.run,
            used.prompt_tokens if used else 0,
            used.completion_tokens if used else 0,
            http_status,
            code,
            retryable,
            blob.sha256 if blob else "",
            blob.size if blob else 0,
            grown,
        )
