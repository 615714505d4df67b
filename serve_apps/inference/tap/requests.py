"""A request as the tap in the worker knows it. It comes in `SamplingParams.extra_args` under `KEY`, as plain values:

    {"group":    the id that all choices of the request share: a fault of one ends them all,
     "sheet":    path of the sheet, made by the replica,
     "capacity": positions that the sheet may hold,
     "layers":   the Layers to capture, ascending; none for a request that is only steered,
     "steering": [{"file", "layers", "rows", "scale", "norm_match", "positions"}]}

The file of a steering vector is float32 [layers, rows, hidden]: one row for every position, or one for each of
`positions`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from acs.serve_apps.inference.tap.exchange import Layout
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


@dataclass(slots=True)
class TappedRequest:
    """A request that has been scheduled and has not ended."""

    id: str
    group: str
    layers: tuple[int, ...]
    layout: Layout
    capacity: int
    sheet: int  # file descriptor
    steering: list[Vector]
    given: dict[str, Any]

    @classmethod
    def begin(cls, request_id: str, given: dict[str, Any], vectors: Vectors, hidden: int, dtype: str) -> TappedRequest:
        layers = tuple(given["layers"])
        sheet = os.open(given["sheet"], os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        taken: list[dict[str, Any]] = []
        try:
            steering = []
            for one in given["steering"]:
                steering.append(vectors.take(one))
                taken.append(one)
        except BaseException:
            os.close(sheet)
            for one in taken:
                vectors.give_back(one)
            raise
        layout = Layout(len(layers), hidden, dtype)
        return cls(request_id, given["group"], layers, layout, given["capacity"], sheet, steering, given)

    def end(self, vectors: Vectors) -> None:
        os.close(self.sheet)
        for one in self.given["steering"]:
            vectors.give_back(one)
