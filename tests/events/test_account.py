import pytest

from acs.events.account import Account
from acs.events.names import InvalidEmail, InvalidName


def account(name: str = "Ada", email: str = "ada@lab.org") -> Account:
    return Account.create(name=name, email=email)


def kinds(aggregate: Account) -> list[str]:
    return [type(event).__qualname__ for event in aggregate.pending_events]


def test_suspending_and_restoring_are_one_event_each():
    ada = account()
    ada.suspend()
    assert ada.suspended
    ada.restore()
    assert not ada.suspended
    assert kinds(ada) == ["Account.Created", "Account.Suspended", "Account.Restored"]


def test_suspending_a_suspended_account_appends_nothing():
    ada = account()
    ada.suspend()
    ada.suspend()
    assert kinds(ada) == ["Account.Created", "Account.Suspended"]


def test_restoring_an_account_that_is_not_suspended_appends_nothing():
    ada = account()
    ada.restore()
    assert kinds(ada) == ["Account.Created"]


@pytest.mark.parametrize("name", ["a", "x" * 64, "Forschung Köln", "研究"])
def test_names_of_1_to_64_printable_characters_are_allowed(name):
    assert account(name=name).name == name


@pytest.mark.parametrize("name", ["", "x" * 65, "   ", "two\nlines", "\x1b[31mred", "\ud800"])
def test_other_names_are_refused(name):
    with pytest.raises(InvalidName):
        account(name=name)


@pytest.mark.parametrize("email", ["local@localhost", "a@b", "x" * 250 + "@a.b"])
def test_emails_are_judged_by_their_shape_only(email):
    assert account(email=email).email == email


@pytest.mark.parametrize("email", ["", "ada", "@lab.org", "ada@", "a b@c", "a@b\n", "x" * 251 + "@a.b"])
def test_what_has_not_the_shape_of_an_email_is_refused(email):
    with pytest.raises(InvalidEmail):
        account(email=email)
