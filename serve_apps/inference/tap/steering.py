"""Steering in the worker: which vectors a request adds where, and the arithmetic of one step at one Layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from acs.platform.inference.contract import STEERED_MAX

Output = Any  # of a block: the residual stream, or its two halves


def halves(output: Output) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The one or two tensors whose sum is the residual stream after a block. Raises TypeError for anything else."""
    if isinstance(output, torch.Tensor):
        return output, None
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(half, torch.Tensor) for half in output):
        return output
    raise TypeError(f"a block returned {type(output).__name__}, not the residual stream or its two halves")


@dataclass(frozen=True, slots=True)
class Vector:
    """One steering vector of a request, ready to be added.

    rows: for each Layer float32 [1, hidden] (every position) or [positions, hidden], scale already in it.
    positions: int64 [positions], the absolute position of each row; None: every position.
    norm_match: the rows have norm `scale` and are multiplied by the norm of the stream that they meet.
    """

    rows: dict[int, torch.Tensor]
    positions: np.ndarray | None
    norm_match: bool

    @classmethod
    def load(cls, given: dict[str, Any], hidden: int, device: torch.device) -> Vector:
        """`given`: see `acs.serve_apps.inference.tap.requests`. Raises ValueError when the file is not of its shape."""
        layers, count = given["layers"], given["rows"]
        values = np.fromfile(given["file"], "<f4").reshape(len(layers), count, hidden)
        tensor = torch.from_numpy(values).to(device)
        if given["norm_match"]:
            norms = tensor.norm(dim=-1, keepdim=True)
            tensor = torch.where(norms > 0, tensor / norms, 0.0)
        tensor = tensor * given["scale"]
        positions = None if given["positions"] is None else np.array(given["positions"], np.int64)
        return cls(dict(zip(layers, tensor, strict=True)), positions, given["norm_match"])

    def at(self, layer: int, start: int, stop: int, position: int) -> Addition | None:
        """What this vector adds when rows start…stop of the batch stand at `position` and after it."""
        rows = self.rows.get(layer)
        if rows is None:
            return None
        if self.positions is None:
            return Addition(np.arange(start, stop), rows, np.zeros(stop - start, np.int64), self.norm_match)
        met = np.flatnonzero((self.positions >= position) & (self.positions < position + stop - start))
        return Addition(self.positions[met] - position + start, rows, met, self.norm_match) if len(met) else None


@dataclass(frozen=True, slots=True)
class Addition:
    """table[which] is added to these rows of the batch."""

    rows: np.ndarray  # int64 [n]
    table: torch.Tensor  # float32 [m, hidden]
    which: np.ndarray  # int64 [n]
    norm_match: bool


class SteeredLayer:
    """All that one step adds at one Layer, as a few operations for the whole batch.

    `rounds[k]` holds the k-th vectors of the requests that meet this Layer, so that within a round no row comes twice
    and each request's vectors add up in its own order.
    """

    def __init__(self, rounds: list[list[Addition]], device: torch.device) -> None:
        rows = np.unique(np.concatenate([addition.rows for additions in rounds for addition in additions]))
        together = len(rows) == rows[-1] - rows[0] + 1
        self._rows: slice | torch.Tensor = (
            slice(int(rows[0]), int(rows[-1]) + 1) if together else torch.from_numpy(rows).to(device)
        )
        self._indices = rows
        self._beyond: torch.Tensor | None = None  # bool [rows, 1]
        self._rounds = [_Round(additions, rows, device) for additions in rounds]
        self._needs_norms = any(addition.norm_match for additions in rounds for addition in additions)

    def apply(self, output: Output) -> None:
        """Change `output` in place: the stream becomes h + what is added, rounded once to the model's dtype, in one
        half, and the other half 0. (Adding to one half alone would round twice.) Other rows are not touched, and those
        that would hold numbers beyond STEERED_MAX stay as they were.
        """
        first, second = halves(output)
        rows = self._rows
        stream = first[rows] if second is None else first[rows] + second[rows]
        steered = stream.to(torch.float32, copy=True)
        norms = steered.norm(dim=-1, keepdim=True) if self._needs_norms else None
        for part in self._rounds:
            part.add(steered, norms)
        self._beyond = ~(steered.abs().amax(-1, keepdim=True) <= STEERED_MAX)
        steered = torch.where(self._beyond, stream, steered)
        if second is None:
            first[rows] = steered.to(first.dtype)
        else:
            second[rows] = steered.to(second.dtype)
            first[rows] = 0

    def rows_beyond_range(self) -> list[int]:
        """Rows of the batch that were not steered in `apply`, since they would have held NaN or too large a number."""
        if self._beyond is None:
            return []
        found: list[int] = self._indices[self._beyond.squeeze(1).cpu().numpy()].tolist()
        return found


class _Round:
    def __init__(self, additions: list[Addition], rows: np.ndarray, device: torch.device) -> None:
        tables: dict[int, tuple[int, torch.Tensor]] = {}  # requests that share a vector share its rows
        starts, end = [], 0
        for addition in additions:
            if id(addition.table) not in tables:
                tables[id(addition.table)] = end, addition.table
                end += len(addition.table)
            starts.append(tables[id(addition.table)][0])
        which = np.concatenate([addition.which + start for addition, start in zip(additions, starts, strict=True)])
        mine = np.concatenate([addition.rows for addition in additions])
        self._table = torch.cat([table for _, table in tables.values()]) if len(tables) > 1 else additions[0].table
        self._which = torch.from_numpy(which).to(device)
        self._mine = None if np.array_equal(mine, rows) else torch.from_numpy(np.searchsorted(rows, mine)).to(device)
        matched = {addition.norm_match for addition in additions}
        self._all_matched = matched == {True}
        self._matched: torch.Tensor | None = None  # bool [n, 1], where some are and some are not
        if len(matched) == 2:
            flags = np.concatenate([np.full(len(addition.rows), addition.norm_match) for addition in additions])
            self._matched = torch.from_numpy(flags).to(device).unsqueeze(1)

    def add(self, steered: torch.Tensor, norms: torch.Tensor | None) -> None:
        """`steered`: float32 [rows, hidden], changed in place; `norms`: [rows, 1], of the stream before steering."""
        added = self._table if len(self._table) == 1 else self._table[self._which]
        if norms is not None and (self._all_matched or self._matched is not None):
            norms = norms if self._mine is None else norms[self._mine]
            added = added * (norms if self._matched is None else torch.where(self._matched, norms, 1.0))
        if self._mine is None:
            steered += added
        else:
            steered[self._mine] += added
