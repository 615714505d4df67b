"""An Account: whose keys, tokens and work these are. Suspended, none of its keys is accepted; nothing is lost."""

from __future__ import annotations

from uuid import UUID

from eventsourcing.domain import Aggregate, event

from acs.events.ids import uuid7
from acs.events.names import check_email, check_name


class Account(Aggregate):
    TOPIC = "acs.events.account:Account"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.account:Account.Created"
        name: str
        email: str

    class Suspended(Aggregate.Event):
        TOPIC = "acs.events.account:Account.Suspended"

    class Restored(Aggregate.Event):
        TOPIC = "acs.events.account:Account.Restored"

    class BudgetSet(Aggregate.Event):
        TOPIC = "acs.events.account:Account.BudgetSet"
        budget_tokens: int | None  # a calendar month, until changed; None: unlimited

    class SpendLimitSet(Aggregate.Event):
        TOPIC = "acs.events.account:Account.SpendLimitSet"
        limit_micro_usd: int | None  # a UTC day, until changed; None: none

    @classmethod
    def create(cls, *, name: str, email: str) -> Account:
        """Raises InvalidName or InvalidEmail."""
        check_name(name)
        check_email(email)
        return cls(name=name, email=email)

    def suspend(self) -> None:
        if not self.suspended:
            self._suspend()

    def restore(self) -> None:
        if self.suspended:
            self._restore()

    def set_budget(self, tokens: int | None) -> None:
        if tokens != self.budget_tokens:
            self._set_budget(budget_tokens=tokens)

    def set_spend_limit(self, micro_usd: int | None) -> None:
        if micro_usd != self.spend_limit_micro_usd:
            self._set_spend_limit(limit_micro_usd=micro_usd)

    # Events: what they record has been judged above. They run again at every load and never refuse.

    @event(Created)
    def __init__(self, *, name: str, email: str) -> None:
        self.name = name
        self.email = email
        self.suspended = False
        self.budget_tokens: int | None = None
        self.spend_limit_micro_usd: int | None = None

    @event(Suspended)
    def _suspend(self) -> None:
        self.suspended = True

    @event(Restored)
    def _restore(self) -> None:
        self.suspended = False

    @event(BudgetSet)
    def _set_budget(self, *, budget_tokens: int | None) -> None:
        self.budget_tokens = budget_tokens

    @event(SpendLimitSet)
    def _set_spend_limit(self, *, limit_micro_usd: int | None) -> None:
        self.spend_limit_micro_usd = limit_micro_usd

    @staticmethod
    def create_id(*_: object, **__: object) -> UUID:
        return uuid7()
