"""A runner of Jobs and Harvests on the loop of the test, linked to a local ledger: no Ray, no socket."""

from __future__ import annotations

from collections.abc import Mapping

from local_ledger import LocalLedger

from acs.platform.completions.served import ServedModel
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger.harvest_contract import HarvestWork
from acs.platform.ledger.job_contract import Work
from acs.platform.limits import Limits
from acs.serve_apps.jobs.harvest_runner import HarvestRunner
from acs.serve_apps.jobs.runner import Runner
from acs.storage.shards.store import Store


class LocalRunner:
    """Takes the place of any other, as one that was started again does."""

    def __init__(self, ledger: LocalLedger, models: Mapping[str, ServedModel], limits: Limits, files: Store) -> None:
        self._ledger = ledger
        self.client: LedgerClient = ledger.runner_client(self._do)
        self.runner = Runner(models, self.client.asks, ledger.job_blobs, ledger.loom_blobs, limits)
        self.harvests = HarvestRunner(models, self.client.asks, ledger.harvest_plans, files)
        self.runner.offer_now()

    def _do(self, work: Work | HarvestWork) -> None:
        if isinstance(work, HarvestWork):
            self.harvests.do(work)
        else:
            self.runner.do(work)

    def lose_link(self) -> None:
        """What it does from now on nobody hears of, as of one that was killed."""
        self.client.asks.detach()
        self._ledger.job_desk.runner_left(self.client.owner)
        self._ledger.harvest_desk.runner_left(self.client.owner)

    def find_link(self) -> None:
        """As after a short cut of the line."""
        self._ledger.link_runner(self.client)
