"""The two servers that the benchmark compares, each as its users start it, on the same checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from acs.platform.catalogue import Catalogue, Model
from acs.platform.models import prepare
from acs.platform.server import processes
from acs.platform.settings import SHIPPED_CATALOGUES

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_LIMIT_S = 600


@dataclass
class Rival:
    name: str
    base: str  # ends in /v1
    key: str
    process: subprocess.Popen[bytes]

    def tree(self) -> dict[str, list[int]]:
        """Process ids by what they are."""
        found: dict[str, list[int]] = {}
        for process in processes.descendants(self.process.pid):
            found.setdefault(_kind(process.command), []).append(process.pid)
        found.setdefault("server", []).append(self.process.pid)
        return found

    def cpu_s(self) -> dict[str, float]:
        return {kind: sum(map(cpu_s_of, pids)) for kind, pids in self.tree().items()}

    def memory_mb(self) -> dict[str, float]:
        """Proportional set size: shared pages are counted once."""
        return {kind: sum(map(_pss_mb, pids)) for kind, pids in self.tree().items()}

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _kind(command: str) -> str:
    names = (
        "haproxy",
        "ServeReplica:api",
        "ServeReplica:jobs",
        "ServeReplica:model",
        "EngineCore",
        "VLLM::Worker",
        "LedgerActor",
    )
    ray = ("ServeController", "ProxyActor", "HAProxyManager", "gcs_server", "raylet")
    for name in (*names, *ray):
        if name in command:
            return name
    return "python" if "python" in command.split(" ")[0] else command.split(" ")[0].rsplit("/", 1)[-1][:20]


def cpu_s_of(pid: int) -> float:
    try:
        parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # it has ended: what it used is lost to us
        return 0.0
    return (int(parts[11]) + int(parts[12])) / TICKS_PER_S


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def prepared(catalogue: str, models_dir: Path) -> tuple[Model, Path]:
    """The first model of a shipped catalogue, and its checkpoint."""
    model = next(iter(Catalogue.load(SHIPPED_CATALOGUES / f"{catalogue}.toml").values()))
    return model, prepare(model, models_dir, print)


# One key floods the server here: what a key may do is raised.
FLOOD = {
    "ACS_LIMIT_KEY_RUNNING": "1000",
    "ACS_LIMIT_KEY_RATE_PER_MINUTE": "1000000",
    "ACS_LIMIT_ACCOUNT_JOBS": "100000",
    "ACS_LIMIT_ACCOUNT_LOOMS": "100000",
    "ACS_LIMIT_KEY_LOOM_WAITS": "1000",
    "ACS_LIMIT_PLATFORM_LOOM_WAITS": "1000",
}


def start_ours(models_dir: Path, port: int, catalogue: str = "toy", checkout: Path | None = None) -> Rival:
    """`checkout`: another working tree of this project whose code is to run, with this environment's packages."""
    data = Path(tempfile.mkdtemp(prefix="acs-bench-"))
    env = {
        **os.environ,
        "ACS_DATA": str(data),
        "ACS_PORT": str(port),
        "ACS_CATALOGUE": catalogue,
        "ACS_MODELS": str(models_dir),
        **FLOOD,
    }
    if checkout:
        env["PYTHONPATH"] = str(checkout.resolve())
    log = (data / "out").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "acs.platform.cli.main", "serve"], env=env, stdout=log, cwd="/"
    )
    _wait(f"http://127.0.0.1:{port}/health", process, lambda: (data / "env").exists())
    key = (data / "env").read_text().split("ACS_API_KEY=")[1].split()[0].strip("'\"")
    return Rival("before" if checkout else "acs", f"http://127.0.0.1:{port}/v1", key, process)


def start_vllm(models_dir: Path, port: int, catalogue: str = "toy", executor: str | None = None) -> Rival:
    """vLLM's own server with the engine arguments of our catalogue entry, without its access log and statistics."""
    model, checkpoint = prepared(catalogue, models_dir)
    flags = []
    for name, value in model.engine.items():
        flag = "--" + name.replace("_", "-")
        flags += [flag] if value is True else [flag, str(value)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--served-model-name", model.id, "--port", str(port), "--host", "127.0.0.1", *flags]
    command += [
        "--disable-uvicorn-access-log",
        "--disable-log-stats",
        "--max-logprobs",
        "-1",
        "--generation-config",
        "vllm",
    ]
    if executor:
        command += ["--distributed-executor-backend", executor]
    quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": "", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    env = {**os.environ, **quiet, **model.env}
    with Path(tempfile.mkdtemp(prefix="vllm-bench-"), "out").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=tempfile.gettempdir())
    _wait(f"http://127.0.0.1:{port}/health", process, lambda: True)
    return Rival("vllm", f"http://127.0.0.1:{port}/v1", "none", process)


def _wait(url: str, process: subprocess.Popen[bytes], also) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server for {url} ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                if also():
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"no answer from {url} in {START_LIMIT_S} s")
