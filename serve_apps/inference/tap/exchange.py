"""How a replica and its worker hand tensors to each other: files in a folder of shared memory, past vLLM's queues.

    <tensors folder>/          0700, of the whole server: removed with it
      replica-…/               0700, of one replica: swept by the next one when it was killed
        lock                   held as long as the replica lives
        sheet-…                0600, one a choice: the replica makes it, the worker fills it, the replica removes it
        vectors-…              0600, one for each content: steering vectors, read by the worker once

A **sheet** has one record for each position of a choice: a label of two int32 (position + 1, token id), then the rows
of the wanted Layers, [layers, hidden], in the model's own dtype. A record of zeros was never written. The worker writes
into mapped memory; the replica has taken the sheet's whole room before, so that a full disk is an error of one request
and not the death of the worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from acs.platform.inference.contract import STEERED_MAX

LABEL_BYTES = 8
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


@dataclass(frozen=True, slots=True)
class Sheet:
    path: Path
    layout: Layout

    def read(self, token_ids: list[int]) -> bytes:
        """The rows of exactly these tokens, position 0 first, as bytes of [layers, positions, hidden].

        Raises Incomplete and BeyondRange.
        """
        layout, count = self.layout, len(token_ids)
        with self._open() as file:
            raw = np.fromfile(file, np.uint8, count * layout.record_bytes)
        if len(raw) < count * layout.record_bytes:
            raise Incomplete(f"{len(raw) // layout.record_bytes} rows were captured of {count}")
        records = raw.reshape(count, layout.record_bytes)
        _check_labels(records[:, :LABEL_BYTES].copy().view("<i4"), 0, token_ids)
        rows = records[:, LABEL_BYTES:].reshape(count, layout.layers, layout.row_bytes // layout.layers)
        return np.ascontiguousarray(rows.transpose(1, 0, 2)).tobytes()  # of a strided array, tobytes goes byte by byte

    def check(self, first: int, token_ids: list[int]) -> None:
        """Whether the worker has been over the positions first, first + 1, … with these tokens. Raises Incomplete and
        BeyondRange.
        """
        size = self.layout.record_bytes
        with self._open() as file:
            raw = os.pread(file.fileno(), len(token_ids) * size, first * size)
        if len(raw) < (len(token_ids) - 1) * size + LABEL_BYTES:
            raise Incomplete(f"rows are missing after position {first + len(raw) // size - 1}")
        records = np.frombuffer(raw.ljust(len(token_ids) * size, b"\0"), np.uint8).reshape(len(token_ids), size)
        _check_labels(records[:, :LABEL_BYTES].copy().view("<i4"), first, token_ids)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        _beyond_range(self.path).unlink(missing_ok=True)

    def _open(self) -> BinaryIO:
        try:
            return cast(BinaryIO, open(self.path, "rb", buffering=0))
        except FileNotFoundError:
            if _beyond_range(self.path).exists():
                raise BeyondRange from None
            raise Incomplete("the worker has given the request up") from None


def mapped(sheet: Path, layout: Layout, capacity: int) -> np.ndarray:
    """By the worker: the sheet's records, uint8 [capacity, record bytes], to be written; unmapped with the array."""
    descriptor = os.open(sheet, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(descriptor, capacity * layout.record_bytes)
    finally:
        os.close(descriptor)
    return np.frombuffer(memory, np.uint8).reshape(capacity, layout.record_bytes)


def give_up(sheet: Path, error: Exception) -> None:
    """By the worker: without its sheet a choice passes none of the replica's checks."""
    if isinstance(error, BeyondRange):
        sheet.rename(_beyond_range(sheet))
    else:
        sheet.unlink()


def _beyond_range(sheet: Path) -> Path:
    return sheet.with_suffix(".beyond-range")


def _check_labels(labels: np.ndarray, first: int, token_ids: list[int]) -> None:
    """`labels`: int32 [positions, 2]."""
    expected = np.column_stack([np.arange(first + 1, first + 1 + len(token_ids)), token_ids])
    wrong = np.flatnonzero((labels != expected).any(axis=1))
    if len(wrong):
        position, token_id = labels[wrong[0]].tolist()
        found = f"that of token {token_id} at {position - 1}" if position else "none"
        raise Incomplete(f"{len(wrong)} of {len(token_ids)} rows are wrong; at position {first + wrong[0]} is {found}")


class Exchange:
    """A replica's own folder."""

    def __init__(self, tensors: Path) -> None:
        """`tensors`: the server's folder, made if need be; what dead replicas left in it is removed."""
        tensors.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(tensors)
        self.folder = Path(tempfile.mkdtemp(prefix="replica-", dir=tensors))
        self._lock = _locked(self.folder)
        self._sheets = 0
        self._users: dict[Path, int] = {}

    def sheet(self, layout: Layout, capacity: int) -> Sheet:
        """An empty sheet with room for `capacity` positions. Raises OSError when there is no such room."""
        self._sheets += 1
        sheet = Sheet(self.folder / f"sheet-{self._sheets}", layout)
        with open(os.open(sheet.path, _CREATE, 0o600), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, capacity * layout.record_bytes)
        return sheet

    def share(self, data: bytes) -> Path:
        """A file of this content, made once however many share it at a time. `release` it as often."""
        path = self.folder / f"vectors-{hashlib.sha256(data).hexdigest()}"
        if path not in self._users:
            with open(os.open(path, _CREATE, 0o600), "wb") as file:
                file.write(data)
        self._users[path] = self._users.get(path, 0) + 1
        return path

    def release(self, path: Path) -> None:
        self._users[path] -= 1
        if not self._users[path]:
            del self._users[path]
            path.unlink()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


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
