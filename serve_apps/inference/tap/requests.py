"""A request as the tap in the worker knows it. It comes in `SamplingParams.extra_args` under `KEY`, as plain values:

    {"group":    the id that all choices of the request share: a fault of one ends them all,
     "sheet":    path of the request's sheet, made by the replica,
     "records":  [start, stop] of those that are the choice's in it,
     "again":    whether the sheet may be another request's afterwards,
     "layers":   the Layers to capture, ascending; none for a request that is only steered,
     "top":      the last Layer that anybody looks at; none when its tokens are wanted,
     "steering": [{"file", "layers", "rows", "scale", "norm_match", "positions"}]}

The file of a steering vector is float32 [layers, rows, hidden]: one row for every position, or one for each of
`positions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acs.serve_apps.inference.tap.sheet import Layout, Sheets, note_begun
from acs.serve_apps.inference.tap.steering import Vector

KEY = "acs_tap"


class Vectors:
    """Steering vectors in the worker's memory, each loaded once however many running requests share it."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        self._hidden = hidden
        self._device = device
        self._loaded: dict[Any, tuple[Vector, int]] = {}  # key -> vector, users

    def take(self, given: dict[str, Any]) -> Vector:
        key = _key(given)
        vector, users = self._loaded.get(key) or (Vector.load(given, self._hidden, self._device), 0)
        self._loaded[key] = vector, users + 1
        return vector

    def give_back(self, given: dict[str, Any]) -> None:
        vector, users = self._loaded.pop(_key(given))
        if users > 1:
            self._loaded[_key(given)] = vector, users - 1

    def __len__(self) -> int:
        return len(self._loaded)


def _key(given: dict[str, Any]) -> Any:
    positions = given["positions"]
    layers, places = tuple(given["layers"]), None if positions is None else tuple(positions)
    return given["file"], layers, given["scale"], given["norm_match"], places


@dataclass(slots=True, eq=False)
class TappedRequest:
    """A request that has been scheduled and has not ended."""

    id: str
    group: str
    layers: tuple[int, ...]
    top: int | None
    records: np.ndarray  # its own of the sheet, uint8 [capacity, record bytes]
    steering: list[Vector]
    given: dict[str, Any]

    @classmethod
    def begin(
        cls, request_id: str, given: dict[str, Any], sheets: Sheets, vectors: Vectors, hidden: int, dtype: str
    ) -> TappedRequest:
        layers = tuple(given["layers"])
        whole = sheets.records(Path(given["sheet"]), Layout(len(layers), hidden, dtype), again=given["again"])
        records = whole[slice(*given["records"])]
        request = cls(request_id, given["group"], layers, given["top"], records, [], given)
        try:
            for one in given["steering"]:
                request.steering.append(vectors.take(one))
        except BaseException:
            request.end(vectors)
            raise
        note_begun(records)
        return request

    def end(self, vectors: Vectors) -> None:
        for one, _ in zip(self.given["steering"], self.steering, strict=False):  # those that were taken
            vectors.give_back(one)

    @property
    def lasting(self) -> bool:
        """Whether it is steered in each step as in the one before, wherever that stands in the text."""
        return all(vector.positions is None for vector in self.steering)
