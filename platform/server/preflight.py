"""What must hold before anything is started. Each check raises ServerFault with one sentence."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from acs.platform.server.faults import ServerFault
from acs.platform.settings import Settings
from acs.storage.shards.presigned import Presigner


def make_data_folder(settings: Settings) -> None:
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.data.chmod(0o700)
    except OSError as error:
        raise ServerFault(f"The data folder {settings.data} cannot be used: {error.strerror}.") from None


@contextlib.contextmanager
def sole_server(settings: Settings) -> Iterator[None]:
    """Hold the data folder's lock. The kernel lets go of it when this process ends, however it ends; no child
    process inherits it.
    """
    handle = os.open(settings.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            raise ServerFault(
                f"Another server (process {holder}) is using the data folder {settings.data}; "
                "stop it, or set ACS_DATA to another folder."
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def bucket_has_keys(settings: Settings, environ: Mapping[str, str]) -> None:
    """When the files of harvests go to one."""
    if settings.harvests_place.startswith("s3://"):
        try:
            Presigner.of(settings.harvests_place, "", environ)
        except ValueError as error:
            raise ServerFault(str(error)) from None


def port_is_free(settings: Settings) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    host = "" if settings.host == "*" else settings.host
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, settings.port))
            probe.listen(1)
        except socket.gaierror:
            raise ServerFault(f"ACS_HOST={settings.host!r} is not an address of this machine.") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServerFault(
                    f"Port {settings.port} on {settings.host} is taken; set ACS_PORT to a free one."
                ) from None
            raise ServerFault(f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}.") from None


def memory_bytes() -> tuple[int, int]:
    """(in all, available without swapping), within this container's limit if it has one."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        total, available = min(total, limit), min(available, limit - used)
    return total, available


def memory_suffices(needed_bytes: int, available_bytes: int) -> None:
    if available_bytes < needed_bytes:
        raise ServerFault(
            f"The models to be served need about {needed_bytes / 1e9:.1f} GB of memory and "
            f"{available_bytes / 1e9:.1f} GB are free; free some, or serve fewer or smaller models (ACS_CATALOGUE)."
        )
