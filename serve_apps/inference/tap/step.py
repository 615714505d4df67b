"""One forward pass as the tap sees it: whose the rows of the batch are, what each Layer must do, and what was read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from acs.serve_apps.inference.tap.exchange import LABEL_BYTES, BeyondRange
from acs.serve_apps.inference.tap.requests import TappedRequest
from acs.serve_apps.inference.tap.steering import Addition, Output, SteeredLayer, halves

if TYPE_CHECKING:
    from acs.serve_apps.inference.tap.tap import Tap


class Rows(NamedTuple):
    """Rows start…stop of this step's batch are those of `request`, at `position` and after it."""

    request: TappedRequest
    start: int
    stop: int
    position: int


class Step:
    """The plan of one forward pass, and what it has read."""

    def __init__(self, tap: Tap, rows: list[Rows]) -> None:
        self._tap = tap
        self._rows = rows
        self._layers = tuple(sorted({layer for row in rows for layer in row.request.layers}))
        self._first = min(row.start for row in rows)
        self._last = max(row.stop for row in rows)
        self._pad = LABEL_BYTES // tap.itemsize
        # As the records of a sheet that has all these Layers: label, then [Layers, hidden].
        self._records = tap.buffer(self._last - self._first, self._pad + len(self._layers) * tap.hidden)
        self._columns = {
            layer: self._records[:, self._pad + number * tap.hidden :][:, : tap.hidden]
            for number, layer in enumerate(self._layers)
        }
        self._steered: dict[int, SteeredLayer] = {}
        for layer, rounds in self._additions().items():
            self._steered[layer] = SteeredLayer(rounds, tap.device)
        self._due = {*self._columns, *self._steered}  # Layers whose block has not been run

    def _additions(self) -> dict[int, list[list[Addition]]]:
        """By Layer, in rounds (see `SteeredLayer`)."""
        found: dict[int, list[list[Addition]]] = {}
        for request, start, stop, position in self._rows:
            if not request.steering:
                continue
            try:
                mine = _additions_of(request, start, stop, position)
            except Exception as error:
                self._tap.fail([request], error)
                continue
            for layer, additions in mine.items():
                rounds = found.setdefault(layer, [])
                rounds.extend([] for _ in range(len(additions) - len(rounds)))
                for number, addition in enumerate(additions):
                    rounds[number].append(addition)
        return found

    def at(self, layer: int, output: Output) -> None:
        """Called after each block: steer first, so that what is read is what the next block meets."""
        steered, column = self._steered.get(layer), self._columns.get(layer)
        if steered is None and column is None:
            return
        self._due.discard(layer)
        try:
            if steered is not None:
                steered.apply(output)
            if column is not None:
                first, second = halves(output)
                mine = slice(self._first, self._last)
                if second is None:
                    column.copy_(first[mine])
                else:
                    torch.add(first[mine], second[mine], out=column)
        except Exception as error:
            self._tap.fail((row.request for row in self._rows), error)

    def deliver(self, positions: torch.Tensor, input_ids: torch.Tensor) -> None:
        """Write every request's rows to its sheet. `positions`, `input_ids`: what the model was given, [rows]."""
        try:
            if self._due:  # as in a compiled graph, which calls no hooks
                raise RuntimeError(f"the pass went by the Layers {sorted(self._due)}")
            self._refuse_beyond_range()
            mine = slice(self._first, self._last)
            labels = torch.stack((positions[mine] + 1, input_ids[mine]), 1).to(torch.int32)
            self._records[:, : self._pad] = labels.view(self._records.dtype)
            records = self._records.cpu().view(torch.uint8).numpy()
        except Exception as error:
            self._tap.fail((row.request for row in self._rows), error)
            return
        for row in self._rows:
            if self._tap.requests.get(row.request.id) is not row.request:  # it has failed in this step
                continue
            try:
                self._write(row, records)
            except Exception as error:
                self._tap.fail([row.request], error)

    def _refuse_beyond_range(self) -> None:
        for layer in self._steered.values():
            beyond = layer.rows_beyond_range()
            if beyond:
                touched = (row.request for row in self._rows if any(row.start <= index < row.stop for index in beyond))
                self._tap.fail(touched, BeyondRange())

    def _write(self, row: Rows, records: np.ndarray) -> None:
        """`records`: uint8 [rows, bytes]."""
        request = row.request
        count = min(row.stop - row.start, request.capacity - row.position)
        if count <= 0:  # vLLM may run a step more than the request needs
            return
        mine = records[row.start - self._first :][:count]
        if request.layers != self._layers:
            mine = np.concatenate([mine[:, part] for part in self._parts_of(request)], axis=1)
        written = os.pwrite(request.sheet, np.ascontiguousarray(mine).data, row.position * request.layout.record_bytes)
        if written != mine.nbytes:
            raise OSError(f"{written} of {mine.nbytes} bytes could be written")

    def _parts_of(self, request: TappedRequest) -> Iterator[slice]:
        """The bytes of the records that are this request's."""
        yield slice(LABEL_BYTES)
        size = self._tap.hidden * self._tap.itemsize
        for layer in request.layers:
            start = LABEL_BYTES + self._layers.index(layer) * size
            yield slice(start, start + size)


def _additions_of(request: TappedRequest, start: int, stop: int, position: int) -> dict[int, list[Addition]]:
    """What this step adds to the request's rows at each Layer, in the order of its vectors."""
    found: dict[int, list[Addition]] = {}
    for vector in request.steering:
        for layer in vector.rows:
            addition = vector.at(layer, start, stop, position)
            if addition is not None:
                found.setdefault(layer, []).append(addition)
    return found
