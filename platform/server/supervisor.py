"""Starts a server's processes, stands by them in the foreground, and ends every one of them.

The supervisor imports neither Ray nor vLLM. Its one child, the driver, starts Ray and Serve and stands by; where Ray
does not come up, which a busy machine is enough for, all is ended and another driver tries. Whatever a driver
starts is a descendant of the supervisor, orphans included, and is ended by it; Serve's own shutdown takes 30 s. What it
starts in a cluster that it joined is Ray's, and is ended through Ray by another child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from acs.platform.server import environment, preflight, processes
from acs.platform.server.environment import ServerRun
from acs.platform.server.faults import ServerFault
from acs.platform.server.progress import complain, say, started_at
from acs.platform.settings import Settings, SettingsError

STOP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_WATCHED = STOP | {signal.SIGCHLD}
_DRIVER = "acs.serve_apps.driver"
_CLUSTER = "acs.serve_apps.cluster"
_LEDGER = "LedgerActor"  # a part of its process's title
_TERM_PATIENCE_S = 1.5  # for a process to leave by itself once told
_RAY_STARTS = 3
_RAY_PATIENCE_S = 200.0  # for Ray, then for Serve, that neither comes up nor gives up; idle machines take 3 s
_LEAVE_CLUSTER_S = 90.0  # for all that it runs in a cluster that it joined to end; an idle one takes 5 s


class _Stopped(Exception):
    """A signal asked the server to end."""


def serve() -> int:
    """Run a server until a signal ends it (0), or a fault does (1, after one sentence on stderr)."""
    started_at()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        settings = Settings.from_environ()
        preflight.bucket_has_keys(settings, os.environ)
        preflight.make_data_folder(settings)
        with preflight.sole_server(settings):
            _leave_cluster(settings, os.environ)
            _end_orphans(settings)
            preflight.port_is_free(settings)
            return _Supervisor(environment.begin(settings, os.environ)).run()
    except (ServerFault, SettingsError) as fault:
        complain(str(fault))
        return 1


def _leave_cluster(settings: Settings, environ: Mapping[str, str]) -> None:
    """End what this server, or an earlier one on this data, runs in the cluster that it joins."""
    if settings.ray_address is None:
        return
    command = [sys.executable, "-P", "-m", _CLUSTER]
    try:
        ran = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, timeout=_LEAVE_CLUSTER_S)
    except subprocess.TimeoutExpired:
        raise ServerFault(
            f"The cluster at {settings.ray_address} has not ended what the server runs there within "
            f"{_LEAVE_CLUSTER_S:.0f} s, or does not answer."
        ) from None
    if ran.returncode:
        said = ran.stderr.splitlines() or [f"{_CLUSTER} ended with code {ran.returncode}."]
        raise ServerFault(said[-1])


def _end_orphans(settings: Settings) -> None:
    """Processes of an earlier server on this data. The lock says that the server itself is gone."""

    def orphans() -> list[processes.Process]:
        return processes.tagged(environment.DATA_FOLDER, str(settings.data))

    found = len(orphans())
    if found:
        say(f"ending {found} processes that an earlier server on {settings.data} left behind")
        if left := _end(orphans):
            raise ServerFault(f"Processes of an earlier server do not end: {', '.join(str(p.pid) for p in left)}.")


def _end(find: Callable[[], list[processes.Process]]) -> list[processes.Process]:
    """The ledger first, which loses nothing: what the others' end cuts off would be told to it as failed, and is to go
    on with the next server. Returns what does not end.
    """
    processes.signal_all([process for process in find() if _LEDGER in process.command], signal.SIGKILL)
    return processes.end(find, patience_s=_TERM_PATIENCE_S)


class _Supervisor:
    def __init__(self, run: ServerRun) -> None:
        self._run = run

    def run(self) -> int:
        processes.adopt_orphans()
        code = 1
        try:
            self._drive()
        except _Stopped:
            code = 0
            say("stopping (again: at once)")
            self._let_requests_end()
        finally:
            self._end_everything()
            self._run.discard(keep_logs=code != 0)
        if code == 0:
            say("stopped")
        return code

    def _drive(self) -> None:
        """Run drivers until a signal comes (_Stopped) or one ends for good, which it never should (ServerFault)."""
        for left in reversed(range(_RAY_STARTS)):
            fault = self._drive_once()
            if not self._run.settings.ray_starting_file.exists():
                raise ServerFault(fault)
            if left:
                tries = "two more tries" if left == 2 else "one more try"
                say(f"Ray did not come up; ending what there is of it and starting it again ({tries})")
                self._end_everything()
                self._run.renew()
        raise ServerFault(
            f"Ray did not come up in {_RAY_STARTS} tries. End what keeps this machine's processors or memory busy, and "
            f"start the server again; Ray's logs are in {self._run.settings.logs_dir / 'ray'}. Of the last try: {fault}"
        )

    def _drive_once(self) -> str:
        """Run a driver until it ends, or is ended since Ray does not come up. Returns the sentence on how it went."""
        driver = self._spawn(_DRIVER)
        ray_seen: float | None = None  # when it was first seen to start Ray
        while True:
            for pid, code in processes.reap():
                if pid == driver:
                    return self._sentence(code)
            if not self._run.settings.ray_starting_file.exists():
                ray_seen = None
            elif ray_seen is None:
                ray_seen = time.monotonic()
            elif time.monotonic() - ray_seen > _RAY_PATIENCE_S:
                return f"It neither started nor failed within {_RAY_PATIENCE_S:.0f} s."
            if _told_to_stop(within_s=1.0):
                raise _Stopped

    def _spawn(self, module: str) -> int:
        # A session of its own, so that the terminal's Ctrl-C reaches the supervisor only.
        log = os.open(self._run.settings.server_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", module],
                self._run.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, log, 2)],
                setsigmask=[],
                setsid=True,
            )
        finally:
            os.close(log)

    def _sentence(self, code: int) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._run.settings.fault_file.read_text()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"The server {how}, which it should not; its log is {self._run.settings.server_log}."

    def _let_requests_end(self) -> None:
        """Have HAProxy refuse new connections and wait until the running requests are done, within the grace."""
        haproxies = [p for p in processes.descendants(os.getpid()) if self._is_haproxy(p)]
        processes.signal_all(haproxies, signal.SIGUSR1)
        deadline = time.monotonic() + self._run.settings.stop_grace_s
        while time.monotonic() < deadline and any(processes.alive(p) for p in haproxies):
            if _told_to_stop(within_s=0.05):
                return

    def _is_haproxy(self, process: processes.Process) -> bool:
        return self._run.environ["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"] in process.command

    def _end_everything(self) -> None:
        def ours() -> list[processes.Process]:
            by_tag = processes.tagged(environment.INSTANCE, self._run.instance)
            return list({p.pid: p for p in by_tag + processes.descendants(os.getpid())}.values())

        # The driver has nothing to save. Ray's own processes end with it, and so restart nothing of what follows.
        processes.signal_all([p for p in ours() if p.parent == os.getpid()], signal.SIGKILL)
        try:
            _leave_cluster(self._run.settings, self._run.environ)
        except ServerFault as fault:
            complain(str(fault))
        if left := _end(ours):
            complain(f"Processes do not end: {', '.join(str(p.pid) for p in left)}.")


def _told_to_stop(*, within_s: float) -> bool:
    """Wait for a signal. A child that ends also ends the wait: the caller looks which."""
    got = signal.sigtimedwait(_WATCHED, within_s)
    return got is not None and got.si_signo in STOP
