"""What is kept of a prompt's residual stream: all rows, the last, their mean; as they are, or projected."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acs.platform.inference.contract import Captured


def bits_of(piece: Captured) -> NDArray[Any]:
    """[layers, positions, hidden] as the engine sent it: float32, or uint16 that are the bits of bfloat16."""
    return np.frombuffer(piece.data, {"float32": "<f4", "bfloat16": "<u2"}[piece.dtype]).reshape(piece.shape)


def kept(values: NDArray[Any], positions: str, directions: NDArray[np.float32] | None) -> NDArray[Any]:
    """[layers, rows, width]. `positions`: all, last or mean. What is computed is computed in float64 and rounded once,
    to float32; what is only chosen stays as it is.
    """
    if positions == "last":
        values = values[:, -1:].copy()  # else all positions stay in memory with it
    if positions != "mean" and directions is None:
        return values
    exact = _widened(values).astype(np.float64)
    if positions == "mean":
        exact = exact.mean(axis=1, keepdims=True)
    if directions is not None:
        exact = exact @ directions.astype(np.float64).T
    return exact.astype(np.float32)


def _widened(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype != np.uint16:
        return values
    widened: NDArray[np.float32] = np.left_shift(values, 16, dtype=np.uint32).view(np.float32)
    return widened
