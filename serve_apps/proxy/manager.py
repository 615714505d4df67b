"""How HAProxy is started: without a fork of the actor that Serve has for it, and no other proxy beside it.

Serve's actor starts HAProxy by asyncio, which in a Ray actor is uvloop. That forks, runs Python in the child before it
becomes HAProxy, and waits for the child without a limit. The actor has many threads: what one of them holds at the fork
is held in the child for ever, and actor, child and every later change of replicas hang with it. `subprocess` starts
processes by vfork, where nothing runs in between.
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import ray
from ray.serve._private import controller, haproxy, proxy_state


def in_controller() -> None:
    """Called by Serve in its controller before that starts anything (`RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH`)."""
    controller.HAProxyManager = ray.remote(num_cpus=0)(HAProxyManager)
    # Serve's Python proxy, for applications without replicas, answers in other shapes: HAProxy sends nothing to it.
    proxy_state.ProxyStateManager._start_fallback_proxy_if_needed = lambda *_: None


class HAProxyManager(haproxy.HAProxyManager.__ray_metadata__.modified_class):  # type: ignore[misc, unused-ignore]
    """Serve's, in whose process HAProxy is started by `_started`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        asyncio.create_subprocess_exec = _started  # type: ignore[assignment]
        super().__init__(*args, **kwargs)


class _Process:
    """What Serve asks of an `asyncio.subprocess.Process`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        return await asyncio.to_thread(self._process.wait)


async def _started(*command: str, **files: Any) -> _Process:
    return _Process(await asyncio.to_thread(lambda: subprocess.Popen(command, **files)))
