import pytest
from local_ledger import accounts_of

from acs.events.api_key import KeyIsRevoked, digest_of
from acs.events.names import InvalidName
from acs.platform.ledger.accounts import KEYS_PER_ACCOUNT, AccountNotFound, KeyNotFound, TooManyKeys
from acs.platform.ledger.contract import Standing
from acs.platform.ledger.key_table import KeyTable
from acs.storage.event_store import EventStoreUnavailable, open_event_store


@pytest.fixture
def store(tmp_path):
    store = open_event_store(tmp_path / "events.sqlite")
    yield store
    store.close()


@pytest.fixture
def ledger(store):
    return accounts_of(store)


@pytest.fixture
def account(ledger):
    return f"acct_{ledger.create_account('Ada', 'ada@lab.org').id.hex}"


def make_key(ledger, account, name="laptop"):
    made = ledger.create_key(account, name)
    return f"key_{made.row.id.hex}", made.secret


def standing(ledger, secret):
    _, keys = ledger.table.everything()
    (known,) = [key for key in keys if key.digest == digest_of(secret)]
    return known.standing


def test_a_ledger_that_starts_again_knows_what_the_former_one_knew(store, ledger, account):
    revoked, first = make_key(ledger, account)
    disabled, second = make_key(ledger, account)
    _, third = make_key(ledger, account)
    ledger.revoke_key(revoked)
    ledger.disable_key(disabled)
    ledger.rename_key(disabled, "desk")
    ledger.suspend_account(account)
    again = accounts_of(store)
    assert again.version == ledger.version == 8
    assert again.list_accounts() == ledger.list_accounts()
    assert again.list_keys(account) == ledger.list_keys(account)
    assert again.table.everything() == ledger.table.everything()
    assert [standing(again, secret) for secret in (first, second, third)] == ["revoked", "disabled", "suspended"]


def test_the_state_of_a_key_wins_over_the_state_of_its_account(ledger, account):
    key, secret = make_key(ledger, account)
    ledger.suspend_account(account)
    assert standing(ledger, secret) is Standing.SUSPENDED
    ledger.disable_key(key)
    assert standing(ledger, secret) is Standing.DISABLED
    ledger.revoke_key(key)
    ledger.restore_account(account)
    assert standing(ledger, secret) is Standing.REVOKED


def test_a_command_that_changes_nothing_leaves_the_version(ledger, account):
    key, _ = make_key(ledger, account)
    version = ledger.version
    ledger.enable_key(key)
    ledger.rename_key(key, "laptop")
    ledger.restore_account(account)
    assert ledger.version == version


def test_a_refused_command_appends_nothing(ledger, account):
    key, _ = make_key(ledger, account)
    ledger.revoke_key(key)
    version = ledger.version
    with pytest.raises(KeyIsRevoked):
        ledger.enable_key(key)
    with pytest.raises(InvalidName):
        ledger.create_key(account, "")
    assert ledger.version == version


@pytest.mark.parametrize("id", ["", "acct_" + "0" * 32, "nonsense", "key_" + "0" * 32])
def test_an_unknown_id_is_refused_by_name(ledger, account, id):
    with pytest.raises(AccountNotFound):
        ledger.suspend_account(id)
    with pytest.raises(AccountNotFound):
        ledger.create_key(id, "laptop")
    with pytest.raises(AccountNotFound):
        ledger.list_keys(id)
    with pytest.raises(KeyNotFound):
        ledger.revoke_key(id)


def test_an_account_has_20_unrevoked_keys_at_most_and_a_revoked_one_makes_room(ledger, account):
    keys = [make_key(ledger, account)[0] for _ in range(KEYS_PER_ACCOUNT)]
    ledger.disable_key(keys[0])
    with pytest.raises(TooManyKeys, match="20"):
        ledger.create_key(account, "one more")
    ledger.revoke_key(keys[0])
    make_key(ledger, account)
    other = f"acct_{ledger.create_account('Bob', 'bob@lab.org').id.hex}"
    make_key(ledger, other)


def test_a_secret_shows_in_no_row_and_no_repr(ledger, account):
    made = ledger.create_key(account, "laptop")
    assert made.secret not in repr(made)
    assert made.secret not in repr(ledger.list_keys(account)) + repr(ledger.table.everything())


def test_changes_since_a_version_are_the_last_state_of_what_changed(ledger, account):
    first, first_secret = make_key(ledger, account)
    _, second_secret = make_key(ledger, account)
    version, _ = ledger.table.everything()
    assert ledger.table.changes_since(version) == (version, ())
    ledger.disable_key(first)
    ledger.enable_key(first)
    ledger.rename_key(first, "desk")
    now, changed = ledger.table.changes_since(version)
    assert now == version + 3
    assert [(key.digest, key.standing, key.caller.key_name) for key in changed] == [
        (digest_of(first_secret), Standing.ACCEPTED, "desk")
    ]
    ledger.suspend_account(account)
    _, changed = ledger.table.changes_since(now)
    assert {key.digest for key in changed} == {digest_of(first_secret), digest_of(second_secret)}


def test_events_of_other_kinds_only_move_the_version():
    class Other:
        originator_id = None

    table = KeyTable()
    table.apply(7, Other())
    assert table.version == 7
    assert table.everything() == (7, ())


def test_a_save_that_failed_but_was_stored_is_seen_by_the_next_command(store, ledger, account, monkeypatch):
    key, secret = make_key(ledger, account)
    append = type(store).append

    def stored_and_then_the_disk_died(self, events):
        append(self, events)
        raise EventStoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "append", stored_and_then_the_disk_died)
        with pytest.raises(EventStoreUnavailable):
            ledger.revoke_key(key)
    ledger.revoke_key(key)
    assert standing(ledger, secret) is Standing.REVOKED
    assert len(list(store.read_log(after=0))) == 3
