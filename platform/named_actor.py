"""A process of which the server has one: a named Ray actor beside its disk, started again whenever it dies."""

from __future__ import annotations

from typing import Any

NAMESPACE = "acs"


def start(name: str, kind: type[Any], *arguments: Any, concurrent_calls: int) -> Any:
    """The handle of the actor `name`; built from `kind` on this node if it does not run yet. Ray must run.

    Calls in flight when it dies are made again, so that each may be delivered twice.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": concurrent_calls,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),  # its disk is here
    }
    return ray.remote(kind).options(**options).remote(*arguments)


def find(name: str) -> Any:
    """Its handle. Raises ValueError when it does not run."""
    import ray

    return ray.get_actor(name, namespace=NAMESPACE)
