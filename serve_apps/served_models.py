"""The models of the catalogue as a process in front of them has them, each with its connections to the replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from acs.platform.catalogue import Catalogue, Model
from acs.platform.completions.breaker import Breaker
from acs.platform.completions.served import ServedModel
from acs.platform.inference.contract import EngineStatus
from acs.platform.inference.remote import Address, RemoteEngine
from acs.platform.settings import Settings
from acs.platform.tokenizer import ModelTokenizer

BROADCAST_TIMEOUT_S = 5.0


async def served_models(
    settings: Settings, catalogue: Catalogue, secret: str, breakers: Mapping[str, Breaker]
) -> dict[str, ServedModel]:
    """`secret`: the replicas' own, of this start."""
    models = {}
    for model in catalogue.values():
        tokenizer = await asyncio.to_thread(ModelTokenizer, model.checkpoint(settings.models_dir))
        await asyncio.to_thread(lambda tokenizer: tokenizer.token_texts, tokenizer)  # not on the first request
        models[model.id] = ServedModel(model, tokenizer, _remote_engine(model, secret), breakers[model.id])
    return models


async def following_replicas(models: Mapping[str, ServedModel]) -> list[asyncio.Task[None]]:
    """Tasks that keep the connections; the first are made."""
    following = []
    for model in models.values():
        assert isinstance(model.engine, RemoteEngine)
        await model.engine.refresh()
        following.append(asyncio.create_task(model.engine.follow()))
    return following


def check(following: Iterable[asyncio.Task[Any]]) -> None:
    """A follower that has ended means that this process knows nothing new: Serve replaces it when this raises."""
    for task in following:
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
