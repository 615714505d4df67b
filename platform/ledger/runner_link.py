"""The link of the one runner: who it is, for how long it has been away, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from acs.platform.clock import Clock


class Run(Protocol):
    """What is run by number: of runs that no longer count nothing is told."""

    @property
    def runs(self) -> int: ...

    @property
    def runner(self) -> str | None: ...

    @property
    def status(self) -> str: ...


class OfRun(Protocol):
    @property
    def run(self) -> int: ...


W = TypeVar("W", bound=OfRun)


class RunnerLink(Generic[W]):
    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._tell: Callable[[W], None] = _nobody_listens
        self._unlinked_since = clock.now()
        self.runner: str | None = None  # the one that is linked

    def came(self, name: str, tell: Callable[[W], None]) -> None:
        """It takes the place of any other, which is gone: there is one at a time."""
        self.runner, self._tell = name, tell

    def left(self, name: str) -> bool:
        """Its link is gone, and perhaps only that. False: another has taken its place before."""
        if name != self.runner:
            return False
        self.runner, self._tell = None, _nobody_listens
        self._unlinked_since = self._clock.now()
        return True

    @property
    def stays_away(self) -> bool:
        """For a lease by now: what it ran is lost."""
        return self.runner is None and self._clock.now() - self._unlinked_since >= self._lease_s

    def telling(self, record: Run, work: W) -> Callable[[], None]:
        """What tells the runner, if its run still counts by then."""

        def tell() -> None:
            if record.status == "running" and (record.runs, record.runner) == (work.run, self.runner):
                self._tell(work)

        return tell


def _nobody_listens(work: object) -> None:
    """Without a runner; one that comes is told all that it has to run."""
