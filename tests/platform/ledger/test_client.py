"""An ingress and the ledger over a real socket: links that break, ledgers that start again, owners that vanish."""

import asyncio

import pytest
from local_ledger import local_ledger

from acs.events.ids import uuid7
from acs.events.ledger import Ledger
from acs.platform import errors
from acs.platform.ledger import client as client_module
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger.contract import Granted, Open, Resolved, Settle
from acs.platform.ledger.front import Front
from acs.platform.limits import Limits

LEASE_S = 10.0


class World:
    """One store; the ledger of the moment listens on a port of its own. `kill` ends it as `kill -9` would."""

    def __init__(self, folder, clock):
        self.folder = folder
        self.clock = clock
        self.limits = Limits()
        self.slots = {"toy": 100}
        self.alive = False
        self.following = []

    async def start(self):
        self.context = local_ledger(self.folder, clock=self.clock, limits=self.limits, slots=self.slots)
        self.ledger = self.context.__enter__()
        ledger = self.ledger
        desks = ledger.desk, ledger.job_desk, ledger.harvest_desk, ledger.loom_desk
        self.front = Front(*desks, LEASE_S, self.clock)
        self.port = await self.front.listen("127.0.0.1", "secret")
        self.alive = True

    def kill(self):
        self.alive = False
        self.front.close()
        self.context.__exit__(None, None, None)

    async def endpoint(self):
        if not self.alive:
            raise ConnectionError("the ledger is away")
        return "127.0.0.1", self.port, "secret"

    def ingress(self):
        client = LedgerClient(self.endpoint)
        self.following.append(asyncio.ensure_future(client.follow()))
        return client

    def vanish(self, number=0):
        """The process of an ingress is gone, and the kernel closes its link."""
        self.following[number].cancel()

    def people(self):
        self.account = self.ledger.account()
        self.key, _ = self.ledger.key(self.account)

    def order(self, **fields):
        hold_id = f"hold_{uuid7().hex}"
        return Open(hold_id, self.account, self.key, "req", "toy", "completion", None, 10, 1, 10, 0, True, **fields)

    def settle(self, order):
        return Settle(order.hold_id, order.account_id, 10, 5, 200)

    def kinds(self):
        names = [type(event).__name__ for event in self.ledger.events(Ledger.Event)]
        return names[1:]  # the month's own beginning


@pytest.fixture
async def world(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_PAUSE_S", 0.001)
    world = World(tmp_path, clock)
    await world.start()
    world.people()
    yield world
    for following in world.following:
        following.cancel()
    if world.alive:
        world.kill()


async def test_a_hold_is_opened_and_settled_over_the_link(world):
    client = world.ingress()
    order = world.order()
    assert await client.open(order) == Granted(order.hold_id, 10)
    assert await client.resolve(world.settle(order)) == Resolved(order.hold_id, "settled")
    assert world.kinds() == ["HoldPlaced", "HoldSettled"]


async def test_a_charge_that_a_dead_ledger_did_not_answer_is_made_once_when_it_is_back(world, until):
    client = world.ingress()
    order = world.order()
    await client.open(order)
    world.kill()
    settling = client.resolve(world.settle(order))
    await asyncio.sleep(0)
    assert not settling.done()
    await world.start()
    assert await settling == Resolved(order.hold_id, "settled")
    assert await client.resolve(world.settle(order)) == Resolved(order.hold_id, "settled")
    assert world.kinds() == ["HoldPlaced", "HoldSettled"]


async def test_a_hold_granted_at_once_that_a_dying_ledger_never_stored_is_placed_again_and_charged_once(world):
    client = world.ingress()
    order = world.order(at_once=True)
    world.ledger.commits_fail_after(0)
    assert await client.open(order) == Granted(order.hold_id, 10)
    world.kill()
    settling = client.resolve(world.settle(order))
    await world.start()
    assert await settling == Resolved(order.hold_id, "settled")
    assert world.kinds() == ["HoldPlaced", "HoldSettled"]


async def test_a_hold_granted_at_once_and_stored_is_not_placed_twice_by_the_next_ledger(world, until):
    client = world.ingress()
    order = world.order(at_once=True)
    await client.open(order)
    await until(lambda: world.kinds() == ["HoldPlaced"])
    for _ in range(2):
        world.kill()
        await world.start()
        await until(lambda: world.front.links == 1)
    assert await client.resolve(world.settle(order)) == Resolved(order.hold_id, "settled")
    assert world.kinds() == ["HoldPlaced", "HoldSettled"]


async def test_a_hold_granted_at_once_that_no_longer_fits_the_budget_after_the_ledgers_death_is_not_charged(world):
    client = world.ingress()
    order = world.order(at_once=True)
    world.ledger.commits_fail_after(0)
    await client.open(order)
    world.kill()
    await world.start()
    world.ledger.accounts.set_account_budget(world.account, 0)
    assert (await client.resolve(world.settle(order))).status == "unknown"
    assert world.kinds() == []


async def test_a_request_that_waits_for_its_turn_goes_on_waiting_at_the_next_ledger(world, until):
    world.kill()
    world.slots = {"toy": 1}
    await world.start()
    client = world.ingress()
    first, second = world.order(), world.order()
    await client.open(first)
    waiting = client.open(second)
    await until(lambda: world.ledger.traffic.tickets)
    world.kill()
    await world.start()
    await until(lambda: world.ledger.traffic.tickets)
    await client.resolve(world.settle(first))
    assert await waiting == Granted(second.hold_id, 10)


async def test_a_ledger_that_does_not_come_back_is_503_for_whoever_opens(world, monkeypatch):
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.01)
    client = world.ingress()
    world.kill()
    with pytest.raises(errors.PartUnavailable):
        await client.open(world.order())


