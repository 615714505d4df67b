"""The environment of one run: what every process of a server inherits, and the folders that last as long as it.

Ray, Serve, HAProxy and vLLM read theirs from environment variables at import, so all is set before any of them starts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import acs
from acs.platform.server import ports
from acs.platform.settings import Settings

INSTANCE = "ACS_INSTANCE"  # tags every process of one run
DATA_FOLDER = "ACS_DATA_DIR"  # tags every process that serves this data folder
SCRATCH = "ACS_SCRATCH"
TENSORS = "ACS_TENSORS"

_SCRATCH_PARENT = Path("/tmp")  # short: the path of a Unix socket has 108 bytes, and Serve's take 80 of them
_SCRATCH_PREFIX = "acs-"
_SHARED_MEMORY = Path("/dev/shm")
_SHARED_MEMORY_LEAST_BYTES = 2 * 1024**3  # a container's 64 MiB would be full with one request's tensors


@dataclass(frozen=True, slots=True)
class ServerRun:
    """One life of a server. `scratch` holds Ray's files and sockets, 0700, and is removed with `discard`."""

    settings: Settings
    instance: str
    scratch: Path
    environ: dict[str, str]

    def discard(self, *, keep_logs: bool) -> None:
        """Remove the scratch folder. With `keep_logs`, Ray's logs stay in the data folder until the next start."""
        ray_logs = self.settings.logs_dir / "ray"
        if keep_logs and ray_logs.exists():
            kept = self.settings.logs_dir / "ray.kept"
            shutil.copytree(ray_logs.resolve(), kept, ignore_dangling_symlinks=True, dirs_exist_ok=True)
            ray_logs.unlink()
            kept.rename(ray_logs)
        else:
            ray_logs.unlink(missing_ok=True)
        _remove_scratch(self.scratch)
        for name in ("scratch", "ray_token", "ray_starting"):
            (self.settings.run_dir / name).unlink(missing_ok=True)

    def renew(self) -> None:
        """For another try, after everything of the last one has ended: with other ports, in case these were taken."""
        self.settings.ray_starting_file.unlink(missing_ok=True)
        self.settings.fault_file.unlink(missing_ok=True)
        self.environ.update(ports.environment())


def begin(settings: Settings, environ: Mapping[str, str]) -> ServerRun:
    """Make the folders of a new run and its environment. The caller holds the data folder's lock."""
    _discard_last_run(settings)
    settings.run_dir.mkdir(mode=0o700)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=_SCRATCH_PARENT))
    (settings.run_dir / "scratch").symlink_to(scratch)
    run = ServerRun(settings, uuid.uuid4().hex, scratch, {})
    settings.logs_dir.mkdir()
    (settings.logs_dir / "ray").symlink_to(scratch / "session_latest" / "logs")
    alone = _guarded_ray(settings) | _LOOPBACK if settings.ray_address is None else {}  # a cluster has its own
    run.environ.update(_DEFAULTS | dict(environ) | _ours(run) | ports.environment() | alone)
    return run


def for_workers(environ: Mapping[str, str]) -> dict[str, str]:
    """What the workers of a joined cluster, which inherit nothing from us, must be given."""
    ours = ("RAY_SERVE_", "ACS_")
    return {name: value for name, value in environ.items() if name.startswith(ours) or name in _QUIET}


def _guarded_ray(settings: Settings) -> dict[str, str]:
    """Ray listens on every interface: without a token anyone who reaches it runs code."""
    token = settings.run_dir / "ray_token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def _discard_last_run(settings: Settings) -> None:
    """What a server that was killed could not remove."""
    with contextlib.suppress(FileNotFoundError, OSError):
        scratch = (settings.run_dir / "scratch").readlink()
        if scratch.parent == _SCRATCH_PARENT and scratch.name.startswith(_SCRATCH_PREFIX):
            _remove_scratch(scratch)
    shutil.rmtree(settings.run_dir, ignore_errors=True)


def _remove_scratch(scratch: Path) -> None:
    shutil.rmtree(_SHARED_MEMORY / scratch.name, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def _tensors(scratch: Path) -> Path:
    """Where model replicas and their workers hand tensors to each other: in shared memory where there is enough of it,
    else on the disk, where the page cache does nearly as well. The first replica makes it.
    """
    memory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    if memory is not None and shutil.disk_usage(memory).free >= _SHARED_MEMORY_LEAST_BYTES:
        return memory / scratch.name
    return scratch / "tensors"


# Choices that an operator may override by setting the variable.
_DEFAULTS = {
    "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
    # HAProxy reports each request to a Python actor for these; the ingress keeps its own counts.
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    # A killed ingress is out of the rotation at the first connection that it refuses, or at the second failed check; a
    # new one is in it at its first answered check.
    "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_FASTINTER": "100ms",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_DOWNINTER": "100ms",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_RISE": "1",
    # How long a proxy may take to start, three times over, and HAProxy in it: 5 s and 30 s by default. One that is late
    # is killed, and a busy machine takes that long to start a Python process.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
    # A dead HAProxy is noticed at the third failed check, and nobody is served until then: 30 s by default.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
    # Ray's own metrics would be open to the network on three ports. The first of these stops one of them; the others
    # cannot be stopped, but on a port that does not exist they log an error and go on without.
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    "AUTOSCALER_METRIC_PORT": "-1",
    # Serve's controller looks at everything ten times a second by default, which costs a laptop 5 % of a core.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
    # How long a raylet waits for the agent that makes its workers' environments, and for a worker that it has started:
    # 30 and 60 s by default, which a busy machine may take to start them.
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_register_timeout_seconds": "240",
    # Ray makes its workers give way to its own processes (15, the most being 19). They are what we serve with, and
    # those among them that should give way to an engine could not.
    "RAY_worker_niceness": "0",
    # Workers are started when an actor wants one: idle ones hold 60 MB each.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}

# On one machine an engine's own processes meet on loopback: they need no network, and nobody else reaches them.
_LOOPBACK = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def _ours(run: ServerRun) -> dict[str, str]:
    settings = run.settings
    haproxy = run.scratch / "haproxy"
    longest_s = max(settings.limits.stream_deadline_s, settings.limits.whole_deadline_s)
    return _QUIET | {
        INSTANCE: run.instance,
        DATA_FOLDER: str(settings.data),
        SCRATCH: str(run.scratch),
        TENSORS: str(_tensors(run.scratch)),
        "SPT_NOENV": "1",  # a process that sets its title must not overwrite the tags above
        "ACS_DATA": str(settings.data),
        "ACS_CATALOGUE": str(settings.catalogue),
        "ACS_MODELS": str(settings.models_dir),
        "ACS_HOST": settings.host,
        "ACS_PORT": str(settings.port),
        "ACS_METRICS_HOST": settings.metrics_host,
        "ACS_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "acs.serve_apps.proxy.manager:in_controller",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "acs.serve_apps.proxy.middleware:middlewares",
        # At each change of ingresses another HAProxy takes over, and the last one has so long for what it serves (120 s
        # by default). An ingress's port is another's sooner: there are not enough of them, and all ingresses are alike.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(int(longest_s) + 60),
        "RAY_SERVE_PORT_QUARANTINE_S": "150",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(Path(acs.__path__[0]).resolve() / "serve_apps/proxy/haproxy"),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "a.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(haproxy / "m.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
        "VLLM_RPC_BASE_PATH": str(run.scratch),
    }
