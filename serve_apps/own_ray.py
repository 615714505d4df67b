"""Starts a Ray of this server's own, on one machine, without waiting for what a busy machine is slow to bring up."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import node, ray_constants, services

from acs.platform.named_actor import NAMESPACE
from acs.platform.server.environment import SCRATCH
from acs.platform.server.ports import RAY_AGENTS
from acs.platform.settings import Settings

_OBJECT_STORE_BYTES = 256 * 1024**2


@contextlib.contextmanager
def tried_again(settings: Settings) -> Iterator[None]:
    """What may fail on a busy machine: the supervisor starts us again when we end, or never do, inside the block."""
    settings.ray_starting_file.touch()
    yield
    settings.ray_starting_file.unlink()


def start(settings: Settings) -> None:
    """Inside `tried_again`."""
    _without_idlers()
    _with_given_ports([int(port) for port in os.environ[RAY_AGENTS].split()])
    ray.init(
        namespace=NAMESPACE,
        include_dashboard=False,
        # Ray's CPUs are shares to be counted, and every replica takes some: more than there are, so that none waits.
        num_cpus=(os.cpu_count() or 1) + 64,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        _temp_dir=os.environ[SCRATCH],
    )


def _without_idlers() -> None:
    """Processes of 60 to 120 MB that do nothing for us, and seconds of a processor to start. The dashboard's, which Ray
    still starts for usage statistics alone, asks the cloud providers' metadata services who we are even with those
    switched off. One looks for nodes to add to a cluster, one for logs to be printed by the driver.
    """
    services.start_api_server = lambda *_, **__: (None, None)
    node.Node.start_monitor = node.Node.start_log_monitor = lambda _: None


def _with_given_ports(ports: list[int]) -> None:
    """A raylet waits until its two agents, in Python, have told it their ports, and gives up after 15 s, which nothing
    changes: on a busy machine Ray did not start (ray-project/ray#65983). It waits for none that it was given. Neither
    `ray.init` nor the raylet's command line as Ray writes it have a place for all of them.
    """
    start_raylet, start_process = services.start_raylet, services.start_ray_process
    metrics_agent, metrics_export, dashboard_agent, runtime_env_agent = ports
    given = {
        "metrics_agent_port": metrics_agent,
        "metrics_export_port": metrics_export,
        "dashboard_agent_listen_port": dashboard_agent,
        "runtime_env_agent_port": runtime_env_agent,
    }

    def raylet(*args: Any, **kwargs: Any) -> Any:
        return start_raylet(*args, **(kwargs | given))

    def process(command: list[str], kind: str, **kwargs: Any) -> Any:
        if kind == ray_constants.PROCESS_TYPE_RAYLET:
            command = [*command, f"--dashboard_agent_listen_port={dashboard_agent}"]
        return start_process(command, kind, **kwargs)

    services.start_raylet, services.start_ray_process = raylet, process
