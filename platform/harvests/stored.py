"""What of a harvest's plan is kept as a blob: whoever goes on with it after a crash decides nothing anew."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from acs.platform.harvests.plan import HarvestPlan


class StoredPlan(msgspec.Struct, array_like=True, frozen=True):
    """`ids`: little-endian int32 of all prompts, one after another; `directions`: float32 [n, hidden]."""

    lengths: list[int]
    ids: bytes
    cuts: list[int]
    directions: bytes | None
    n_directions: int

    @property
    def direction_rows(self) -> NDArray[np.float32] | None:
        """[directions, hidden]"""
        if self.directions is None:
            return None
        return np.frombuffer(self.directions, "<f4").reshape(self.n_directions, -1)

    def prompts(self, first: int, end: int) -> list[list[int]]:
        """Those from `first` to before `end`."""
        start = sum(self.lengths[:first])
        found = []
        for length in self.lengths[first:end]:
            found.append(np.frombuffer(self.ids, "<i4", length, start * 4).tolist())
            start += length
        return found


_decoder = msgspec.msgpack.Decoder(StoredPlan)


def encode(plan: HarvestPlan) -> bytes:
    ids = np.fromiter((id for prompt in plan.prompts for id in prompt), "<i4", plan.n_tokens)
    given = plan.directions
    directions = (None, 0) if given is None else (given.tobytes(), len(given))
    return msgspec.msgpack.encode(StoredPlan([*map(len, plan.prompts)], ids.tobytes(), plan.cuts, *directions))


def decode(data: bytes) -> StoredPlan:
    return _decoder.decode(data)
