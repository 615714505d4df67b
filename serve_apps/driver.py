"""`python -m acs.serve_apps.driver`: prepare the models, start Ray, the ledger, Serve and the engines, stand by.

Runs as the supervisor's child with the environment of `acs.platform.server.environment`. It never stops what it
started: that is the supervisor's work.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import ray
from ray import serve
from ray.serve._private import api, client

from acs.platform.catalogue import Catalogue, CatalogueError
from acs.platform.ledger_actor import start_ledger
from acs.platform.models import ModelError, prepare
from acs.platform.server import child, memory, preflight, processes
from acs.platform.server.faults import ServerFault
from acs.platform.server.progress import say
from acs.platform.settings import Settings
from acs.platform.views_actor import start_views
from acs.serve_apps import build, cluster, own_ray

_PROXY_LIMIT_S = 180.0  # for Serve's proxies to start, and then to know the ingresses: Serve gives them 60 s each
_READY_LIMIT_S = 120.0  # from all applications running to an answer through the proxy


def main(settings: Settings) -> None:
    catalogue = _prepared_catalogue(settings)
    if settings.ray_address is None:
        total, available = preflight.memory_bytes()
        preflight.memory_suffices(memory.needed_bytes(catalogue, settings.models_dir, total), available)
    say("starting Ray" if settings.ray_address is None else f"joining Ray at {settings.ray_address}")
    _start_ray(settings)
    vital = [] if settings.ray_address else [p for p in processes.descendants(os.getpid()) if p.parent == os.getpid()]
    say("starting the ledger and the views")
    ledger = start_ledger(settings, catalogue)
    start_views(settings)
    say("starting the proxy")
    _start_serve(settings)
    targets = build.targets(settings, catalogue)
    with _progress_of_applications():
        _deploy(*targets)
    _wait_until_answering(settings)
    ray.get(ledger.ensure_local_key.remote(settings.base_url))
    _say_ready(settings, catalogue)
    _stand_by(vital)


def _prepared_catalogue(settings: Settings) -> Catalogue:
    try:
        catalogue = Catalogue.load(settings.catalogue)
        for model in catalogue.values():
            say(f"preparing model {model.id}")
            prepare(model, settings.models_dir, lambda line: say(f"  {line}"))
    except (CatalogueError, ModelError) as error:
        raise ServerFault(str(error)) from None
    return catalogue


def _start_ray(settings: Settings) -> None:
    if settings.ray_address is None:
        with own_ray.tried_again(settings):
            own_ray.start(settings)
        return
    cluster.join(settings)


def _start_serve(settings: Settings) -> None:
    """The proxy listens on ACS_HOST by its own rewriting (`acs.serve_apps.proxy`); this host is where each ingress
    listens for its proxy: on one machine, nobody else.
    """
    alone = settings.ray_address is None
    api.HTTP_PROXY_TIMEOUT = client.HTTP_PROXY_TIMEOUT = _PROXY_LIMIT_S
    with own_ray.tried_again(settings) if alone else contextlib.nullcontext():
        serve.start(
            proxy_location="HeadOnly" if alone else "EveryNode",
            http_options=serve.HTTPOptions(host="127.0.0.1" if alone else "0.0.0.0", port=settings.port),
        )


def _deploy(models: list[Any], front: list[Any]) -> None:
    """What a replica says of its own self-test is the sentence for the operator, not Serve's account of the failure."""
    try:
        build.deploy(models, front)
    except RuntimeError as error:
        for name, application in serve.status().applications.items():
            said = [deployment.message for deployment in application.deployments.values()]
            found = re.search(r"SelfTestFailed: (.+)", "\n".join([application.message, *said]))
            if found:
                raise ServerFault(f"{name.replace('model-', 'model ', 1)}: {found[1]}") from error
        raise


@contextlib.contextmanager
def _progress_of_applications() -> Iterator[None]:
    """Say each change of an application's state while the block runs."""
    over = threading.Event()

    def watch() -> None:
        said: dict[str, str] = {}
        while not over.wait(1.0):
            for name, application in serve.status().applications.items():
                state = application.status.value.lower().replace("_", " ")
                if said.get(name) != state:
                    said[name] = state
                    say(f"{name.replace('model-', 'model ', 1)}: {state}")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _wait_until_answering(settings: Settings) -> None:
    for name, application in serve.status().applications.items():
        if application.status.value != "RUNNING":
            raise ServerFault(f"{name} did not start: {application.message or application.status.value}")
    deadline = time.monotonic() + _READY_LIMIT_S
    while time.monotonic() < deadline:
        if _answers(settings.base_url.removesuffix("/v1") + "/health"):
            return
        time.sleep(0.05)
    raise ServerFault(f"No answer from /health through the proxy within {_READY_LIMIT_S:.0f} s.")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):  # not yet: the caller asks again, with a limit
        return False


def _say_ready(settings: Settings, catalogue: Catalogue) -> None:
    model = next(iter(catalogue))
    say(f"ready at {settings.base_url}")
    body = f'{{"model": "{model}", "prompt": "Once upon a time", "max_tokens": 16}}'
    print(
        f"\n  source {settings.env_file}\n"
        f'  curl $ACS_API_BASE/completions -H "Authorization: Bearer $ACS_API_KEY" \\\n'
        f"    -H 'Content-Type: application/json' -d '{body}'\n",
        flush=True,
    )


def _stand_by(vital: list[processes.Process]) -> None:
    """Until a process without which nothing goes on has died. Serve and Ray restart all the others themselves."""
    while all(processes.alive(process) for process in vital):
        time.sleep(1.0)
    gone = [p.command.split()[0].rpartition("/")[2] for p in vital if not processes.alive(p)]
    raise ServerFault(f"A process that the server needs has died ({', '.join(gone)}); the logs are in run/logs.")


if __name__ == "__main__":
    child.run(main, doing="Starting the server")
