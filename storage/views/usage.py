"""What an account used in a month: the answer of GET /v1/usage, and of `acs usage`."""

from __future__ import annotations

from datetime import date
from typing import Any

from acs.events.hold import PICO_USD_PER_MICRO_USD
from acs.storage.views.database import ViewsDatabase

# A null budget means unlimited, so the null of a ledger wins over the account's standing budget.
ACCOUNTS = """
SELECT
    accounts.account_id, name,
    CASE WHEN ledgers.month IS NULL THEN accounts.budget_tokens ELSE ledgers.budget_tokens END AS budget_tokens,
    coalesce(held_tokens, 0) AS held_tokens,
    coalesce(charged_tokens, 0) AS charged_tokens,
    coalesce(charged_pico_usd, 0) AS charged_pico_usd
FROM accounts LEFT JOIN ledgers ON ledgers.account_id = accounts.account_id AND ledgers.month = $month
WHERE coalesce(accounts.account_id = $account_id, true)
ORDER BY created_at, accounts.rowid
"""

# Every key that could be used now, and those that were used in the month.
BY_KEY = """
SELECT
    key_id, name,
    CASE WHEN ledgers.month IS NULL THEN keys.budget_tokens ELSE key_ledgers.budget_tokens END AS budget_tokens,
    coalesce(key_ledgers.held_tokens, 0) AS held_tokens,
    coalesce(key_ledgers.charged_tokens, 0) AS charged_tokens,
    coalesce(requests, 0) AS requests,
    coalesce(key_ledgers.charged_pico_usd, 0) AS charged_pico_usd
FROM keys
LEFT JOIN ledgers ON ledgers.account_id = keys.account_id AND ledgers.month = $month
LEFT JOIN (FROM key_ledgers WHERE account_id = $account_id AND month = $month) AS key_ledgers USING (key_id)
LEFT JOIN (
    SELECT key_id, sum(requests)::BIGINT AS requests
    FROM daily_usage
    WHERE account_id = $account_id AND day >= $first_day AND day < $first_day + INTERVAL 1 MONTH
    GROUP BY ALL
) USING (key_id)
WHERE keys.account_id = $account_id AND (state <> 'revoked' OR key_ledgers.key_id IS NOT NULL)
ORDER BY keys.created_at, keys.rowid
"""

BY_MODEL = """
SELECT
    model,
    sum(requests)::BIGINT AS requests,
    sum(prompt_tokens)::BIGINT AS prompt_tokens,
    sum(completion_tokens)::BIGINT AS completion_tokens,
    sum(charged_tokens)::BIGINT AS charged_tokens,
    sum(charged_pico_usd)::BIGINT AS charged_pico_usd
FROM daily_usage
WHERE account_id = $account_id AND day >= $first_day AND day < $first_day + INTERVAL 1 MONTH
GROUP BY ALL
HAVING sum(requests) > 0
ORDER BY model
"""


def usage_of(views: ViewsDatabase, account_id: str, month: str) -> dict[str, Any] | None:
    """The Usage object of the contract; `month` as 2026-11. None when there is no such account.

    A month without events of the account shows the standing budgets. Spend is that of charges, to the nearest
    micro-dollar in each place.
    """
    terms = {"account_id": account_id, "month": month, "first_day": date.fromisoformat(f"{month}-01")}
    with views.reading() as read:  # one state for all three
        account = read(ACCOUNTS, terms)
        by_key, by_model = read(BY_KEY, terms), read(BY_MODEL, terms)
    if not account:
        return None
    return {
        "object": "usage",
        "month": month,
        **_shown({name: value for name, value in account[0].items() if name not in ("account_id", "name")}),
        "by_key": [_shown(row) for row in by_key],
        "by_model": [_shown(row) for row in by_model],
    }


def usage_of_all(views: ViewsDatabase, month: str) -> list[dict[str, Any]]:
    """A row an account, oldest first, in the same words."""
    return [_shown(row) for row in views.read(ACCOUNTS, {"account_id": None, "month": month})]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """What is left, where there is a budget line, behind what was charged; and money in the unit that people read."""
    pico_usd = row.pop("charged_pico_usd")
    shown: dict[str, Any] = {}
    for name, value in row.items():
        shown[name] = value
        if name == "charged_tokens" and "budget_tokens" in row:
            budget = row["budget_tokens"]
            shown["left_tokens"] = None if budget is None else max(0, budget - row["held_tokens"] - value)
    return {**shown, "spend_micro_usd": (pico_usd + PICO_USD_PER_MICRO_USD // 2) // PICO_USD_PER_MICRO_USD}
