"""Events as an operator reads them: one object each, ids as people see them, no secret and no digest."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from acs.events.account import Account
from acs.events.api_key import ApiKey
from acs.events.ids import ACCOUNT, KEY, show
from acs.events.ledger import Ledger

LIBRARYS = ("originator_id", "originator_version", "originator_topic", "timestamp")
SECRETS = ("digest", "key_digest", "request_sha256")  # a short text can be guessed from its digest
HIDDEN = frozenset({*LIBRARYS, *SECRETS})


class EventLines:
    """Knows whose a key and a ledger are from the events that made them: give it every event, in order."""

    def __init__(self) -> None:
        self._account_of: dict[UUID, str] = {}

    def line(self, position: int, event: Any) -> dict[str, Any]:
        """`position`, `at`, `kind` (`Ledger.HoldPlaced`), the ids that it has, then its other fields."""
        line = {"position": position, "at": event.timestamp.isoformat(), "kind": type(event).__qualname__}
        line |= self._ids(event)
        for name, value in vars(event).items():
            if name not in HIDDEN and name not in line:
                line[name] = value
        return line

    def _ids(self, event: Any) -> dict[str, str]:
        id = event.originator_id
        match event:
            case Account.Created():
                self._account_of[id] = show(ACCOUNT, id)
            case ApiKey.Created():
                self._account_of[id] = show(ACCOUNT, event.account_id)
            case Ledger.Created():
                self._account_of[id] = event.account_id
        ids = {"account_id": self._account_of[id]} if id in self._account_of else {}
        if isinstance(event, ApiKey.Event | ApiKey.Created):
            ids["key_id"] = show(KEY, id)
        return ids
