"""An ApiKey of an Account: known by the SHA-256 of its secret, so that a stolen event store opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from uuid import UUID

from eventsourcing.domain import Aggregate, event

from acs.events.ids import uuid7
from acs.events.names import check_name
from acs.events.refused import Refused

SECRET_PREFIX = "sk-acs-"
SECRET_BYTES = 32  # 256 random bits: 43 URL-safe characters
SHOWN_CHARACTERS = len(SECRET_PREFIX) + 4  # what lists show, to tell keys apart


def new_secret() -> str:
    """`sk-acs-` and 43 URL-safe characters. Whoever asks for it shows it once and keeps it nowhere."""
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> str:
    """The SHA-256 of a key, 64 hex digits. One round is enough: a random secret cannot be guessed from it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class ApiKey(Aggregate):
    TOPIC = "acs.events.api_key:ApiKey"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.api_key:ApiKey.Created"
        account_id: UUID
        name: str
        digest: str  # SHA-256, 64 hex digits
        prefix: str  # `sk-acs-` and 4 characters

    class Renamed(Aggregate.Event):
        TOPIC = "acs.events.api_key:ApiKey.Renamed"
        name: str

    class Disabled(Aggregate.Event):
        TOPIC = "acs.events.api_key:ApiKey.Disabled"

    class Enabled(Aggregate.Event):
        TOPIC = "acs.events.api_key:ApiKey.Enabled"

    class Revoked(Aggregate.Event):
        TOPIC = "acs.events.api_key:ApiKey.Revoked"

    class BudgetSet(Aggregate.Event):
        TOPIC = "acs.events.api_key:ApiKey.BudgetSet"
        budget_tokens: int | None  # a calendar month, until changed; None: only the account's own

    @classmethod
    def create(cls, *, account_id: UUID, name: str, secret: str) -> ApiKey:
        """Raises InvalidName."""
        check_name(name)
        return cls(account_id=account_id, name=name, digest=digest_of(secret), prefix=secret[:SHOWN_CHARACTERS])

    def rename(self, name: str) -> None:
        """Raises InvalidName or KeyIsRevoked."""
        self._check_not_revoked()
        check_name(name)
        if name != self.name:
            self._rename(name=name)

    def disable(self) -> None:
        """Raises KeyIsRevoked."""
        self._check_not_revoked()
        if not self.disabled:
            self._disable()

    def enable(self) -> None:
        """Raises KeyIsRevoked."""
        self._check_not_revoked()
        if self.disabled:
            self._enable()

    def revoke(self) -> None:
        """For good."""
        if not self.revoked:
            self._revoke()

    def set_budget(self, tokens: int | None) -> None:
        """Raises KeyIsRevoked."""
        self._check_not_revoked()
        if tokens != self.budget_tokens:
            self._set_budget(budget_tokens=tokens)

    def _check_not_revoked(self) -> None:
        if self.revoked:
            raise KeyIsRevoked(f"The key {self.prefix}… is revoked, which is final.")

    # Events: what they record has been judged above. They run again at every load and never refuse.

    @event(Created)
    def __init__(self, *, account_id: UUID, name: str, digest: str, prefix: str) -> None:
        self.account_id = account_id
        self.name = name
        self.digest = digest
        self.prefix = prefix
        self.disabled = False
        self.revoked = False
        self.budget_tokens: int | None = None

    @event(Renamed)
    def _rename(self, *, name: str) -> None:
        self.name = name

    @event(Disabled)
    def _disable(self) -> None:
        self.disabled = True

    @event(Enabled)
    def _enable(self) -> None:
        self.disabled = False

    @event(Revoked)
    def _revoke(self) -> None:
        self.revoked = True

    @event(BudgetSet)
    def _set_budget(self, *, budget_tokens: int | None) -> None:
        self.budget_tokens = budget_tokens

    @staticmethod
    def create_id(*_: object, **__: object) -> UUID:
        return uuid7()


class KeyIsRevoked(Refused):
    pass
