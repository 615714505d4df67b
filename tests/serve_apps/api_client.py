"""The real application over an Engine that is a fake: all of HTTP, with no Ray, no model and no socket."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from local_ledger import LocalLedger, local_ledger

from acs.platform.catalogue import Catalogue
from acs.platform.clock import FakeClock
from acs.platform.completions.breaker import Breaker
from acs.platform.completions.served import ServedModel
from acs.platform.key_book import KeyBook
from acs.platform.ledger.contract import KeyChanges, Standing
from acs.platform.limits import Limits
from acs.platform.settings import SHIPPED_CATALOGUES, Settings
from acs.platform.tokenizer import ModelTokenizer
from acs.platform.wiring import Services, harvest_files_of, links_of
from acs.serve_apps.api.app import create_app
from acs.serve_apps.inference.fake_engine import FakeEngine
from acs.serve_apps.proxy.middleware import RequestId
from acs.storage.blobs import Blobs
from acs.storage.event_store import EventStore
from acs.storage.views.database import ViewsDatabase
from acs.storage.views.usage import usage_of

KEY_LEASE_S = 3.0


@dataclass
class Api:
    app: Any  # the ASGI application behind the proxy middleware
    http: httpx.AsyncClient  # sends a good key unless told otherwise
    engine: FakeEngine
    services: Services
    key_clock: FakeClock  # by which the copy of the keys grows old
    secrets: dict[Standing, str]  # a key of each standing
    ledger: LocalLedger

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json=good(**fields))

    async def complete_with(self, secret: str, **fields: Any) -> httpx.Response:
        """With another key, which the copy of the keys learns of first."""
        version, standings = self.ledger.memory.table.everything()
        self.services.keys.apply(KeyChanges("one", version, whole=True, keys=standings), sent_at=self.key_clock.now())
        headers = {"Authorization": f"Bearer {secret}"}
        return await self.http.post("/v1/completions", json=good(**fields), headers=headers)

    @property
    def running(self) -> int:
        """Choices that the engine counts as unfinished."""
        return self.engine.status().running


class LocalViews:
    """The real views, in memory."""

    def __init__(self, store: EventStore) -> None:
        self._views = ViewsDatabase(store)

    async def usage(self, account_id: str, month: str) -> Any:
        while self._views.catch_up():
            pass
        return usage_of(self._views, account_id, month)


def good(**fields: Any) -> dict[str, Any]:
    """A sound Completion request, with these fields changed."""
    return {"model": "toy", "prompt": "The sky is", "max_tokens": 2, **fields}


def events_of(response: httpx.Response) -> list[str]:
    """The data of each Server-Sent Event; nothing but events may be there."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


@cache
def tokenizer_of(checkpoint: Path) -> ModelTokenizer:
    return ModelTokenizer(checkpoint)


@asynccontextmanager
async def running_api(
    checkpoint: Path,
    *,
    slots: int = 1000,
    max_model_len: int | None = None,
    activations: bool = True,
    clock: Callable[[], float] = time.monotonic,
    views: Any = None,
    place: str | None = None,
    **limits: Any,
) -> AsyncIterator[Api]:
    """`checkpoint`: the prepared toy. `clock`: the breaker's. `views`: with an async `usage`. `place`: an
    address, where Harvests' files go. `limits`: fields of Limits to change.
    """
    shipped = Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"]
    entry = dataclasses.replace(shipped, engine_class="fake", activations=activations)
    if max_model_len is not None:
        entry = dataclasses.replace(entry, engine={**entry.engine, "max_model_len": max_model_len})
    tokenizer = tokenizer_of(checkpoint)
    engine = FakeEngine(tokenizer)
    chosen = Limits(**limits)
    breaker = Breaker(chosen.breaker_failures, chosen.breaker_open_s, clock)
    key_clock = FakeClock()
    keys = KeyBook(KEY_LEASE_S, key_clock)
    with (
        tempfile.TemporaryDirectory() as folder,
        local_ledger(Path(folder), limits=chosen, slots={"toy": slots}) as ledger,
    ):
        secrets = keys_of_each_standing(ledger)
        version, standings = ledger.memory.table.everything()
        keys.apply(KeyChanges("one", version, whole=True, keys=standings), sent_at=key_clock.now())
        models = {"toy": ServedModel(entry, tokenizer, engine, breaker)}
        places = {"ACS_DATA": folder, "ACS_PUBLIC_URL": "http://api", **({"ACS_HARVESTS": place} if place else {})}
        settings = Settings.from_environ(places)
        files = harvest_files_of(settings)
        services = Services(
            chosen,
            keys,
            models,
            ledger.client(),
            Blobs(Path(folder) / "answers", 1e6),
            ledger.job_blobs,
            ledger.loom_blobs,
            ledger.harvest_plans,
            files,
            links_of(settings, files),
            views or LocalViews(ledger.memory.store),
        )
        app = RequestId(create_app(services))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {secrets[Standing.ACCEPTED]}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as client:
            yield Api(app, client, engine, services, key_clock, secrets, ledger)


def keys_of_each_standing(ledger: LocalLedger) -> dict[Standing, str]:
    accounts = ledger.accounts
    good, bad = ledger.account(), ledger.account("Eve")
    made = {standing: ledger.key(bad if standing is Standing.SUSPENDED else good, standing) for standing in Standing}
    accounts.disable_key(made[Standing.DISABLED][0])
    accounts.revoke_key(made[Standing.REVOKED][0])
    accounts.suspend_account(bad)
    return {standing: secret for standing, (_, secret) in made.items()}


class Client:
    """One connection to the raw ASGI application. `hang_up` closes it; what came until then is in `messages`.

    `whole`: False for one whose body never ends. `reads`: False for one that takes nothing of an answer's body.
    `key`: an Idempotency-Key.
    """

    def __init__(
        self, api: Api, *, whole: bool = True, reads: bool = True, key: str | None = None, **fields: Any
    ) -> None:
        body = json.dumps(good(**fields)).encode()
        self._parts = [{"type": "http.request", "body": body, "more_body": not whole}]
        self._reads = reads
        self._gone = asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        headers = [(b"authorization", api.http.headers["authorization"].encode())]
        if key is not None:
            headers.append((b"idempotency-key", key.encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("api", 80),
        }
        self.task = asyncio.create_task(api.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not self._reads:
            await self._gone.wait()
        self.messages.append(message)

    def hang_up(self) -> None:
        self._gone.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def events(self) -> list[str]:
        """The data of the events so far, comments left out."""
        lines = self.body.decode().split("\n\n")
        return [line.removeprefix("data: ") for line in lines if line and not line.startswith(":")]


async def until(fact: Callable[[], bool]) -> None:
    """Waits for a fact, 10 s at most."""
    async with asyncio.timeout(10):
        while not fact():  # noqa: ASYNC110 - the application makes it true
            await asyncio.sleep(0.001)
