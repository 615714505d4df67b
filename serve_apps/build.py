"""Everything that Ray Serve runs: one application a model, then the API and the runner of Jobs in front of them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from acs.platform.catalogue import Catalogue, Model
from acs.platform.server.environment import TENSORS
from acs.platform.settings import Settings

HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 10.0
STOP_S = 40.0  # for a replica to drain: a little above the replica's own 30 s


def targets(settings: Settings, catalogue: Catalogue) -> tuple[list[Any], list[Any]]:
    """What `deploy` takes. Nobody may ask for `serve.status()` meanwhile: Ray pickles both by one list a process."""
    from ray import serve

    secret = secrets.token_hex(32)  # of this start: the replicas' ports take nobody who does not show it
    models = [
        serve.RunTarget(_model_application(model, settings, secret), name=f"model-{model.id}", route_prefix=None)
        for model in catalogue.values()
    ]
    api = serve.RunTarget(_api_application(settings, catalogue, secret), name="api", route_prefix="/")
    jobs = serve.RunTarget(_jobs_application(settings, catalogue, secret), name="jobs", route_prefix=None)
    return models, [api, jobs]


def deploy(models: list[Any], front: list[Any]) -> None:
    """Returns when every application runs. Raises RuntimeError when one fails to."""
    from ray import serve

    serve.run_many(models, wait_for_applications_running=True)
    serve.run_many(front, wait_for_applications_running=True)


def _model_application(model: Model, settings: Settings, secret: str) -> Any:
    from ray import serve

    from acs.serve_apps.inference.replica import ModelReplica

    resources = model.resources
    deployment = serve.deployment(ModelReplica).options(
        name="model",
        ray_actor_options={"num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus},
        max_ongoing_requests=1000,  # calls through the handle are Serve's and ours, never a client's
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=STOP_S,
        **_scaling(model),
    )
    return deployment.bind(model, str(model.checkpoint(settings.models_dir)), secret, Path(os.environ[TENSORS]))


def _scaling(model: Model) -> dict[str, Any]:
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    replicas = model.replicas
    if replicas.min == replicas.max:
        return {"num_replicas": replicas.max}
    policy = AutoscalingPolicy(policy_function="acs.serve_apps.inference.scaling:by_running_requests")
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=replicas.min,
            max_replicas=replicas.max,
            target_ongoing_requests=replicas.target_ongoing,
            upscale_delay_s=2,
            downscale_delay_s=300,  # loading a model costs minutes on big ones: keep what was started for a while
            metrics_interval_s=1,
            look_back_period_s=5,
            policy=policy,
        )
    }


def _api_application(settings: Settings, catalogue: Catalogue, secret: str) -> Any:
    from ray import serve

    from acs.serve_apps.api.ingress import Ingress

    deployment = serve.deployment(serve.ingress()(Ingress)).options(
        name="ingress",
        num_replicas=settings.ingress_replicas,
        ray_actor_options={"num_cpus": 0.5},
        max_ongoing_requests=100_000,  # our own limits answer first, in our own words
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=STOP_S,
    )
    return deployment.bind(settings, catalogue, secret)


def _jobs_application(settings: Settings, catalogue: Catalogue, secret: str) -> Any:
    from ray import serve

    from acs.serve_apps.jobs.deployment import JobRunner

    deployment = serve.deployment(JobRunner).options(
        name="runner",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0.5},
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=0,  # what it runs is run again
    )
    return deployment.bind(settings, catalogue, secret)
