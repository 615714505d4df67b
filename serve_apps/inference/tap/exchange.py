"""How a replica and its worker hand tensors to each other: files in a folder of shared memory, past vLLM's queues.

    <tensors folder>/          0700, of the whole server: removed with it
      replica-…/               0700, of one replica: swept by the next one when it was killed
        lock                   held as long as the replica lives
        sheet-…                0600, one a request: the replica makes it, the worker fills it, the replica removes it
        vectors-…              0600, one for each content: steering vectors, read by the worker once

A sheet that is used **again** spares both sides the making of its memory, a tenth of the time that a harvest of a small
model takes. It is that of a request which ended well, and for which the worker writes nothing after the last token.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from acs.serve_apps.inference.tap.sheet import Layout, Sheet

AGAIN_BYTES, SPARES = 16 * 1024**2, 4  # of a sheet that is used again, and of those how many are kept for it
_CREATE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC


class Exchange:
    """A replica's own folder. Sheets and vectors are made and removed by any thread."""

    def __init__(self, tensors: Path) -> None:
        """`tensors`: the server's folder, made if need be; what dead replicas left in it is removed."""
        tensors.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(tensors)
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=tensors))
        self._lock = _locked(draft)
        self.folder = draft.rename(tensors / f"replica-{draft.name}")  # locked before another's sweep may find it
        self._numbers = itertools.count(1)
        self._spares: list[Sheet] = []
        self._users: dict[Path, int] = {}
        self._counting = threading.Lock()

    def sheet(self, layout: Layout, capacity: int, *, again: bool = False) -> Sheet:
        """An empty sheet with room for `capacity` positions. `again`: of AGAIN_BYTES at most, it may have been used
        before, and may be spared afterwards. Raises OSError when there is no such room.
        """
        if again and (spare := self._a_spare()) is not None:
            return spare.again(layout, capacity)
        size = AGAIN_BYTES if again else capacity * layout.record_bytes
        while True:
            try:
                return self._new_sheet(layout, size)
            except OSError:
                if (spare := self._a_spare()) is None:
                    raise
                spare.remove()  # there is room again

    def _new_sheet(self, layout: Layout, size: int) -> Sheet:
        sheet = Sheet(self.folder / f"sheet-{next(self._numbers)}", layout)
        with _created(sheet.path) as file:
            os.posix_fallocate(file.fileno(), 0, size)
        sheet.map()
        return sheet

    def _a_spare(self) -> Sheet | None:
        with self._counting:
            return self._spares.pop() if self._spares else None

    def spare(self, sheet: Sheet) -> None:
        """Its request has ended well: it is kept for another, or removed."""
        with self._counting:
            kept = len(self._spares) < SPARES
            if kept:
                self._spares.append(sheet)
        if not kept:
            sheet.remove()

    def share(self, data: bytes) -> Path:
        """A file of this content, one however many share it at a time. `release` it as often."""
        path = self.folder / f"vectors-{hashlib.sha256(data).hexdigest()}"
        with self._counting:
            self._users[path] = self._users.get(path, 0) + 1  # from now on nobody else's release removes it
        try:
            if not path.exists():
                draft = path.with_suffix(f".{next(self._numbers)}")
                with _created(draft) as file:
                    file.write(data)
                draft.rename(path)  # in the place of another's, who came here at the same time: it is the same
        except BaseException:
            self.release(path)
            raise
        return path

    def release(self, path: Path) -> None:
        with self._counting:
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path]
                path.unlink(missing_ok=True)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


@contextlib.contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    """A new file, which is not there when it could not be filled."""
    with open(os.open(path, _CREATE, 0o600), "wb") as file:
        try:
            yield file
            file.flush()
        except BaseException:
            path.unlink()
            raise


def _locked(folder: Path) -> int:
    """Raises BlockingIOError when its replica lives."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_NOFOLLOW | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _sweep(tensors: Path) -> None:
    for folder in tensors.glob("replica-*"):
        with contextlib.suppress(BlockingIOError, FileNotFoundError):  # alive, or swept by another at this moment
            lock = _locked(folder)
            shutil.rmtree(folder)
            os.close(lock)
