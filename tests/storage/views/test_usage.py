"""What an account used adds up to its events."""

from datetime import timedelta

from history import PRICES, History
from view_tables import caught_up

from acs.events.hold import Quote
from acs.events.ids import ACCOUNT, KEY, show
from acs.events.ledger import Ledger
from acs.serve_apps.api.answers import UsageReport
from acs.storage.views.usage import usage_of, usage_of_all


def settlements(store, account, month):
    """The HoldSettled events of a Ledger."""
    ledger_id = Ledger.id_of(account.id, month)
    for _, event in store.read_log(0):
        if isinstance(event, Ledger.HoldSettled) and event.originator_id == ledger_id:
            yield event


def test_the_numbers_add_up_to_the_events(history, store, views):
    for account in history.accounts:
        for month in ("2026-10", "2026-11"):
            usage = usage_of(views, show(ACCOUNT, account.id), month)
            settled = list(settlements(store, account, month))
            tokens = sum(event.prompt_tokens + event.completion_tokens for event in settled)
            assert usage["charged_tokens"] == tokens > 0
            assert usage["spend_micro_usd"] == round(sum(event.cost_pico_usd for event in settled) / 1e6)
            for part in ("by_key", "by_model"):
                assert sum(row["charged_tokens"] for row in usage[part]) == tokens
                assert sum(row["requests"] for row in usage[part]) == len(settled)
            assert sum(row["held_tokens"] for row in usage["by_key"]) == usage["held_tokens"]
            for row in usage["by_model"]:
                of_model = [event for event in settled if event.model == row["model"]]
                assert row["prompt_tokens"] == sum(event.prompt_tokens for event in of_model)
                assert row["completion_tokens"] == sum(event.completion_tokens for event in of_model)


def test_it_has_the_shape_that_the_api_page_documents(history, views):
    usage = usage_of(views, show(ACCOUNT, history.accounts[0].id), "2026-11")
    UsageReport.model_validate(usage)
    assert list(usage) == [
        *("object", "month", "budget_tokens", "held_tokens", "charged_tokens", "left_tokens", "spend_micro_usd"),
        *("by_key", "by_model"),
    ]
    assert list(usage["by_key"][0]) == [
        *("key_id", "name", "budget_tokens", "held_tokens", "charged_tokens", "left_tokens", "requests"),
        "spend_micro_usd",
    ]
    assert list(usage["by_model"][0]) == [
        *("model", "requests", "prompt_tokens", "completion_tokens", "charged_tokens", "spend_micro_usd"),
    ]


def test_an_open_hold_is_held_and_what_is_left_is_less_by_it(store):
    history = History(step=timedelta(seconds=1))
    ada = history.account()
    ada.set_budget(100)
    history.keep(ada)
    history.place(ada, history.keys[ada.id][0], Quote(10, 2, 15))
    history.store(store)
    usage = usage_of(caught_up(store), show(ACCOUNT, ada.id), "2026-10")
    assert (usage["budget_tokens"], usage["held_tokens"], usage["charged_tokens"]) == (100, 40, 0)
    assert usage["left_tokens"] == 60
    assert [row["held_tokens"] for row in usage["by_key"]] == [40, 0]


def test_a_month_without_events_shows_the_standing_budgets(store):
    history = History()
    ada = history.account()
    laptop, desk = history.keys[ada.id]
    ada.set_budget(100)
    laptop.set_budget(7)
    history.keep(ada, laptop)
    history.store(store)
    usage = usage_of(caught_up(store), show(ACCOUNT, ada.id), "2026-10")
    assert (usage["budget_tokens"], usage["left_tokens"]) == (100, 100)
    assert [(row["key_id"], row["budget_tokens"], row["left_tokens"]) for row in usage["by_key"]] == [
        (show(KEY, laptop.id), 7, 7),
        (show(KEY, desk.id), None, None),
    ]
    assert usage["by_model"] == []


def test_a_month_that_has_begun_keeps_its_own_budget_unlimited_ones_too(store):
    history = History()
    ada = history.account()
    history.ledger(ada)  # unlimited
    ada.set_budget(100)  # standing, from the next month on
    history.keep(ada)
    history.store(store)
    views = caught_up(store)
    budgets = [usage_of(views, show(ACCOUNT, ada.id), month)["budget_tokens"] for month in ("2026-10", "2026-11")]
    assert budgets == [None, 100]


def test_a_budget_lowered_under_what_was_used_leaves_nothing_not_less(store):
    history = History()
    ada = history.account()
    history.place(ada, history.keys[ada.id][0], Quote(10, 1, 10))
    history.ledger(ada).change_budget(None, 5, history.now)
    history.keep(history.ledger(ada))
    history.store(store)
    assert usage_of(caught_up(store), show(ACCOUNT, ada.id), "2026-10")["left_tokens"] == 0


def test_a_revoked_key_shows_only_where_it_was_used(store):
    history = History()
    ada = history.account()
    laptop, desk = history.keys[ada.id]
    history.place(ada, laptop, Quote(1, 1, 1))
    laptop.revoke()
    desk.revoke()
    history.keep(laptop, desk)
    history.store(store)
    usage = usage_of(caught_up(store), show(ACCOUNT, ada.id), "2026-10")
    assert [row["name"] for row in usage["by_key"]] == ["laptop"]


def test_spend_is_rounded_to_the_nearest_micro_dollar(store):
    history = History()
    ada = history.account()
    history.place(ada, history.keys[ada.id][0], Quote(5, 1, 4))
    (ledger,) = history.ledgers
    ledger.settle(next(iter(ledger.book.holds)), 5, 4, 200, history.now)
    history.keep(ledger)
    history.store(store)
    pico_usd = 5 * PRICES["prompt_micro_usd_per_million"] + 4 * PRICES["completion_micro_usd_per_million"]
    assert pico_usd == 1_700_033
    assert usage_of(caught_up(store), show(ACCOUNT, ada.id), "2026-10")["spend_micro_usd"] == 2


def test_nobody_has_no_usage(views):
    assert usage_of(views, "acct_nobody", "2026-11") is None


def test_all_accounts_are_listed_with_the_same_numbers(history, views):
    listed = {row.pop("account_id"): row for row in usage_of_all(views, "2026-11")}
    for account in history.accounts:
        usage = usage_of(views, show(ACCOUNT, account.id), "2026-11")
        row = listed[show(ACCOUNT, account.id)]
        assert row.pop("name") == account.name
        assert row.items() <= usage.items()
