"""One forward pass as the tap sees it: whose the rows of the batch are, what each Layer must do, and what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from acs.serve_apps.inference.tap.requests import TappedRequest
from acs.serve_apps.inference.tap.sheet import LABEL_BYTES, BeyondRange
from acs.serve_apps.inference.tap.steering import Addition, Output, halves

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

    def __init__(self, tap: Tap, rows: list[Rows], scheduled: int) -> None:
        """`scheduled`: how many rows the batch has, those of requests that nobody taps among them."""
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
        self._steered = tap.steered_layers(rows)
        self._due = {*self._columns, *self._steered}  # Layers whose block has not been run
        tops = [row.request.top for row in rows]
        all_have_one = None not in tops and sum(row.stop - row.start for row in rows) == scheduled
        self._top = max(top for top in tops if top is not None) if tap.may_end_early and all_have_one else None
        self.top_output: Output | None = None  # once the last block that anybody looks at has been run

    def at(self, layer: int, output: Output) -> None:
        """Called after each block: steer first, so that what is read is what the next block meets."""
        if layer == self._top:
            self.top_output = output
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
            if self._tap.requests.get(row.request.id) is not row.request:
                continue  # it has failed: a label would say that it was served
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
        request, start, stop, position = row
        place = request.records[position : position + stop - start]  # shorter when vLLM runs beyond the last token
        mine = records[start - self._first :][: len(place)]
        if request.layers == self._layers:
            place[:] = mine
            return
        size = self._tap.hidden * self._tap.itemsize
        for number, layer in enumerate(request.layers):
            here, there = LABEL_BYTES + number * size, LABEL_BYTES + self._layers.index(layer) * size
            place[:, here : here + size] = mine[:, there : there + size]
        place[:, :LABEL_BYTES] = mine[:, :LABEL_BYTES]  # last: it says that the rows are there


def additions(
    rows: list[Rows], fail: Callable[[Iterable[TappedRequest], Exception], None]
) -> dict[int, list[list[Addition]]]:
    """What a step adds, by Layer, in rounds (see `SteeredLayer`). A request whose part raises is given to `fail`."""
    found: dict[int, list[list[Addition]]] = {}
    for row in rows:
        try:
            mine = _additions_of(row)
        except Exception as error:
            fail([row.request], error)
            continue
        for layer, in_order in mine.items():
            rounds = found.setdefault(layer, [])
            rounds.extend([] for _ in range(len(in_order) - len(rounds)))
            for number, addition in enumerate(in_order):
                rounds[number].append(addition)
    return found


def _additions_of(row: Rows) -> dict[int, list[Addition]]:
    """What is added to the request's rows at each Layer, in the order of its vectors."""
    found: dict[int, list[Addition]] = {}
    for vector in row.request.steering:
        for layer in vector.rows:
            addition = vector.at(layer, row.start, row.stop, row.position)
            if addition is not None:
                found.setdefault(layer, []).append(addition)
    return found
