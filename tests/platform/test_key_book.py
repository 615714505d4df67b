import asyncio

import pytest

from acs.events.api_key import digest_of, new_secret
from acs.platform import errors
from acs.platform.key_book import RETRY_PAUSE_S, KeyBook
from acs.platform.ledger.contract import Caller, KeyChanges, KeyStanding, Standing

LEASE_S = 3.0
SECRET = "sk-acs-" + 43 * "s"  # stands in test names, which every process must give alike


def standing(standing=Standing.ACCEPTED, secret=SECRET, name="laptop"):
    return KeyStanding(digest_of(secret), Caller("acct_1", "key_1", name), standing)


def whole(*keys, epoch="one", version=1):
    return KeyChanges(epoch, version, whole=True, keys=keys)


def changed(*keys, epoch="one", version=2):
    return KeyChanges(epoch, version, whole=False, keys=keys)


@pytest.fixture
def book(clock):
    return KeyBook(LEASE_S, clock)


def test_a_known_key_is_its_caller(book):
    book.apply(whole(standing()), sent_at=0)
    assert book.judge(f"Bearer {SECRET}") == Caller("acct_1", "key_1", "laptop")
    assert book.judge(f"bearer  {SECRET} ") == Caller("acct_1", "key_1", "laptop")


@pytest.mark.parametrize("header", [None, "", "  "])
def test_an_absent_or_empty_header_is_missing_authorization(book, header):
    with pytest.raises(errors.MissingAuthorization):
        book.judge(header)


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        SECRET,
        f"Basic {SECRET}",
        f"Bearer{SECRET}",
        "Bearer x",
        f"Bearer {SECRET}x",
        "Bearer \xff\ud800",
    ],
)
def test_a_header_that_is_not_a_known_bearer_key_is_an_invalid_api_key(book, header):
    book.apply(whole(standing()), sent_at=0)
    with pytest.raises(errors.InvalidApiKey) as raised:
        book.judge(header)
    assert SECRET not in raised.value.message


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        (Standing.REVOKED, errors.KeyRevoked),
        (Standing.DISABLED, errors.KeyDisabled),
        (Standing.SUSPENDED, errors.AccountSuspended),
    ],
)
def test_a_key_that_is_not_accepted_is_refused_by_its_standing(book, state, refusal):
    book.apply(whole(standing(state)), sent_at=0)
    with pytest.raises(refusal):
        book.judge(f"Bearer {SECRET}")


def test_a_copy_is_trusted_for_one_lease_from_when_its_ask_was_sent(book, clock):
    clock.advance(1)
    book.apply(whole(standing()), sent_at=0)
    clock.advance(LEASE_S - 1.001)
    assert book.judge(f"Bearer {SECRET}")
    clock.advance(0.001)
    for header in (f"Bearer {SECRET}", "Bearer unknown"):
        with pytest.raises(errors.PartUnavailable):
            book.judge(header)
    with pytest.raises(errors.MissingAuthorization):
        book.judge(None)


def test_before_the_first_copy_nothing_is_known(book):
    assert not book.fresh
    with pytest.raises(errors.PartUnavailable):
        book.judge(f"Bearer {SECRET}")


async def test_a_request_that_finds_the_copy_too_old_may_wait_for_the_next(book, clock, settle):
    waiting = asyncio.ensure_future(book.renewed(2))
    await settle()
    clock.advance(1)
    await settle()
    assert not waiting.done()
    book.apply(whole(standing()), sent_at=1)
    await settle()
    assert waiting.done()
    await book.renewed(2)


async def test_waiting_for_a_fresh_copy_has_an_end(book, clock, settle):
    waiting = asyncio.ensure_future(book.renewed(2))
    await settle()
    book.apply(whole(standing()), sent_at=-LEASE_S)  # answered, but too late to be trusted
    await settle()
    assert not waiting.done()
    clock.advance(2)
    await settle()
    assert waiting.done()
    assert not book.fresh


def test_changes_add_to_the_copy_and_a_whole_one_replaces_it(book):
    other = new_secret()
    book.apply(whole(standing()), sent_at=0)
    book.apply(changed(standing(secret=other, name="desk")), sent_at=0)
    assert book.judge(f"Bearer {SECRET}").key_name == "laptop"
    assert book.judge(f"Bearer {other}").key_name == "desk"
    book.apply(whole(standing(secret=other), epoch="two"), sent_at=0)
    with pytest.raises(errors.InvalidApiKey):
        book.judge(f"Bearer {SECRET}")


class FakeLedger:
    """A handle whose `watch.remote` answers from a queue and remembers what it was asked; an exception is raised."""

    def __init__(self):
        self.asked = []
        self.answers = asyncio.Queue()
        self.watch = self

    async def remote(self, ingress_id, epoch, version):
        self.asked.append((ingress_id, epoch, version))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def ledger(book):
    ledger = FakeLedger()
    following = asyncio.ensure_future(book.follow(ledger))
    yield ledger
    assert not following.done(), "follow never ends by itself"
    following.cancel()


async def test_following_asks_with_the_version_it_has_applied(book, ledger, settle):
    ledger.answers.put_nowait(whole(standing(), version=7))
    ledger.answers.put_nowait(changed(version=9))
    await settle()
    me = book.ingress_id
    assert ledger.asked == [(me, None, -1), (me, "one", 7), (me, "one", 9)]
    await book.filled()


async def test_an_ask_that_is_answered_late_renews_the_lease_from_when_it_was_sent(book, ledger, clock, settle):
    ledger.answers.put_nowait(whole(standing()))
    await settle()
    clock.advance(2)
    ledger.answers.put_nowait(changed())  # asked at 0
    await settle()
    clock.advance(0.999)
    assert book.fresh
    clock.advance(0.001)
    assert not book.fresh


async def test_following_survives_a_ledger_that_fails_and_takes_the_whole_of_the_next_one(book, ledger, clock, settle):
    ledger.answers.put_nowait(whole(standing()))
    for _ in range(3):
        ledger.answers.put_nowait(ConnectionError("the actor died"))
    await settle()
    for _ in range(3):
        clock.advance(RETRY_PAUSE_S)
        await settle()
    assert [ask[1:] for ask in ledger.asked] == [(None, -1)] + [("one", 1)] * 4
    ledger.answers.put_nowait(whole(standing(Standing.REVOKED), epoch="two", version=3))
    await settle()
    assert ledger.asked[-1][1:] == ("two", 3)
    with pytest.raises(errors.KeyRevoked):
        book.judge(f"Bearer {SECRET}")


async def test_changes_to_another_copy_are_not_applied_and_everything_is_asked_for(book, ledger, clock, settle):
    ledger.answers.put_nowait(whole(standing()))
    ledger.answers.put_nowait(changed(standing(Standing.REVOKED), epoch="two"))
    await settle()
    assert book.judge(f"Bearer {SECRET}")
    clock.advance(RETRY_PAUSE_S)
    await settle()
    assert ledger.asked[-1][1] is None
