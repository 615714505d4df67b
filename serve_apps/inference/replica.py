"""A model replica: the Serve deployment around one Engine. Serve places it, scales it and replaces it when it is ill;
requests reach it over the wire (`acs.platform.inference.wire`), not through Serve's handle.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from acs.platform.catalogue import Model
from acs.platform.inference import wire
from acs.platform.inference.contract import EngineStatus
from acs.serve_apps.inference.server import EngineServer

log = logging.getLogger("ray.serve")
# A CPU engine's tensors come from malloc, which by default gives what a step has freed back to the system, and the next
# step meets every page anew: a fifth of a prefill's time (benchmarks/README.md). 32 MiB is glibc's limit.
KEEPS_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1024**3),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2),
    "MALLOC_TOP_PAD_": str(16 * 1024**2),
}
DRAIN_S = 30.0  # the time a replica that is being stopped gives its running requests


class ModelReplica:
    """Serve calls `check_health` every second or so, `record_autoscaling_stats` for the autoscaler, and `__del__` when
    it stops the replica. Ingresses call `endpoint`, by Serve's broadcast, to learn where each running replica listens.
    """

    async def __init__(self, model: Model, checkpoint: str, secret: str, tensors: Path) -> None:  # type: ignore[misc]
        """Load, warm up, and only then listen."""
        on_cpu = {} if model.resources.num_gpus else KEEPS_MEMORY | _threads(model)
        # For the engine's own process, which is still to come.
        os.environ.update({"VLLM_PLUGINS": "", "VLLM_USE_V2_MODEL_RUNNER": "0", **on_cpu, **model.env})
        self._model = model
        self._engine = _make_engine(model, Path(checkpoint), tensors)
        try:
            await self._engine.warm_up()
        except BaseException:
            self._engine.shutdown()  # it has processes of its own
            raise
        self._server = EngineServer(self._engine)
        host = wire.own_address()
        self._endpoint = (host, await self._server.start(host, secret))
        log.info("Model %s listens on port %d.", model.id, self._endpoint[1])

    async def endpoint(self) -> tuple[str, int, EngineStatus]:
        """Where this replica listens, and what its engine counts as unfinished."""
        return (*self._endpoint, self._engine.status())

    async def has_work(self) -> bool:
        """Whether anything runs in the engine itself, by its own account and not by ours."""
        return bool(await self._engine.has_work())

    async def check_health(self) -> None:
        """Serve replaces a replica that raises here. A dead engine never comes back, so the process goes with it, at
        once: waiting for Serve's third failed check would only lengthen the gap.
        """
        try:
            await self._engine.check_health()
        except Exception:
            log.exception("The engine of model %s is dead; its replica exits to be replaced.", self._model.id)
            self._engine.shutdown()
            os._exit(1)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve cannot see requests that do not pass its handle; `scaling.by_running_requests` reads this figure."""
        return {"running": float(self._server.running)}

    async def wake(self) -> None:
        """Called through the handle when no replica runs: the call itself makes Serve start one."""

    async def __del__(self) -> None:
        if hasattr(self, "_server"):
            try:
                await self._server.drain(DRAIN_S)
            except TimeoutError:
                log.warning("Model %s stops with %d requests running.", self._model.id, self._server.running)
        if hasattr(self, "_engine"):
            self._engine.shutdown()


def _threads(model: Model) -> dict[str, str]:
    """Ray has set as many as the entry's num_cpus, which only says what fits on a node. What computes on a CPU gets all
    cores; an entry of less than one CPU is so small that a second thread only takes them from the rest of the server.
    """
    return {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)) if model.resources.num_cpus >= 1 else 1)}


def _make_engine(model: Model, checkpoint: Path, tensors: Path) -> Any:
    if model.engine_class == "fake":
        from acs.platform.tokenizer import ModelTokenizer
        from acs.serve_apps.inference.fake_engine import FakeEngine

        return FakeEngine(ModelTokenizer(checkpoint), step_s=float(model.engine.get("step_s", 0)))
    from acs.serve_apps.inference.vllm_engine import VllmEngine

    return VllmEngine(model, checkpoint, tensors)
