"""The whole argument about revocation, without Ray: a ledger, its service, and ingresses that follow it."""

import asyncio
from types import SimpleNamespace

import pytest
from local_ledger import service_of

from acs.platform import errors
from acs.platform.key_book import KeyBook
from acs.platform.ledger.watchers import DRIFT
from acs.storage.event_store import open_event_store

LEASE_S = 3.0


class World:
    """One store, the ledger of the moment, and ingresses; `kill` ends a ledger as `kill -9` would."""

    def __init__(self, path, clock):
        self.clock = clock
        self.store = open_event_store(path)
        self.following = []
        self.start()

    def start(self):
        self.service = service_of(self.store, LEASE_S, self.clock)
        self.alive = True

    def kill(self):
        self.alive = False

    async def remote(self, *asked):
        if not self.alive:
            raise ConnectionError("the actor died")
        service = self.service
        answer = await service.watch(*asked)
        if not self.alive or service is not self.service:
            raise ConnectionError("the actor died")
        return answer

    def ingress(self):
        book = KeyBook(LEASE_S, self.clock)
        following = asyncio.ensure_future(book.follow(SimpleNamespace(watch=self)))
        self.following.append(following)
        return book, following

    async def key(self):
        account = await self.service.change(lambda: self.service.accounts.create_account("Ada", "ada@lab.org"))
        made = await self.service.change(lambda: self.service.accounts.create_key(f"acct_{account.id.hex}", "laptop"))
        return f"key_{made.row.id.hex}", f"Bearer {made.secret}"

    def revoke(self, key):
        return asyncio.ensure_future(self.service.change(lambda: self.service.accounts.revoke_key(key)))


@pytest.fixture
async def world(tmp_path, clock):
    world = World(tmp_path / "events.sqlite", clock)
    yield world
    for following in world.following:
        following.cancel()
    world.store.close()


async def test_a_new_key_is_accepted_on_every_ingress_when_its_command_is_answered(world, until):
    books = [world.ingress()[0] for _ in range(3)]
    for book in books:
        await book.filled()
    _, authorization = await asyncio.wait_for(world.key(), 10)
    assert len({book.judge(authorization) for book in books}) == 1


async def test_a_revoked_key_is_refused_on_every_ingress_when_its_command_is_answered(world):
    key, authorization = await world.key()
    books = [world.ingress()[0] for _ in range(3)]
    for book in books:
        await book.filled()
        assert book.judge(authorization)
    await asyncio.wait_for(world.revoke(key), 10)
    for book in books:
        with pytest.raises(errors.KeyRevoked):
            book.judge(authorization)


async def test_an_ingress_cut_off_has_stopped_judging_before_a_revocation_is_answered(world, clock, settle, until):
    key, authorization = await world.key()
    book, following = world.ingress()
    await book.filled()
    following.cancel()
    revoking = world.revoke(key)
    await until(lambda: world.service.accounts.version == 3)
    await settle()
    assert not revoking.done()
    assert book.judge(authorization), "it cannot know, and its lease runs"
    clock.advance(LEASE_S)
    await settle()
    assert not revoking.done()
    with pytest.raises(errors.PartUnavailable):
        book.judge(authorization)
    clock.advance(LEASE_S * (DRIFT - 1) + 0.001)
    await asyncio.wait_for(revoking, 10)


async def test_a_ledger_that_started_again_does_not_confirm_before_older_copies_have_lapsed(
    world, clock, settle, until
):
    key, authorization = await world.key()
    cut_off, following = world.ingress()
    await cut_off.filled()
    following.cancel()
    world.kill()
    world.start()
    revoking = world.revoke(key)
    await until(lambda: world.service.accounts.version == 3)
    await settle()
    assert not revoking.done()
    assert cut_off.judge(authorization)
    clock.advance(LEASE_S * DRIFT + 0.001)
    await asyncio.wait_for(revoking, 10)
    assert not cut_off.fresh


async def test_an_ingress_follows_a_ledger_that_died_and_came_back(world, clock, settle):
    _, authorization = await world.key()
    book, _ = world.ingress()
    await book.filled()
    world.kill()
    clock.advance(LEASE_S)
    await settle()
    with pytest.raises(errors.PartUnavailable):
        book.judge(authorization)
    world.start()
    clock.advance(1)
    await settle()
    assert book.judge(authorization)


async def test_a_command_whose_caller_goes_away_is_done_and_told_all_the_same(world, until):
    key, authorization = await world.key()
    book, _ = world.ingress()
    await book.filled()
    revoking = world.revoke(key)
    await asyncio.sleep(0)
    revoking.cancel()
    await until(lambda: world.service.accounts.version == 3)

    def refused():
        try:
            book.judge(authorization)
        except errors.KeyRevoked:
            return True
        return False

    await until(refused)
