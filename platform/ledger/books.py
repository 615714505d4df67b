"""The ledger's memory of tokens and money: every account's Ledger of this month, its open Holds, and the day's spend.

A fold of the event log, moved at once by each command; what a command appended is to be stored before anybody is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from acs.events.hold import PICO_USD_PER_MICRO_USD, Hold, HoldStatus, Price, Quote
from acs.events.ids import ACCOUNT, KEY, parse, show
from acs.events.ledger import REMEMBERED, Ledger, UnknownHold, month_of
from acs.events.refused import Refused
from acs.platform.ledger.contract import Open, Release, Settle
from acs.platform.ledger.key_table import AccountRow, KeyTable
from acs.platform.ledger.spend import EVERYONE, Spend
from acs.storage.event_store import Event


class Books:
    def __init__(self, table: KeyTable, prices: Mapping[str, Price]) -> None:
        """`prices`: by model."""
        self._table = table
        self._prices = prices
        self.ledgers: dict[UUID, Ledger] = {}
        self._of_account: dict[str, list[Ledger]] = {}  # its months, oldest first
        self.open_holds: dict[str, tuple[Ledger, Hold]] = {}
        self.spend = Spend()

    def apply(self, event: Any) -> None:
        """One event of a Ledger, as the log has it."""
        ledger = self.ledgers.get(event.originator_id)
        if ledger is None:
            self.keep(ledger := event.mutate(None))
        else:
            event.mutate(ledger)
        self._follow(ledger, event)

    def keep(self, ledger: Ledger) -> None:
        """A month that has begun, or that a checkpoint remembers, with its open Holds."""
        self.ledgers[ledger.id] = ledger
        self._of_account.setdefault(ledger.book.account_id, []).append(ledger)
        self.open_holds.update((hold_id, (ledger, hold)) for hold_id, hold in ledger.book.holds.items())

    def status_of(self, hold_id: str, account_id: str) -> HoldStatus | None:
        """None: it was never placed, or was resolved more than 24 hours ago."""
        try:
            return self._ledger_with(hold_id, account_id).status_of(hold_id)
        except UnknownHold:
            return None

    def judge(self, order: Open, now: datetime) -> tuple[Ledger, Quote]:
        """What a Hold would be placed on. Raises SpendLimitReached or BudgetExceeded."""
        account = self._table.account(_known(ACCOUNT, order.account_id))
        assert account is not None, "its key was judged just now"
        ledger = self._ledger_of(account, now)
        self._check_spend(account, 1, now)
        quote = Quote(order.prompt_tokens, order.choices, order.max_tokens)
        quote = ledger.fitting(quote, order.key_id, min_tokens=order.min_tokens, clamp=order.clamp)
        cost = self._prices[order.model].cost_pico_usd(quote.prompt_tokens, quote.completion_tokens)
        self._check_spend(account, cost, now)
        return ledger, quote

    # Commands: each returns what it answers and the events it appended

    def place(self, order: Open, owner: str, now: datetime) -> tuple[Hold, Sequence[Event]]:
        """Raises SpendLimitReached or BudgetExceeded."""
        ledger, quote = self.judge(order, now)
        price = self._prices[order.model]
        hold = ledger.place(
            order.hold_id,
            quote,
            key_id=order.key_id,
            request_id=order.request_id,
            model=order.model,
            kind=order.kind,
            owner=owner,
            user=order.user,
            prompt_micro_usd_per_million=price.prompt_micro_usd_per_million,
            completion_micro_usd_per_million=price.completion_micro_usd_per_million,
            timestamp=now,
        )
        return hold, self._appended(ledger)

    def settle(self, command: Settle, now: datetime) -> tuple[HoldStatus, Sequence[Event]]:
        """Raises UnknownHold, ChargeExceedsHold."""
        ledger = self._ledger_with(command.hold_id, command.account_id)
        used = (command.prompt_tokens, command.completion_tokens)
        status = ledger.settle(command.hold_id, *used, command.http_status, now)
        return status, self._appended(ledger)

    def release(self, command: Release, now: datetime) -> tuple[HoldStatus, Sequence[Event]]:
        """Raises UnknownHold."""
        ledger = self._ledger_with(command.hold_id, command.account_id)
        status = ledger.release(command.hold_id, command.reason, command.http_status, now)
        return status, self._appended(ledger)

    def expire(self, hold_id: str, now: datetime) -> Sequence[Event]:
        """Of an open Hold."""
        ledger, _ = self.open_holds[hold_id]
        ledger.expire(hold_id, now)
        return self._appended(ledger)

    def note_budgets(self, account_id: str, now: datetime) -> Sequence[Event]:
        """A standing budget has changed: so does this month's, if it has begun."""
        account = self._table.account(_known(ACCOUNT, account_id))
        assert account is not None, "its budget was changed just now"
        ledger = self.ledgers.get(Ledger.id_of(account.id, month_of(now)))
        if ledger is None:
            return ()
        ledger.change_budget(None, account.budget_tokens, now)
        for key in self._table.keys_of(account.id):
            ledger.change_budget(show(KEY, key.id), key.budget_tokens, now)
        return self._appended(ledger)

    # Inside

    def _ledger_of(self, account: AccountRow, now: datetime) -> Ledger:
        """This month's, begun if need be, with the standing budgets of the account and its keys."""
        id = Ledger.id_of(account.id, month_of(now))
        ledger = self.ledgers.get(id)
        if ledger is None:
            self._retire(now)
            budgets = {show(KEY, key.id): key.budget_tokens for key in self._table.keys_of(account.id)}
            ledger = Ledger.open(
                show(ACCOUNT, account.id),
                account.id,
                now,
                account.budget_tokens,
                {key_id: tokens for key_id, tokens in budgets.items() if tokens is not None},
            )
            self.keep(ledger)
        return ledger

    def _ledger_with(self, hold_id: str, account_id: str) -> Ledger:
        """The month in which the Hold was placed. Raises UnknownHold."""
        if hold_id in self.open_holds:
            return self.open_holds[hold_id][0]
        for ledger in self._of_account.get(account_id, ()):
            if hold_id in ledger.book.resolved:
                return ledger
        raise UnknownHold(f"There is no Hold {hold_id} of the account {account_id}.")

    def _check_spend(self, account: AccountRow, more_pico_usd: int, now: datetime) -> None:
        everyone = "of the platform", EVERYONE, self._table.spend_limit_micro_usd
        own = "of the account", show(ACCOUNT, account.id), account.spend_limit_micro_usd
        for whose, account_id, limit_micro_usd in (own, everyone):
            if limit_micro_usd is None or not more_pico_usd:
                continue
            spent = self.spend.of(now, account_id)
            if spent + more_pico_usd > limit_micro_usd * PICO_USD_PER_MICRO_USD:
                raise SpendLimitReached(
                    f"The spend limit {whose} is {limit_micro_usd} micro-dollars a day; "
                    f"{spent // PICO_USD_PER_MICRO_USD} are spent or held."
                )

    def _appended(self, ledger: Ledger) -> Sequence[Event]:
        events = ledger.collect_events()
        for event in events:
            self._follow(ledger, event)
        return events

    def _follow(self, ledger: Ledger, event: Any) -> None:
        match event:
            case Ledger.HoldPlaced():
                hold = ledger.book.holds[event.hold_id]
                self.open_holds[event.hold_id] = ledger, hold
                self.spend.add(hold.placed_at, ledger.book.account_id, hold.cost_pico_usd)
            case Ledger.HoldSettled():
                _, hold = self.open_holds.pop(event.hold_id)
                self.spend.add(hold.placed_at, ledger.book.account_id, event.cost_pico_usd - hold.cost_pico_usd)
            case Ledger.HoldReleased() | Ledger.HoldExpired():
                _, hold = self.open_holds.pop(event.hold_id)
                self.spend.add(hold.placed_at, ledger.book.account_id, -hold.cost_pico_usd)

    def _retire(self, now: datetime) -> None:
        """Forget the months that nothing can ask for any more."""
        oldest = month_of(now - REMEMBERED)
        for id, ledger in list(self.ledgers.items()):
            if ledger.book.month < oldest and not ledger.book.holds:
                del self.ledgers[id]
                self._of_account[ledger.book.account_id].remove(ledger)


def _known(kind: str, text: str) -> UUID:
    return parse(kind, text) or _unspelled(text)


def _unspelled(text: str) -> NoReturn:
    raise ValueError(f"{text!r} is not an id")


class SpendLimitReached(Refused):
    pass
