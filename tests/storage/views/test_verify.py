import pytest

from acs.storage.views.verify import differences

TAMPERED = {
    "UPDATE ledgers SET charged_tokens = charged_tokens + 1 WHERE month = '2026-11' AND account_id = $account": {
        ("ledgers", "charged_tokens")
    },
    "UPDATE key_ledgers SET held_tokens = -1 WHERE month = '2026-11' AND account_id = $account": {
        ("key_ledgers", "held_tokens")
    },
    "UPDATE ended_holds SET status = 'expired' WHERE status = 'settled' AND account_id = $account": {
        ("holds", "status")
    },
    "UPDATE ended_holds SET charged_pico_usd = 0 WHERE account_id = $account": {("holds", "charged_pico_usd")},
    "UPDATE daily_usage SET requests = requests + 1 WHERE account_id = $account": {("daily_usage", "requests")},
    "UPDATE accounts SET state = 'closed' WHERE account_id = $account": {("accounts", "state")},
    "UPDATE platform_settings SET spend_limit_micro_usd = 0 WHERE $account <> ''": {
        ("platform_settings", "spend_limit_micro_usd")
    },
}


def test_views_made_from_the_events_have_no_difference(store, views):
    assert list(differences(store, views)) == []


@pytest.mark.parametrize("tampering", TAMPERED)
def test_a_changed_row_is_found_and_named(store, views, tampering):
    account = views.read("SELECT account_id FROM ledgers WHERE month = '2026-11' LIMIT 1")[0]["account_id"]
    with views.cursor() as cursor:
        cursor.execute(tampering, {"account": account})
    found = list(differences(store, views))
    assert {(difference.table, difference.column) for difference in found} == TAMPERED[tampering]
    assert all(account in difference.row for difference in found if difference.table in ("accounts", "ledgers"))


def test_a_missing_row_and_one_too_many_are_found(store, views):
    with views.cursor() as cursor:
        cursor.execute("DELETE FROM open_holds")
        cursor.execute("INSERT INTO accounts FROM accounts LIMIT 1")
    found = list(differences(store, views))
    assert {difference.table for difference in found} == {"holds", "accounts"}
    open_tokens = [difference for difference in found if difference.column == "held_tokens"]
    assert {difference.in_views for difference in open_tokens} == {None}
    assert len(open_tokens) == 10


def test_events_after_the_position_of_the_views_are_no_difference(store, views, history):
    history.live(20)
    history.store(store)
    assert list(differences(store, views)) == []
