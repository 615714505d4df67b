"""`python -m acs.serve_apps.cluster`: end what the server of this data folder runs in the cluster that it joined.

Ray starts an actor again whose process ends, with the settings it was made with: all is ended through Ray. The
supervisor runs this whenever its driver has ended, and before it starts one, for what a killed server has left. It
holds the data folder's lock, so that no server of this folder lives meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

import ray
from ray import serve
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.serve._private.common import ReplicaID
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from acs.platform import ledger_actor, named_actor
from acs.platform.named_actor import NAMESPACE
from acs.platform.server import processes
from acs.platform.server.environment import for_workers
from acs.platform.server.faults import ServerFault
from acs.platform.server.progress import say
from acs.platform.settings import Settings
from acs.platform.views.contract import NAME as VIEWS

_CLAIM = "server"  # in the cluster's own store: who its one server is
_SERVE_LIMIT_S = 60.0  # for Serve to end; its own patience is as long


def join(settings: Settings) -> None:
    """Connect to the cluster as its one server. Raises ServerFault when it has another one, or a Serve of others."""
    _connect(settings, {"env_vars": for_workers(os.environ)})
    if _serve_runs():
        raise ServerFault(
            f"Ray Serve runs in the cluster at {settings.ray_address} ({_listed(serve.status().applications)}), and "
            "this server needs one with its own settings; end it with `serve shutdown`, or join another cluster."
        )
    if (owner := _claim(settings)) != _name(settings):
        raise ServerFault(_taken(settings, owner))


def leave(settings: Settings) -> None:
    """Raises ServerFault when something of it does not end; what is left is ended by the next call."""
    _connect(settings, None)
    owner = _owner()
    if owner is None:
        return
    if owner != _name(settings):
        raise ServerFault(_taken(settings, owner))
    _end_serve(settings.stop_grace_s)
    for name in (VIEWS, ledger_actor.NAME):  # the ledger last: requests that still run settle there
        with contextlib.suppress(ValueError):
            ray.kill(named_actor.find(name), no_restart=True)
    _internal_kv_del(_CLAIM, namespace=NAMESPACE)


def _connect(settings: Settings, runtime_env: dict[str, dict[str, str]] | None) -> None:
    ray.init(address=settings.ray_address, namespace=NAMESPACE, log_to_driver=False, runtime_env=runtime_env)


def _end_serve(grace_s: float) -> None:
    """Unless others have put applications of theirs on it, which need its controller and proxies.

    Serve's own shutdown gives every replica 30 s, two times over, whether anything runs there or not.
    """
    applications = set(serve.status().applications)
    ours = {name for name in applications if name in ("api", "jobs") or name.startswith("model-")}
    if others := applications - ours:
        for name in ours:
            serve.delete(name)
        say(f"Ray Serve stays in the cluster, with applications of others ({_listed(others)})")
        return
    began = time.monotonic()
    with contextlib.suppress(ValueError, ray.exceptions.RayActorError):  # it does not run, or ends already
        ray.get(_serve().graceful_shutdown.remote(False))
    while _serve_runs():
        waited = time.monotonic() - began
        if waited > _SERVE_LIMIT_S:
            raise ServerFault(f"Ray Serve does not end within {_SERVE_LIMIT_S:.0f} s.")
        if waited > grace_s:
            _kill_replicas()
        time.sleep(0.1)


def _kill_replicas() -> None:
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == SERVE_NAMESPACE and ReplicaID.is_full_id_str(actor["name"]):
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                ray.kill(ray.get_actor(actor["name"], namespace=SERVE_NAMESPACE), no_restart=True)


def _serve() -> Any:
    """Its controller. Raises ValueError when it does not run."""
    return ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)


def _serve_runs() -> bool:
    try:
        _serve()
    except ValueError:
        return False
    return True


def _claim(settings: Settings) -> str | None:
    """Whose the cluster is now: the first to ask is the one."""
    _internal_kv_put(_CLAIM, _name(settings), overwrite=False, namespace=NAMESPACE)
    return _owner()


def _owner() -> str | None:
    found = _internal_kv_get(_CLAIM, namespace=NAMESPACE)
    return None if found is None else found.decode()


def _name(settings: Settings) -> str:
    """The data folder's, whose lock is this machine's."""
    return f"{settings.data} on {socket.gethostname()}"


def _taken(settings: Settings, owner: str | None) -> str:
    return (
        f"The server of {owner} has joined the cluster at {settings.ray_address}, which takes one; stop it (if it was "
        "killed, start it again and stop it), or join another cluster."
    )


def _listed(applications: Iterable[str]) -> str:
    return ", ".join(applications) or "no applications"


def main() -> int:
    """The last line on stderr is the sentence for the operator."""
    processes.die_with_parent()
    settings = Settings.from_environ()
    try:
        leave(settings)
    except Exception as error:
        traceback.print_exc()
        what = " ".join(f"{type(error).__name__}: {error}".split())
        sentence = str(error) if isinstance(error, ServerFault) else f"Leaving {settings.ray_address} failed ({what})."
        print(sentence, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
