"""A real server for a test: `acs serve` as its own process, on a free port, in the data folder given.

    from server.running import start_server

    with start_server(tmp_path, catalogue="fake") as server:
        httpx.get(server.base + "/health")

Give several runs one ACS_MODELS (as `env`) to prepare a model only once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from acs.platform.server import processes


@dataclass(frozen=True)
class ProcessInfo:
    pid: int
    cmdline: str
    rss: int  # bytes


@dataclass
class Server:
    process: subprocess.Popen[str]
    data: Path
    port: int
    lines: list[str] = field(default_factory=list)  # what it has printed, stdout and stderr

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def v1(self) -> str:
        return self.base + "/v1"

    @property
    def key(self) -> str:
        """The key of the account `local`."""
        for line in (self.data / "env").read_text().splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            if name == "ACS_API_KEY":
                return value.strip("'\"")
        raise LookupError(f"no ACS_API_KEY in {self.data / 'env'}")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def log_tail(self, lines: int = 40) -> str:
        try:
            return "\n".join((self.data / "run/logs/server.log").read_text().splitlines()[-lines:])
        except OSError:
            return ""

    def processes(self) -> list[ProcessInfo]:
        """Every live process of this server but the supervisor itself, killed parents or not."""
        found = {p.pid: p for p in processes.tagged("ACS_DATA_DIR", str(self.data.resolve()))}
        found |= {p.pid: p for p in processes.descendants(self.process.pid)}
        return [ProcessInfo(p.pid, p.command, p.rss) for p in found.values()]

    def named(self, part: str) -> list[ProcessInfo]:
        """Those whose command line has `part` in it: "ServeReplica:api", "ServeReplica:model-toy", "EngineCore"…"""
        return [p for p in self.processes() if part in p.cmdline]

    def stop(self, which: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> int:
        """End it as an operator would; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(which)
        return self.process.wait(timeout_s)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        if kind is not None:
            print(self.output, self.log_tail(), sep="\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def launch(data: Path, *, catalogue: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()) -> Server:
    """Start it and return at once; its lines gather in `lines`. `prefix`: words before the command, such as those of
    `unshare`; the program they name must become the server, not start it.
    """
    port = int((env or {}).get("ACS_PORT", free_port()))
    process = subprocess.Popen(
        [*prefix, sys.executable, "-P", "-m", "acs.platform.cli.main", "serve"],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("ACS_", "RAY_"))},
            "ACS_DATA": str(data),
            "ACS_PORT": str(port),
            "ACS_CATALOGUE": catalogue,
            "ACS_STOP_GRACE_S": "0.2",
            "ACS_LIMIT_KEY_RUNNING": "1000",  # tests ask faster, and more at once, than one key may
            "ACS_LIMIT_KEY_RATE_PER_MINUTE": "1000000",
            **(env or {}),
        },
        cwd="/",  # nothing may depend on the folder it is started in
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    server = Server(process, data, port)

    def gather() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line)

    threading.Thread(target=gather, daemon=True).start()
    return server


def start_server(
    data: Path,
    *,
    catalogue: str,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    timeout_s: float = 480,
) -> Server:
    """Start it and return when it says that it is ready. `catalogue`: a shipped name or a file's path. Raises
    AssertionError with its output and the end of its log when it fails or is late.
    """
    server = launch(data, catalogue=catalogue, env=env, prefix=prefix)
    deadline = time.monotonic() + timeout_s
    while not any("  ready at " in line for line in server.lines):
        ended = server.process.poll() is not None
        if ended or time.monotonic() > deadline:
            server.stop()
            what = f"ended with {server.process.returncode}" if ended else f"was not ready in {timeout_s} s"
            raise AssertionError(f"The server {what}.\n{server.output}\n{server.log_tail()}")
        time.sleep(0.05)
    return server
