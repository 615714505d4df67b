"""Bytes that are too large for an event, or that people must be able to have erased: answers, requests, texts.

A blob's address is its SHA-256: the same bytes are kept once, and what is read is checked against the event that names
it. Files lie two folders deep, for their owner only. A blob is kept for as long as its folder keeps blobs, counted from
the last time it was put.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

HEX = frozenset("0123456789abcdef")
PART_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    sha256: str  # 64 hex digits
    size: int  # bytes


class Blobs:
    def __init__(self, folder: Path, kept_s: float) -> None:
        """Opens nothing: the folder is made by the first `put`."""
        self._folder = folder
        self._kept_s = kept_s

    def put(self, data: bytes) -> Blob:
        """Returns when it is on disk. Raises BlobUnavailable."""
        address = hashlib.sha256(data).hexdigest()
        path = self._path(address)
        try:
            if path.exists():
                os.utime(path)
            else:
                _write(path, data)
        except OSError as error:
            raise BlobUnavailable(f"A blob cannot be written: {error.strerror}.") from error
        return Blob(address, len(data))

    def put_parts(self, parts: Iterable[bytes]) -> Blob:
        """Like `put` for what is too large to be held at once."""
        draft = self._folder / "xx" / f".{secrets.token_hex(16)}"
        digest, size = hashlib.sha256(), 0
        try:
            with _new(draft) as file:
                for part in parts:
                    file.write(part)
                    digest.update(part)
                    size += len(part)
                _sync(file)
            path = self._path(digest.hexdigest())
            path.parent.mkdir(mode=0o700, exist_ok=True)
            draft.replace(path)
        except OSError as error:
            raise BlobUnavailable(f"A blob cannot be written: {error.strerror}.") from error
        finally:
            draft.unlink(missing_ok=True)
        return Blob(digest.hexdigest(), size)

    def get(self, address: str) -> bytes:
        """Raises BlobUnavailable, also for bytes that are not those of the address."""
        try:
            data = self._path(address).read_bytes()
        except OSError as error:
            raise BlobUnavailable(f"A blob cannot be read: {error.strerror}.") from error
        if hashlib.sha256(data).hexdigest() != address:
            raise BlobUnavailable("A blob's bytes have changed since they were written.")
        return data

    def parts(self, address: str) -> Iterator[bytes]:
        """Like `get`, bit by bit: that the bytes have changed shows at the end only."""
        digest = hashlib.sha256()
        try:
            with self._path(address).open("rb") as file:
                while part := file.read(PART_BYTES):
                    digest.update(part)
                    yield part
        except OSError as error:
            raise BlobUnavailable(f"A blob cannot be read: {error.strerror}.") from error
        if digest.hexdigest() != address:
            raise BlobUnavailable("A blob's bytes have changed since they were written.")

    def erase(self, address: str) -> None:
        """One that is not there does nothing."""
        self._path(address).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Erase what has been kept long enough, and drafts of writers that died; returns how many."""
        oldest = time.time() - self._kept_s
        old = [path for path in self._folder.glob("??/*") if path.stat().st_mtime < oldest]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def sweep_others(self, needed: Set[str], older_than_s: float) -> int:
        """Erase what is not among the `needed` addresses and was put longer ago than that, drafts included: left by
        processes that died before anybody was told of it. Returns how many.
        """
        oldest = time.time() - older_than_s
        others = [path for path in self._folder.glob("??/*") if path.name not in needed]
        old = [path for path in others if path.stat().st_mtime < oldest]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def _path(self, address: str) -> Path:
        if len(address) != 64 or not HEX.issuperset(address):
            raise ValueError(f"{address!r} is not the address of a blob")
        return self._folder / address[:2] / address


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with _new(draft) as file:
            file.write(data)
            _sync(file)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _new(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


class BlobUnavailable(Exception):
    """The disk is full or unreadable, the blob has been erased, or its bytes are not what was written."""
