"""Statistics of a Layer's rows: how long they are, and each dimension's mean and standard deviation.

Each row group, then each shard, is summed by itself, and sums are merged by the formulas of Chan, Golub and LeVeque: no
difference of two large numbers is ever taken, so nothing is lost however many rows there are. The first token of a
prompt is left out: most models park numbers there that are hundreds of times larger than all others.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_BLOCK_ROWS = 1024  # of float64 at a time: they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one Layer. `mean`, `squares`: [width]; `squares` sums the squared differences from the mean."""

    rows: int
    norm: float  # the mean length of a row
    mean: Floats
    squares: Floats

    @classmethod
    def of(cls, rows: NDArray[np.float32]) -> Statistics:
        """`rows`: [rows, width]."""
        blocks = (rows[start : start + _BLOCK_ROWS] for start in range(0, len(rows), _BLOCK_ROWS))
        return reduce(cls.merged, map(cls._of_block, blocks), cls.empty(rows.shape[1]))

    @classmethod
    def empty(cls, width: int) -> Statistics:
        return cls(0, 0.0, np.zeros(width), np.zeros(width))

    @classmethod
    def _of_block(cls, rows: NDArray[np.float32]) -> Statistics:
        block = rows.astype(np.float64)
        norm = float(np.sqrt(np.einsum("ij,ij->i", block, block)).mean())
        mean = block.mean(axis=0)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            block -= mean
        return cls(len(block), norm, mean, np.einsum("ij,ij->j", block, block))

    def merged(self, other: Statistics) -> Statistics:
        """Of the rows of both."""
        if not self.rows:
            return other
        rows = self.rows + other.rows
        share = other.rows / rows
        with np.errstate(invalid="ignore"):
            apart = other.mean - self.mean
            return Statistics(
                rows,
                self.norm + (other.norm - self.norm) * share,
                self.mean + apart * share,
                self.squares + other.squares + apart**2 * (self.rows * share),
            )

    def summary(self) -> dict[str, Any]:
        """For people, as JSON: null where there were no rows, or where a row held infinity."""
        deviation = np.sqrt(self.squares / max(1, self.rows))
        return {
            "rows": self.rows,
            "mean_norm": _number(self.norm) if self.rows else None,
            "mean": [_number(x) for x in self.mean] if self.rows else None,
            "std": [_number(x) for x in deviation] if self.rows else None,
        }


def _number(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def encode(layers: list[Statistics]) -> bytes:
    """Exactly, as text: for a shard's own metadata."""
    return msgspec.json.encode([(one.rows, one.norm.hex(), _text(one.mean), _text(one.squares)) for one in layers])


def decode(data: bytes) -> list[Statistics]:
    rows = msgspec.json.decode(data, type=list[tuple[int, str, str, str]])
    return [
        Statistics(count, float.fromhex(norm), _floats(mean), _floats(squares)) for count, norm, mean, squares in rows
    ]


def _text(values: Floats) -> str:
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def _floats(text: str) -> Floats:
    return np.frombuffer(base64.b64decode(text), "<f8")
