"""The Ledger: an Account's book of one calendar month (UTC). Tokens granted, held and charged; each Hold resolved once.

A stream never grows beyond a month. Whether tokens suffice is judged when a Hold is placed and only then, so settling
never fails for lack of them; a charge is never larger than its Hold. A Hold settles in the Ledger where it was placed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID, uuid5

from eventsourcing.domain import Aggregate

from acs.events.hold import Hold, HoldStatus, Price, Quote
from acs.events.refused import Refused

REMEMBERED = timedelta(hours=24)  # how long a resolved Hold answers a late or repeated command


def month_of(moment: datetime) -> str:
    """As `2026-11`, in UTC."""
    return moment.astimezone(UTC).isoformat()[:7]


@dataclass(slots=True)
class Use:
    """Tokens of the month, of the account or of one of its keys. `budget` None: unlimited."""

    budget: int | None = None
    held: int = 0
    charged: int = 0

    @property
    def left(self) -> int | None:
        """Never below zero: a budget may be lowered under what is already used."""
        return None if self.budget is None else max(0, self.budget - self.held - self.charged)


@dataclass(slots=True)
class Month:
    """All that a Ledger remembers."""

    account_id: str
    month: str
    account: Use = field(default_factory=Use)
    keys: dict[str, Use] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)  # open ones
    resolved: dict[str, tuple[HoldStatus, datetime]] = field(default_factory=dict)  # of the last 24 h, oldest first

    def uses_of(self, key_id: str) -> tuple[Use, Use]:
        use = self.keys.get(key_id)
        if use is None:
            use = self.keys[key_id] = Use()
        return self.account, use


class Ledger(Aggregate):
    TOPIC = "acs.events.ledger:Ledger"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.ledger:Ledger.Created"
        account_id: str
        month: str  # 2026-11
        budget_tokens: int | None  # the account's standing budget; None: unlimited
        key_budgets_tokens: dict[str, int]  # the standing budgets of its keys that have one

        def apply(self, ledger: Ledger) -> None:
            ledger.book = Month(self.account_id, self.month, Use(self.budget_tokens))
            ledger.book.keys = {key_id: Use(tokens) for key_id, tokens in self.key_budgets_tokens.items()}

    class BudgetChanged(Aggregate.Event):
        TOPIC = "acs.events.ledger:Ledger.BudgetChanged"
        key_id: str | None  # None: the account's own
        budget_tokens: int | None

        def apply(self, ledger: Ledger) -> None:
            use = ledger.book.account if self.key_id is None else ledger.book.uses_of(self.key_id)[1]
            use.budget = self.budget_tokens

    class HoldPlaced(Aggregate.Event):
        TOPIC = "acs.events.ledger:Ledger.HoldPlaced"
        hold_id: str
        account_id: str
        key_id: str
        request_id: str  # the client's or ours, as it stands in X-Request-Id
        model: str
        kind: str  # completion, job, harvest, branch
        owner: str
        user: str | None  # the client's label for whom it asks
        prompt_tokens: int
        choices: int
        max_tokens: int
        prompt_micro_usd_per_million: int
        completion_micro_usd_per_million: int

        def apply(self, ledger: Ledger) -> None:
            hold = Hold(
                self.key_id,
                self.request_id,
                self.model,
                self.owner,
                Quote(self.prompt_tokens, self.choices, self.max_tokens),
                Price(self.prompt_micro_usd_per_million, self.completion_micro_usd_per_million),
                self.timestamp,
            )
            ledger.book.holds[self.hold_id] = hold
            for use in ledger.book.uses_of(self.key_id):
                use.held += hold.tokens

    class HoldSettled(Aggregate.Event):
        TOPIC = "acs.events.ledger:Ledger.HoldSettled"
        hold_id: str
        key_id: str
        request_id: str
        model: str
        prompt_tokens: int
        completion_tokens: int
        cost_pico_usd: int
        http_status: int | None  # what the client was answered; None: it had gone

        def apply(self, ledger: Ledger) -> None:
            ledger.resolve(self.hold_id, HoldStatus.SETTLED, self.timestamp)
            for use in ledger.book.uses_of(self.key_id):
                use.charged += self.prompt_tokens + self.completion_tokens

    class HoldReleased(Aggregate.Event):
        TOPIC = "acs.events.ledger:Ledger.HoldReleased"
        hold_id: str
        reason: str  # an error's code
        http_status: int | None

        def apply(self, ledger: Ledger) -> None:
            ledger.resolve(self.hold_id, HoldStatus.RELEASED, self.timestamp)

    class HoldExpired(Aggregate.Event):
        TOPIC = "acs.events.ledger:Ledger.HoldExpired"
        hold_id: str

        def apply(self, ledger: Ledger) -> None:
            ledger.resolve(self.hold_id, HoldStatus.EXPIRED, self.timestamp)

    class LateSettlementNoted(Aggregate.Event):
        """A Hold already resolved otherwise was to be settled or released. Recorded, never applied."""

        TOPIC = "acs.events.ledger:Ledger.LateSettlementNoted"
        hold_id: str
        resolved_as: str  # a HoldStatus: what stands
        asked_as: str  # settled or released
        prompt_tokens: int
        completion_tokens: int

    def __init__(self) -> None:  # the book is made by the first event
        self.book: Month

    @classmethod
    def open(
        cls, account_id: str, account: UUID, now: datetime, budget: int | None, key_budgets: Mapping[str, int]
    ) -> Ledger:
        """The book of the month of `now`. `account`: the same id as `account_id`, not spelled for people."""
        month = month_of(now)
        return cls._create(
            cls.Created,
            id=cls.id_of(account, month),
            timestamp=now,
            account_id=account_id,
            month=month,
            budget_tokens=budget,
            key_budgets_tokens=dict(key_budgets),
        )

    @classmethod
    def restored(cls, id: UUID, version: int, book: Month) -> Ledger:
        """As its events up to `version` made it: for a checkpoint."""
        ledger = cls.__new__(cls)
        ledger.__base_init__(id, version, datetime.now(UTC))
        ledger.book = book
        return ledger

    @staticmethod
    @lru_cache(maxsize=10_000)
    def id_of(account: UUID, month: str) -> UUID:
        return uuid5(account, month)

    # Commands

    def change_budget(self, key_id: str | None, tokens: int | None, now: datetime) -> None:
        """`key_id` None: the account's own. `tokens` None: unlimited."""
        use = self.book.account if key_id is None else self.book.keys.get(key_id, Use())
        if use.budget != tokens:
            self.trigger_event(self.BudgetChanged, key_id=key_id, budget_tokens=tokens, timestamp=now)

    def fitting(self, quote: Quote, key_id: str, *, min_tokens: int, clamp: bool) -> Quote:
        """The quote as it can be held: itself or, with `clamp`, one of fewer `max_tokens`. Raises BudgetExceeded."""
        lefts = [use.left for use in (self.book.account, self.book.keys.get(key_id)) if use is not None]
        left = min((tokens for tokens in lefts if tokens is not None), default=None)
        if left is None or quote.tokens <= left:
            return quote
        clamped = quote.clamped(left, min_tokens) if clamp else None
        if clamped is None:
            least = quote.prompt_tokens + quote.choices * max(1, min_tokens) if clamp else quote.tokens
            raise BudgetExceeded(f"The request needs at least {least} tokens; {left} are left this month.")
        return clamped

    def place(self, hold_id: str, quote: Quote, **terms: object) -> Hold:
        """The caller has made sure by `fitting`, just now, that the quote fits. `terms`: the other fields of HoldPlaced
        and `timestamp`.
        """
        self.trigger_event(
            self.HoldPlaced,
            hold_id=hold_id,
            account_id=self.book.account_id,
            prompt_tokens=quote.prompt_tokens,
            choices=quote.choices,
            max_tokens=quote.max_tokens,
            **terms,
        )
        return self.book.holds[hold_id]

    def settle(
        self, hold_id: str, prompt_tokens: int, completion_tokens: int, http_status: int | None, now: datetime
    ) -> HoldStatus:
        """Charges what was used; returns how the Hold stands. A repeat changes nothing; a Hold that was resolved
        otherwise stays so, and the attempt is noted. Raises UnknownHold, and ChargeExceedsHold.
        """
        hold = self.book.holds.get(hold_id)
        if hold is None:
            return self._late(hold_id, HoldStatus.SETTLED, prompt_tokens, completion_tokens, now)
        quote = hold.quote
        if (
            prompt_tokens > quote.prompt_tokens or completion_tokens > quote.completion_tokens
        ):  # the two have two prices
            raise ChargeExceedsHold(
                f"{prompt_tokens} + {completion_tokens} tokens were used under a Hold of {quote.prompt_tokens} + "
                f"{quote.completion_tokens}."
            )
        self.trigger_event(
            self.HoldSettled,
            hold_id=hold_id,
            key_id=hold.key_id,
            request_id=hold.request_id,
            model=hold.model,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost_pico_usd=hold.price.cost_pico_usd(prompt_tokens, completion_tokens),
            http_status=http_status,
            timestamp=now,
        )
        return HoldStatus.SETTLED

    def release(self, hold_id: str, reason: str, http_status: int | None, now: datetime) -> HoldStatus:
        """Gives all of it back. Like `settle` otherwise. Raises UnknownHold."""
        if hold_id not in self.book.holds:
            return self._late(hold_id, HoldStatus.RELEASED, 0, 0, now)
        self.trigger_event(self.HoldReleased, hold_id=hold_id, reason=reason, http_status=http_status, timestamp=now)
        return HoldStatus.RELEASED

    def expire(self, hold_id: str, now: datetime) -> HoldStatus:
        """Its owner is gone. Raises UnknownHold."""
        if hold_id in self.book.holds:
            self.trigger_event(self.HoldExpired, hold_id=hold_id, timestamp=now)
        return self.status_of(hold_id)

    def status_of(self, hold_id: str) -> HoldStatus:
        """Raises UnknownHold for one that was never placed here, or that was resolved more than 24 hours ago."""
        if hold_id in self.book.holds:
            return HoldStatus.OPEN
        if hold_id not in self.book.resolved:
            raise UnknownHold(f"There is no Hold {hold_id} of this account in {self.book.month}.")
        return self.book.resolved[hold_id][0]

    def _late(
        self, hold_id: str, asked: HoldStatus, prompt_tokens: int, completion_tokens: int, now: datetime
    ) -> HoldStatus:
        stands = self.status_of(hold_id)
        if stands is not asked:
            self.trigger_event(
                self.LateSettlementNoted,
                hold_id=hold_id,
                resolved_as=stands.value,
                asked_as=asked.value,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                timestamp=now,
            )
        return stands

    # Inside events: what they record has been judged above

    def resolve(self, hold_id: str, status: HoldStatus, moment: datetime) -> None:
        """For the events only."""
        hold = self.book.holds.pop(hold_id)
        for use in self.book.uses_of(hold.key_id):
            use.held -= hold.tokens
        resolved = self.book.resolved
        resolved[hold_id] = (status, moment)
        for oldest in list(itertools.islice(resolved, 2)):
            if moment - resolved[oldest][1] > REMEMBERED:
                del resolved[oldest]


class BudgetExceeded(Refused):
    pass


class UnknownHold(Refused):
    pass


class ChargeExceedsHold(Refused):
    """A fault of the caller: an engine never makes more than was held."""
