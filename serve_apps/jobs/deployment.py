"""The runner of Jobs and Harvests on Ray Serve: one replica, with a link to the ledger and connections to the model
replicas like an ingress's, and no HTTP.
"""

from __future__ import annotations

import asyncio
import sys

from acs.platform.catalogue import Catalogue
from acs.platform.completions.breaker import Breaker
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger.contract import RUNNER
from acs.platform.ledger.harvest_contract import HarvestWork
from acs.platform.ledger.job_contract import Work
from acs.platform.ledger_actor import find_ledger
from acs.platform.settings import Settings
from acs.platform.wiring import harvest_files_of, harvest_plans_of, job_blobs_of, loom_blobs_of
from acs.serve_apps.jobs.harvest_runner import HarvestRunner
from acs.serve_apps.jobs.runner import Runner
from acs.serve_apps.served_models import check, following_replicas, served_models


class JobRunner:
    """Serve builds it and replaces it. While a new one takes the place of an old one there may be two: the ledger heeds
    the one that came last.
    """

    async def __init__(self, settings: Settings, catalogue: Catalogue, secret: str) -> None:  # type: ignore[misc]
        # A breaker spares clients the wait for a model that fails; a Job has nobody waiting, and pauses of its own.
        never_open = {id: Breaker(failures=sys.maxsize, open_s=0) for id in catalogue}
        models = await served_models(settings, catalogue, secret, never_open)

        def do(work: Work | HarvestWork) -> None:
            if isinstance(work, HarvestWork):
                harvests.do(work)
            else:
                runner.do(work)

        ledger = LedgerClient(find_ledger().endpoint.remote, RUNNER, do)
        runner = Runner(models, ledger.asks, job_blobs_of(settings), loom_blobs_of(settings), settings.limits)
        harvests = HarvestRunner(models, ledger.asks, harvest_plans_of(settings), harvest_files_of(settings))
        self._following = [
            *await following_replicas(models),
            asyncio.create_task(ledger.follow()),
            asyncio.create_task(runner.offer()),
            asyncio.create_task(harvests.follow()),
        ]

    async def check_health(self) -> None:
        check(self._following)
