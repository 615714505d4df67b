"""The HTTP ingress on Ray Serve: one deployment, any number of replicas, each with its own copy of the keys and its own
connections to the model replicas. No torch and no vLLM in this process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from acs.platform.catalogue import Catalogue, Model
from acs.platform.completions.breaker import Breaker
from acs.platform.completions.served import ServedModel
from acs.platform.inference.contract import EngineStatus
from acs.platform.inference.remote import Address, RemoteEngine
from acs.platform.key_book import KeyBook
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger_actor import find_ledger
from acs.platform.settings import Settings
from acs.platform.tokenizer import ModelTokenizer
from acs.platform.wiring import Services, answers_of
from acs.serve_apps.api.app import create_app

log = logging.getLogger("ray.serve")
BROADCAST_TIMEOUT_S = 5.0


class Ingress:
    """Serve builds it, then asks it for the ASGI app (`__serve_build_asgi_app__`)."""

    async def __init__(self, settings: Settings, catalogue: Catalogue, secret: str) -> None:  # type: ignore[misc]
        keys = KeyBook(settings.limits.key_lease_s)
        engines = {model.id: _remote_engine(model, secret) for model in catalogue.values()}
        models = {
            model.id: ServedModel(
                model,
                await asyncio.to_thread(ModelTokenizer, model.checkpoint(settings.models_dir)),
                engines[model.id],
                Breaker(settings.limits.breaker_failures, settings.limits.breaker_open_s),
            )
            for model in catalogue.values()
        }
        for model in models.values():
            # Not on the first request.
            await asyncio.to_thread(lambda tokenizer: tokenizer.token_texts, model.tokenizer)
        ledger_actor = find_ledger()
        ledger = LedgerClient(ledger_actor.endpoint.remote)
        self._following = [
            asyncio.create_task(keys.follow(ledger_actor)),
            asyncio.create_task(ledger.follow()),
        ]
        for engine in engines.values():
            await engine.refresh()
            self._following.append(asyncio.create_task(engine.follow()))
        await keys.filled()
        self._services = Services(settings.limits, keys, models, ledger, answers_of(settings))

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._services)

    async def check_health(self) -> None:
        """A follower that has ended means that this replica knows nothing new: Serve replaces it."""
        for task in self._following:
            if task.done():
                raise RuntimeError(f"{task.get_coro()} has ended") from task.exception()


def _remote_engine(model: Model, secret: str) -> RemoteEngine:
    from ray import serve

    handle = serve.get_deployment_handle("model", app_name=f"model-{model.id}")

    async def directory() -> dict[Address, EngineStatus]:
        answers = await handle.broadcast("endpoint").results_async(
            timeout_s=BROADCAST_TIMEOUT_S, return_exceptions=True
        )
        found = {}
        for answer in answers:
            if isinstance(answer, BaseException):  # a replica that is dying: the others count
                continue
            host, port, status = answer
            found[(host, port)] = status
        return found

    async def wake() -> None:
        await handle.wake.remote()

    return RemoteEngine(directory, wake, secret, scales_to_zero=model.replicas.min == 0)
