"""An auditor of the event log. It reads the rows of the file itself and knows nothing of our aggregates: every rule
about tokens, money and Holds stands here a second time, in the plainest way, and is judged at each event.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PICO_USD_PER_MICRO_USD = 1_000_000
EVERYONE = "everyone"


@dataclass
class Audit:
    budgets: dict[tuple[str, str], int | None] = field(default_factory=dict)  # by user: (ledger, account or key)
    used: Counter[tuple[str, str]] = field(default_factory=Counter)  # tokens held and charged, by user
    charged: Counter[str] = field(default_factory=Counter)  # tokens, by account
    spend_limits: dict[str, int | None] = field(default_factory=dict)  # micro-dollars a day, by account
    spent: Counter[tuple[str, str]] = field(default_factory=Counter)  # pico-dollars, by (day, account)
    placed: dict[str, dict[str, Any]] = field(default_factory=dict)  # every Hold: its HoldPlaced
    ended: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)  # resolved Holds: (how, the event)
    late: list[dict[str, Any]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)  # events, by name

    @property
    def open(self) -> set[str]:
        return set(self.placed) - set(self.ended)

    def how_ended(self, hold_id: str) -> str | None:
        """None: it was never placed, or is open."""
        return self.ended[hold_id][0] if hold_id in self.ended else None


def audit(store: Path) -> Audit:
    """Raises AssertionError at the first event that breaks a rule."""
    found = Audit()
    rules = {
        "Account.SpendLimitSet": _spend_limit_set,
        "PlatformSettings.SpendLimitSet": _platform_spend_limit_set,
        "Ledger.Created": _month_begun,
        "Ledger.BudgetChanged": _budget_changed,
        "Ledger.HoldPlaced": _placed,
        "Ledger.HoldSettled": _settled,
        "Ledger.HoldReleased": _released,
        "Ledger.HoldExpired": _expired,
        "Ledger.LateSettlementNoted": _late_settlement_noted,
    }
    for topic, aggregate, state in rows(store):
        name = topic.partition(":")[2]
        found.kinds[name] += 1
        if name in rules:
            rules[name](found, aggregate, json.loads(state))
    return found


def rows(store: Path) -> list[tuple[str, str, str]]:
    """(topic, id of the aggregate, fields as JSON) of every event, in the order they were stored."""
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=30)
    try:
        return connection.execute(
            "SELECT topic, originator_id, CAST(state AS TEXT) FROM stored_events ORDER BY rowid"
        ).fetchall()
    finally:
        connection.close()


def _spend_limit_set(found: Audit, aggregate: str, event: dict[str, Any]) -> None:
    found.spend_limits[f"acct_{aggregate}"] = event["limit_micro_usd"]


def _platform_spend_limit_set(found: Audit, _: str, event: dict[str, Any]) -> None:
    found.spend_limits[EVERYONE] = event["limit_micro_usd"]


def _month_begun(found: Audit, ledger: str, event: dict[str, Any]) -> None:
    found.budgets[ledger, "account"] = event["budget_tokens"]
    for key_id, tokens in _plain(event["key_budgets_tokens"]).items():
        found.budgets[ledger, key_id] = tokens


def _budget_changed(found: Audit, ledger: str, event: dict[str, Any]) -> None:
    found.budgets[ledger, event["key_id"] or "account"] = event["budget_tokens"]


def _placed(found: Audit, ledger: str, event: dict[str, Any]) -> None:
    hold_id = event["hold_id"]
    assert hold_id not in found.placed, f"{hold_id} is placed twice"
    found.placed[hold_id] = event | {"ledger": ledger}
    _use(found, hold_id, _held_tokens(event))
    for user in _users(found, hold_id):
        budget = found.budgets.get(user)
        assert budget is None or found.used[user] <= budget, f"{hold_id}: {user} uses {found.used[user]} of {budget}"
    _spend(found, hold_id, _held_cost(event))
    for account, limit in found.spend_limits.items():
        if limit is not None and account in (event["account_id"], EVERYONE):
            spent = found.spent[_day(event), account]
            assert spent <= limit * PICO_USD_PER_MICRO_USD, f"{hold_id}: {account} spends {spent} of {limit} micro"


def _settled(found: Audit, _: str, event: dict[str, Any]) -> None:
    hold = found.placed[event["hold_id"]]
    tokens = event["prompt_tokens"] + event["completion_tokens"]
    assert 0 <= tokens <= _held_tokens(hold), f"{event} charges more than {hold} held"
    assert event["cost_pico_usd"] == _cost(hold, event["prompt_tokens"], event["completion_tokens"]), (event, hold)
    assert event["cost_pico_usd"] <= _held_cost(hold), f"{event} costs more than {hold} held"
    assert (event["key_id"], event["model"]) == (hold["key_id"], hold["model"])
    _end(found, "settled", event)
    _use(found, event["hold_id"], tokens)
    _spend(found, event["hold_id"], event["cost_pico_usd"])
    found.charged[hold["account_id"]] += tokens


def _released(found: Audit, _: str, event: dict[str, Any]) -> None:
    _end(found, "released", event)


def _expired(found: Audit, _: str, event: dict[str, Any]) -> None:
    _end(found, "expired", event)


def _late_settlement_noted(found: Audit, _: str, event: dict[str, Any]) -> None:
    assert found.how_ended(event["hold_id"]) == event["resolved_as"] != event["asked_as"], event
    found.late.append(event)


def _end(found: Audit, how: str, event: dict[str, Any]) -> None:
    """What was held is given back."""
    hold_id = event["hold_id"]
    assert hold_id in found.placed, f"{hold_id} ends and was never placed"
    assert hold_id not in found.ended, f"{hold_id} ends a second time: {found.ended[hold_id]}, then {event}"
    found.ended[hold_id] = how, event
    _use(found, hold_id, -_held_tokens(found.placed[hold_id]))
    _spend(found, hold_id, -_held_cost(found.placed[hold_id]))


def _use(found: Audit, hold_id: str, tokens: int) -> None:
    for user in _users(found, hold_id):
        found.used[user] += tokens


def _users(found: Audit, hold_id: str) -> list[tuple[str, str]]:
    hold = found.placed[hold_id]
    return [(hold["ledger"], "account"), (hold["ledger"], hold["key_id"])]


def _spend(found: Audit, hold_id: str, pico_usd: int) -> None:
    """On the day of the Hold, whenever it ends."""
    hold = found.placed[hold_id]
    found.spent[_day(hold), hold["account_id"]] += pico_usd
    found.spent[_day(hold), EVERYONE] += pico_usd


def _held_tokens(hold: dict[str, Any]) -> int:
    return int(hold["prompt_tokens"] + hold["choices"] * hold["max_tokens"])


def _held_cost(hold: dict[str, Any]) -> int:
    return _cost(hold, hold["prompt_tokens"], hold["choices"] * hold["max_tokens"])


def _cost(hold: dict[str, Any], prompt_tokens: int, completion_tokens: int) -> int:
    price = hold["prompt_micro_usd_per_million"], hold["completion_micro_usd_per_million"]
    return int(prompt_tokens * price[0] + completion_tokens * price[1])


def _day(hold: dict[str, Any]) -> str:
    return str(_plain(hold["timestamp"])[:10])


def _plain(value: Any) -> Any:
    """The store writes what JSON lacks as {"_type_": …, "_data_": …}."""
    return value["_data_"] if isinstance(value, dict) and "_data_" in value else value
