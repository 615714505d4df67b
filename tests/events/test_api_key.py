import hashlib
import re

import pytest

from acs.events.api_key import ApiKey, KeyIsRevoked, new_secret
from acs.events.ids import uuid7
from acs.events.names import InvalidName

ACCOUNT = uuid7()


def key(name: str = "laptop", secret: str | None = None) -> ApiKey:
    return ApiKey.create(account_id=ACCOUNT, name=name, secret=secret or new_secret())


def kinds(aggregate: ApiKey) -> list[str]:
    return [type(event).__qualname__ for event in aggregate.pending_events]


def test_a_secret_is_the_prefix_and_43_url_safe_characters_and_never_the_same():
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(re.fullmatch(r"sk-acs-[A-Za-z0-9_-]{43}", secret) for secret in secrets)


def test_only_the_digest_and_four_characters_of_a_secret_are_in_the_event():
    secret = new_secret()
    (created,) = key(secret=secret).pending_events
    assert created.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert created.prefix == secret[:11]
    assert secret[11:] not in repr(created)


def test_disabling_enabling_and_renaming_are_one_event_each():
    laptop = key()
    laptop.disable()
    laptop.enable()
    laptop.rename("desk")
    assert kinds(laptop) == ["ApiKey.Created", "ApiKey.Disabled", "ApiKey.Enabled", "ApiKey.Renamed"]
    assert laptop.name == "desk"


def test_doing_what_is_already_so_appends_nothing():
    laptop = key()
    laptop.enable()
    laptop.rename("laptop")
    laptop.disable()
    laptop.disable()
    laptop.revoke()
    laptop.revoke()
    assert kinds(laptop) == ["ApiKey.Created", "ApiKey.Disabled", "ApiKey.Revoked"]


@pytest.mark.parametrize("command", ["enable", "disable", "rename"])
def test_a_revoked_key_cannot_be_enabled_disabled_or_renamed_again(command):
    laptop = key()
    laptop.revoke()
    with pytest.raises(KeyIsRevoked):
        laptop.rename("desk") if command == "rename" else getattr(laptop, command)()
    assert kinds(laptop) == ["ApiKey.Created", "ApiKey.Revoked"]


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines"])
def test_a_name_is_judged_when_a_key_is_made_and_when_it_is_renamed(name):
    with pytest.raises(InvalidName):
        key(name=name)
    laptop = key()
    with pytest.raises(InvalidName):
        laptop.rename(name)
    assert kinds(laptop) == ["ApiKey.Created"]
