"""Which replica has read the beginning of a prompt before: its engine still has that cached, and reads the rest alone.

Only a hint: the least busy replica is never passed over for one with much more to do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

R = TypeVar("R")

BLOCK_TOKENS = 32  # beginnings are told apart in steps of so many tokens; shorter ones are not worth a detour
REMEMBERED = 100_000  # beginnings, of all replicas together: some 10 MB
MORE_CHOICES = 16  # that a replica may have in hand beyond the least busy one, and still be chosen


class Affinity(Generic[R]):
    def __init__(self) -> None:
        self._readers: OrderedDict[int, R] = OrderedDict()  # beginning → who read it last; the oldest first

    def choose(self, prompt: Sequence[int], replicas: dict[R, int]) -> R:
        """`replicas`: how many choices each has in hand; at least one. The chosen one is remembered as the reader."""
        least = min(replicas, key=lambda replica: replicas[replica])
        if len(replicas) == 1:
            return least
        beginnings = list(_beginnings(prompt))
        chosen = self._reader(beginnings, replicas, replicas[least] + MORE_CHOICES)
        chosen = least if chosen is None else chosen
        for beginning in beginnings:
            self._readers[beginning] = chosen
            self._readers.move_to_end(beginning)
        while len(self._readers) > REMEMBERED:
            self._readers.popitem(last=False)
        return chosen

    def _reader(self, beginnings: Sequence[int], replicas: dict[R, int], most: int) -> R | None:
        """Of the longest beginning."""
        for beginning in reversed(beginnings):
            reader = self._readers.get(beginning)
            if reader is not None and reader in replicas:
                return reader if replicas[reader] <= most else None
        return None


def _beginnings(prompt: Sequence[int]) -> Iterator[int]:
    """A number for each, from the shortest to the longest."""
    so_far = 0
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        so_far = hash((so_far, tuple(prompt[start : start + BLOCK_TOKENS])))
        yield so_far