async def test_what_an_impatient_opener_left_behind_is_taken_back(world, until, monkeypatch):
    """The answer was on its way when its asker gave up."""
    client = world.ingress()
    await until(lambda: world.front.links == 1)
    order = world.order()
    opening = client.open(order)
    client.withdraw(order, "no_answer")
    await until(lambda: world.kinds() == ["HoldPlaced", "HoldReleased"])
    assert not opening.done()


async def test_a_refusal_is_the_error_of_the_contract(world):
    client = world.ingress()
    world.ledger.accounts.set_account_budget(world.account, 5)
    with pytest.raises(errors.BudgetExceeded):
        await client.open(world.order())
    world.ledger.accounts.disable_key(world.key)
    with pytest.raises(errors.KeyDisabled):
        await client.open(world.order())


async def test_a_peer_without_the_secret_is_not_heard(world, until, monkeypatch):
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.05)

    async def wrong():
        return "127.0.0.1", world.port, "wrong"

    client = LedgerClient(wrong)
    world.following.append(asyncio.ensure_future(client.follow()))
    with pytest.raises(errors.PartUnavailable):
        await client.open(world.order())
    assert world.kinds() == []


async def test_the_holds_of_an_ingress_expire_a_lease_after_it_is_gone_and_not_before(world, clock, until):
    gone, stays = world.ingress(), world.ingress()
    await gone.open(world.order())
    kept = world.order()
    await stays.open(kept)
    world.vanish(0)
    await until(lambda: world.front.links == 1)
    world.front.look_after()
    clock.advance(LEASE_S - 0.1)
    world.front.look_after()
    assert "HoldExpired" not in world.kinds()
    clock.advance(0.2)
    world.front.look_after()
    await until(lambda: world.kinds().count("HoldExpired") == 1)
    assert list(world.ledger.memory.books.open_holds) == [kept.hold_id]


async def test_a_broken_link_that_is_mended_within_the_lease_costs_nothing(world, clock, until):
    client = world.ingress()
    order = world.order()
    await client.open(order)
    world.kill()
    await world.start()
    world.front.look_after()
    clock.advance(LEASE_S - 0.1)
    await until(lambda: world.front.links == 1)
    clock.advance(LEASE_S)
    world.front.look_after()
    assert await client.resolve(world.settle(order)) == Resolved(order.hold_id, "settled")


async def test_holds_whose_owner_never_comes_back_after_a_restart_expire(world, clock, until):
    client = world.ingress()
    await client.open(world.order())
    world.vanish()
    world.kill()
    await world.start()
    world.front.look_after()
    clock.advance(LEASE_S)
    world.front.look_after()
    await until(lambda: world.kinds() == ["HoldPlaced", "HoldExpired"])


async def test_a_ledger_that_drops_every_link_at_once_is_503_too(world, monkeypatch):
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.2)
    world.front.close()

    async def drop(reader, writer):
        writer.close()

    dropping = await asyncio.start_server(drop, "127.0.0.1", 0)
    world.port = dropping.sockets[0].getsockname()[1]
    client = world.ingress()
    with pytest.raises(errors.PartUnavailable):
        await asyncio.wait_for(client.open(world.order()), 10)
    dropping.close()
