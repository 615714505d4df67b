import shlex
import stat

import pytest
from local_ledger import accounts_of

from acs.events.api_key import digest_of
from acs.events.ids import ACCOUNT, KEY, show
from acs.platform.ledger.accounts import KEYS_PER_ACCOUNT
from acs.platform.ledger.local_key import EnvFileUnavailable, ensure_local_key, read_key
from acs.storage.event_store import open_event_store

BASE = "http://127.0.0.1:8000/v1"


@pytest.fixture
def ledger(tmp_path):
    store = open_event_store(tmp_path / "events.sqlite")
    yield accounts_of(store)
    store.close()


@pytest.fixture
def env_file(tmp_path):
    return tmp_path / "env"


def local_keys(ledger):
    (account,) = ledger.list_accounts()
    assert (account.name, account.email) == ("local", "local@localhost")
    return ledger.list_keys(show(ACCOUNT, account.id))


def test_the_first_start_makes_the_account_its_key_and_a_file_that_only_the_owner_reads(ledger, env_file):
    ensure_local_key(ledger, env_file, BASE)
    (key,) = local_keys(ledger)
    base, secret = env_file.read_text().splitlines()
    assert base == f"export ACS_API_BASE={BASE}"
    assert secret == f"export ACS_API_KEY={read_key(env_file)}"
    assert digest_of(read_key(env_file)) == key.digest
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert [path.name for path in env_file.parent.iterdir() if "env" in path.name.split(".")] == ["env"]


def test_the_next_start_keeps_the_key_and_moves_the_base(ledger, env_file):
    ensure_local_key(ledger, env_file, BASE)
    secret, version = read_key(env_file), ledger.version
    ensure_local_key(ledger, env_file, "http://0.0.0.0:9000/v1")
    assert read_key(env_file) == secret
    assert ledger.version == version
    assert "export ACS_API_BASE=http://0.0.0.0:9000/v1\n" in env_file.read_text()


@pytest.mark.parametrize("change", ["disable_key", "revoke_key"])
def test_a_key_that_is_no_longer_active_is_replaced(ledger, env_file, change):
    ensure_local_key(ledger, env_file, BASE)
    secret = read_key(env_file)
    getattr(ledger, change)(show(KEY, local_keys(ledger)[0].id))
    ensure_local_key(ledger, env_file, BASE)
    assert read_key(env_file) != secret
    assert local_keys(ledger)[-1].state == "active"


@pytest.mark.parametrize(
    "text", ["", "export ACS_API_KEY=\n", "export ACS_API_KEY=sk-acs-of-another-server\n", "\xff\n"]
)
def test_a_file_without_a_key_of_the_account_gets_one(ledger, env_file, text):
    env_file.write_bytes(text.encode("latin-1"))
    env_file.chmod(0o644)
    ensure_local_key(ledger, env_file, BASE)
    assert digest_of(read_key(env_file)) == local_keys(ledger)[0].digest
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600


def test_a_key_of_another_account_does_not_count(ledger, env_file):
    other = ledger.create_account("local", "someone@else")
    made = ledger.create_key(show(ACCOUNT, other.id), "local")
    env_file.write_text(f"export ACS_API_KEY={made.secret}\n")
    ensure_local_key(ledger, env_file, BASE)
    assert read_key(env_file) != made.secret


def test_however_often_the_file_is_lost_the_server_can_start(ledger, env_file):
    for _ in range(KEYS_PER_ACCOUNT + 2):
        env_file.unlink(missing_ok=True)
        ensure_local_key(ledger, env_file, BASE)
    states = [key.state for key in local_keys(ledger)]
    assert states == ["revoked"] * 2 + ["active"] * KEYS_PER_ACCOUNT


def test_the_file_is_quoted_for_a_shell(ledger, env_file):
    ensure_local_key(ledger, env_file, "http://host;rm -rf/v1")
    assert shlex.split(env_file.read_text().splitlines()[0]) == ["export", "ACS_API_BASE=http://host;rm -rf/v1"]


def test_a_file_that_cannot_be_written_is_a_named_error(ledger, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(EnvFileUnavailable):
        ensure_local_key(ledger, tmp_path / "folder", BASE)
    with pytest.raises(EnvFileUnavailable):
        ensure_local_key(ledger, tmp_path / "nowhere" / "env", BASE)
