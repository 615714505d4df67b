"""Unix sockets under any path: the kernel takes addresses of about 100 bytes, folders may lie deeper."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ADDRESS_BYTES = 100  # 108 on Linux, 104 on macOS, with the closing zero


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address that means `path` while the context lasts. Raises OSError when the folder is missing."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
