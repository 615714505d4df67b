"""How a replica and its worker hand tensors to each other: files in a folder of shared memory, past vLLM's queues.

    <tensors folder>/          0700, of the whole server: removed with it
      replica-…/               0700, of one replica: swept by the next one when it was killed
        lock                   held as long as the replica lives
        sheet-…                0600, one a request: the replica makes it, the worker fills it, the replica removes it
        vectors-…              0600, one for each content: steering vectors, read by the worker once

A **sheet** has one record for each position of each choice, those of a choice one after the other: a label of two int32
(position + 1, token id), then the rows of the wanted Layers, [layers, hidden], in the model's own dtype. A record of
zeros was never written; a choice's first one says so early that a step with the choice has begun. The worker writes
into mapped memory; the replica has taken the sheet's whole room before, so that a full disk is an error of one request
and not the death of the worker.

A sheet that is used **again** spares both sides the making of its memory, a tenth of the time that a harvest of a small
model takes. It is that of a request which ended well, and for which the worker writes nothing after the last token.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import mmap
import os
import shutil
import tempfile
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast
from weakref import WeakValueDictionary

import numpy as np

from acs.platform.inference.contract import STEERED_MAX

LABEL_BYTES = 8
_BEGUN = -1  # in the place of position + 1
AGAIN_BYTES, SPARES = 16 * 1024**2, 4  # of a sheet that is used again, and of those how many are kept for it
ITEM_BYTES = {"float32": 4, "bfloat16": 2}  # the dtypes a tapped model may run in

_CREATE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC


class Incomplete(Exception):
    """Rows are missing or are not those of the tokens that the request had."""


class BeyondRange(ValueError):
    """The request's own steering made numbers that no stream may hold."""

    def __init__(self) -> None:
        super().__init__(f"steering made numbers beyond {STEERED_MAX:g}")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a record of a sheet holds. No Layers: labels alone, which prove that a steered row was steered."""

    layers: int
    hidden: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        return self.layers * self.hidden * ITEM_BYTES[self.dtype]

    @property
    def record_bytes(self) -> int:
        return LABEL_BYTES + self.row_bytes


@dataclass(slots=True)
class Sheet:
    """Mapped when it is made, and kept: a steered choice is looked at after each token."""

    path: Path
    layout: Layout
    _memory: mmap.mmap | None = None

    def again(self, layout: Layout, capacity: int) -> Sheet:
        """As an empty one."""
        sheet = Sheet(self.path, layout, self._memory)
        sheet._records()[:capacity, :LABEL_BYTES] = 0
        return sheet

    def read(self, token_ids: list[int], start: int = 0) -> memoryview:
        """The rows of exactly these tokens, position 0 first, as bytes of [layers, positions, hidden]. `start`: the
        record of the choice's position 0.

        Raises Incomplete and BeyondRange.
        """
        self.check(0, token_ids, start)
        layout, count = self.layout, len(token_ids)
        records = self._records()[start : start + count, LABEL_BYTES:]
        rows = records.reshape(count, layout.layers, layout.row_bytes // layout.layers).transpose(1, 0, 2)
        return np.array(rows, order="C").ravel().data  # the only copy; always one, since the sheet may be used again

    def check(self, first: int, token_ids: list[int], start: int = 0) -> None:
        """Whether the worker has been over the positions first, first + 1, … with these tokens. Raises Incomplete and
        BeyondRange.
        """
        records = self._records()[start + first :][: len(token_ids)]
        labels = np.ascontiguousarray(records[:, :LABEL_BYTES]).tobytes()
        expected = array("i", chain.from_iterable(enumerate(token_ids, first + 1))).tobytes()
        if labels != expected:
            self._open().close()  # raises when the worker has said why
            raise Incomplete(_first_wrong(labels, expected))

    def has_begun(self, start: int) -> bool:
        """Whether a step with the choice has begun. `start`: as in `read`."""
        return bool(self._records()[start, :LABEL_BYTES].any())

    def remove(self) -> None:
        self._memory = None
        self.path.unlink(missing_ok=True)
        _beyond_range(self.path).unlink(missing_ok=True)

    def _records(self) -> np.ndarray:
        if (memory := self._memory) is None:
            with self._open() as file:
                self._memory = memory = _mapped(file.fileno())
        return _records(memory, self.layout)

    def _open(self) -> BinaryIO:
        try:
            return cast(BinaryIO, open(self.path, "r+b", buffering=0))
        except FileNotFoundError:
            if _beyond_range(self.path).exists():
                raise BeyondRange from None
            if self.path.parent.exists():
                raise Incomplete("the worker has given the request up") from None
            raise  # the replica ends


class Sheets:
    """The worker's: each sheet is mapped once, however many choices write to it, and unmapped with the last array; one
    that will be used again, when it is gone.
    """

    def __init__(self) -> None:
        self._mapped: WeakValueDictionary[Path, mmap.mmap] = WeakValueDictionary()
        self._again: dict[Path, mmap.mmap] = {}

    def records(self, sheet: Path, layout: Layout, *, again: bool) -> np.ndarray:
        """uint8 [capacity, record bytes], to be written. Raises FileNotFoundError when the replica has removed what is
        to be mapped.
        """
        memory = self._mapped.get(sheet)
        if memory is None:
            descriptor = os.open(sheet, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._mapped[sheet] = memory = _mapped(descriptor)
            finally:
                os.close(descriptor)
            self._again = {path: kept for path, kept in self._again.items() if path.exists()}
            if again:
                self._again[sheet] = memory
        return _records(memory, layout)


def _mapped(descriptor: int) -> mmap.mmap:
    """All its pages at once: to meet them one by one costs more than to copy what is on them."""
    return mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _records(memory: mmap.mmap, layout: Layout) -> np.ndarray:
    count = len(memory) // layout.record_bytes
    return np.frombuffer(memory, np.uint8, count * layout.record_bytes).reshape(count, layout.record_bytes)


def note_begun(records: np.ndarray) -> None:
    """By the worker, of a choice's own records."""
    label = records[0, :LABEL_BYTES].view(np.int32)
    if not label.any():  # nothing of it has been computed
        label[0] = _BEGUN


def give_up(sheet: Path, error: Exception) -> None:
    """By the worker: without its sheet a request passes none of the replica's checks."""
    if isinstance(error, BeyondRange):
        sheet.rename(_beyond_range(sheet))
    else:
        sheet.unlink()


def _beyond_range(sheet: Path) -> Path:
    return sheet.with_suffix(".beyond-range")


def _first_wrong(labels: bytes, expected: bytes) -> str:
    right, found = (
        np.frombuffer(part, "<i4").reshape(-1, 2) for part in (expected, labels.ljust(len(expected), b"\0"))
    )
    wrong = np.flatnonzero((found != right).any(axis=1))
    position, (label, token_id) = right[wrong[0], 0] - 1, found[wrong[0]].tolist()
    what = f"that of token {token_id} at {label - 1}" if label > 0 else "none"
    return f"{len(wrong)} of {len(right)} rows are wrong; at position {position} is {what}"


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
        sheet._records()
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
