"""The real application over an Engine that is a fake: all of HTTP, with no Ray, no model and no socket."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from acs.events.api_key import digest_of, new_secret
from acs.platform.catalogue import Catalogue
from acs.platform.completions.breaker import Breaker
from acs.platform.completions.served import ServedModel
from acs.platform.key_book import Caller, KeyBook
from acs.platform.ledger.contract import KeyChanges, KeyStanding, Standing
from acs.platform.limits import Limits
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.platform.tokenizer import ModelTokenizer
from acs.platform.wiring import Services
from acs.serve_apps.api.app import create_app
from acs.serve_apps.inference.fake_engine import FakeEngine
from acs.serve_apps.proxy.middleware import RequestId


@dataclass
class Api:
    app: Any  # the ASGI application behind the proxy middleware
    http: httpx.AsyncClient  # sends a good key unless told otherwise
    engine: FakeEngine
    services: Services
    secrets: dict[Standing, str]  # a key of each standing

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": "toy", "prompt": "The sky is", "max_tokens": 2, **fields})


@asynccontextmanager
async def running_api(checkpoint: Path, **limits: Any) -> AsyncIterator[Api]:
    """`checkpoint`: the prepared toy. `limits`: fields of Limits to change."""
    entry = dataclasses.replace(Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"], engine_class="fake")
    tokenizer = ModelTokenizer(checkpoint)
    engine = FakeEngine(tokenizer)
    chosen = Limits(**limits)
    breaker = Breaker(chosen.breaker_failures, chosen.breaker_open_s)
    keys = KeyBook(lease_s=3600)
    secrets = {standing: new_secret() for standing in Standing}
    standings = (
        KeyStanding(digest_of(secret), Caller("acct_1", f"key_{standing}", standing.value), standing)
        for standing, secret in secrets.items()
    )
    keys.apply(KeyChanges("one", 1, whole=True, keys=tuple(standings)), sent_at=keys._clock.now())
    services = Services(chosen, keys, {"toy": ServedModel(entry, tokenizer, engine, breaker)})
    app = RequestId(create_app(services))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {secrets[Standing.ACCEPTED]}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as client:
        yield Api(app, client, engine, services, secrets)
