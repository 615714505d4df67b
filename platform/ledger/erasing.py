"""Erasing what nobody needs any more, once the events that say so are on disk."""

from __future__ import annotations

from collections.abc import Callable

Erase = Callable[[str], None]  # is told the address of a blob


def erasing(erase: Erase, *addresses: str | None) -> Callable[[], None]:
    """What `Commits.add` calls then."""

    def call() -> None:
        for sha256 in filter(None, addresses):
            erase(sha256)

    return call
