"""A circuit breaker: after several failures in a row it refuses at once for a while, then lets one request probe."""

from __future__ import annotations

import time
from collections.abc import Callable

from acs.platform.errors import CircuitOpen


class Breaker:
    """One for each model of an ingress. Only 502 and 504 count; an abort or a 4xx says nothing about the engine.

    A request that `admit` lets pass must end in exactly one of `succeeded`, `failed` and `abandoned`.
    """

    def __init__(self, failures: int, open_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._open_s = open_s
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None
        self._probing = False

    def admit(self) -> bool:
        """Whether the request is the probe. Raises CircuitOpen, with the seconds left, while the breaker is open or its
        probe runs.
        """
        if self._open_until is None:
            return False
        left_s = self._open_until - self._clock()
        if left_s > 0 or self._probing:
            raise CircuitOpen(
                f"The model failed {self._limit} times in a row; requests are refused for {self._open_s:g} s.",
                retry_after_s=max(1.0, left_s),
            )
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._failures, self._open_until, self._probing = 0, None, False

    def failed(self) -> None:
        self._failures += 1
        if self._probing or self._failures >= self._limit:
            self._open_until = self._clock() + self._open_s
        self._probing = False

    def abandoned(self, probe: bool) -> None:
        """The request ended without a word about the engine; after a probe the next one is free to be it."""
        if probe:
            self._probing = False
