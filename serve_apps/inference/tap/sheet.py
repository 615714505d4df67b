"""A **sheet**: what the worker writes for one request and its replica reads, a file in shared memory that both map.

It has one record for each position of each choice, those of a choice one after the other: a label of two int32
(position + 1, token id), then the rows of the wanted Layers, [layers, hidden], in the model's own dtype. A record of
zeros was never written; a choice's first one says so early that a step with the choice has begun. The replica has taken
the sheet's whole room before it is mapped, so that a full disk is an error of one request and not the death of the
worker.
"""

from __future__ import annotations

import mmap
import os
from array import array
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast
from weakref import WeakValueDictionary

import numpy as np

from acs.platform.inference.contract import STEERED_MAX

LABEL_BYTES = 8
_BEGUN = -1  # in the place of position + 1
ITEM_BYTES = {"float32": 4, "bfloat16": 2}  # the dtypes a tapped model may run in


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

    def map(self) -> None:
        """While nobody waits for it: it takes milliseconds."""
        self._records()

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
