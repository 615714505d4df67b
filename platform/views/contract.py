"""What the views answer, and how they fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

NAME = "views"  # of the actor


class Views(Protocol):
    """What an ingress asks of them."""

    async def usage(self, account_id: str, month: str) -> dict[str, Any]:
        """The Usage object, with everything that was acknowledged before the call. Raises PartUnavailable."""


@dataclass(frozen=True, slots=True)
class Lag:
    position: int  # of the last event in the views
    events: int  # that are stored and not in the views
    seconds: float  # since the views had all events; 0.0 while they do


class ViewsUnavailable(Exception):
    """They have not reached the events in time, or cannot be opened: they are being made again, or the disk is full."""


class NoSuchAccount(Exception):
    pass
