"""The one place where an ingress's parts are put together."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from acs.events.idempotency import REMEMBERED
from acs.platform.completions.served import ServedModel
from acs.platform.harvests.links import BucketLinks, Links, links_key
from acs.platform.key_book import KeyBook
from acs.platform.ledger.client import LedgerClient
from acs.platform.limits import Limits
from acs.platform.settings import Settings
from acs.platform.views.contract import Views
from acs.platform.views.remote import RemoteViews
from acs.storage.blobs import Blobs
from acs.storage.shards.presigned import Presigner
from acs.storage.shards.store import Store

# Two answers of 256 whole-vocabulary rows are 100 MB of arrays on their way; more wait their turn.
WHOLE_VOCABULARY_AT_ONCE = 2


HARVEST_PLANS_KEPT_S = 90 * 86_400.0

# An answer is given again for a day; it stays a little longer, so that none is erased while it is being read.
ANSWERS_KEPT_S = REMEMBERED.total_seconds() + 3600


def answers_of(settings: Settings) -> Blobs:
    return Blobs(settings.answers_dir, ANSWERS_KEPT_S)


def job_blobs_of(settings: Settings) -> Blobs:
    """Requests and results of Jobs. The ledger erases each in its time; what outlives that belongs to nothing."""
    return Blobs(settings.jobs_dir, 2 * settings.limits.job_kept_s)


def loom_blobs_of(settings: Settings) -> Blobs:
    """Titles, Nodes and Branches. They stay until they are deleted."""
    return Blobs(settings.looms_dir, math.inf)


def harvest_plans_of(settings: Settings) -> Blobs:
    """What Harvests read. The ledger erases each when its Harvest has ended; what outlives that belongs to nothing."""
    return Blobs(settings.harvest_plans_dir, HARVEST_PLANS_KEPT_S)


def harvest_files_of(settings: Settings) -> Store:
    """Raises ValueError for an address that means nothing. Opens nothing."""
    return Store.at(settings.harvests_place)


def links_of(settings: Settings, files: Store) -> Links | BucketLinks:
    """`files`: of all Harvests. Raises OSError, and ValueError when the keys of a bucket are missing."""
    if files.region is not None:
        return BucketLinks(Presigner.of(settings.harvests_place, files.region, os.environ), files)
    return Links(links_key(settings.links_key), settings.public_url)


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes use. Tests build one with a FakeEngine; `acs.serve_apps.api.ingress` builds the real one."""

    limits: Limits
    keys: KeyBook
    models: Mapping[str, ServedModel]
    ledger: LedgerClient
    answers: Blobs  # kept for those who send a request again
    jobs: Blobs  # requests and results
    looms: Blobs  # titles, Nodes and Branches
    harvest_plans: Blobs
    harvest_files: Store  # a place for each Harvest in it
    links: Links | BucketLinks  # to them
    views: Views = field(default_factory=RemoteViews)
    whole_vocabulary: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WHOLE_VOCABULARY_AT_ONCE))
