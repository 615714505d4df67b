"""The HTTP ingress on Ray Serve: one deployment, any number of replicas, each with its own copy of the keys and its own
connections to the model replicas. No torch and no vLLM in this process.
"""

from __future__ import annotations

import asyncio
from typing import Any

from acs.platform.catalogue import Catalogue
from acs.platform.completions.breaker import Breaker
from acs.platform.key_book import KeyBook
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger_actor import find_ledger
from acs.platform.settings import Settings
from acs.platform.wiring import (
    Services,
    answers_of,
    harvest_files_of,
    harvest_plans_of,
    job_blobs_of,
    links_of,
    loom_blobs_of,
)
from acs.serve_apps.api.app import create_app
from acs.serve_apps.proxy.middleware import serve_straight
from acs.serve_apps.served_models import check, following_replicas, served_models


class Ingress:
    """Serve builds it, then asks it for the ASGI app (`__serve_build_asgi_app__`)."""

    async def __init__(self, settings: Settings, catalogue: Catalogue, secret: str) -> None:  # type: ignore[misc]
        keys = KeyBook(settings.limits.key_lease_s)
        breakers = {id: Breaker(settings.limits.breaker_failures, settings.limits.breaker_open_s) for id in catalogue}
        models = await served_models(settings, catalogue, secret, breakers)
        ledger_actor = find_ledger()
        ledger = LedgerClient(ledger_actor.endpoint.remote)
        self._following = [
            asyncio.create_task(keys.follow(ledger_actor)),
            asyncio.create_task(ledger.follow()),
            *await following_replicas(models),
        ]
        await keys.filled()
        harvest_files = harvest_files_of(settings)
        self._services = Services(
            settings.limits,
            keys,
            models,
            ledger,
            answers_of(settings),
            job_blobs_of(settings),
            loom_blobs_of(settings),
            harvest_plans_of(settings),
            harvest_files,
            links_of(settings, harvest_files),
        )

    def __serve_build_asgi_app__(self) -> Any:
        application = create_app(self._services)
        serve_straight(application)
        return application

    async def check_health(self) -> None:
        check(self._following)
