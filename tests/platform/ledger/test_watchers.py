import asyncio

import pytest

from acs.platform.ledger.watchers import DRIFT, GIVE_UP_LEASES, ChangeNotSeen, Watchers

LEASE_S = 3.0


@pytest.fixture
def watchers(clock):
    return Watchers(LEASE_S, clock, former_copies=False)


async def test_with_nobody_watching_a_change_is_seen_at_once(watchers):
    await watchers.seen_by_all(1)


async def test_a_change_is_seen_when_every_ingress_has_asked_with_its_version(watchers, settle):
    watchers.asked("a", 4)
    watchers.asked("b", 4)
    seen = asyncio.ensure_future(watchers.seen_by_all(5))
    watchers.asked("a", 5)
    await settle()
    assert not seen.done()
    watchers.asked("b", 6)
    await settle()
    assert seen.done()


async def test_an_ingress_that_no_longer_asks_is_waited_for_until_its_lease_has_lapsed(watchers, clock, settle):
    watchers.asked("dead", 4)
    seen = asyncio.ensure_future(watchers.seen_by_all(5))
    await settle()
    clock.advance(LEASE_S)
    await settle()
    assert not seen.done(), "its clock may run a little slower than ours"
    clock.advance(LEASE_S * (DRIFT - 1) + 0.001)
    await settle()
    assert seen.done()


async def test_asking_with_an_older_version_renews_the_lease(watchers, clock, settle):
    watchers.asked("slow", 4)
    seen = asyncio.ensure_future(watchers.seen_by_all(5))
    for _ in range(3):
        await settle()
        clock.advance(2)
        watchers.asked("slow", 4)
    await settle()
    assert not seen.done()
    watchers.asked("slow", 5)
    await settle()
    assert seen.done()


async def test_an_ask_that_is_delivered_late_takes_nothing_back(watchers):
    watchers.asked("a", 5)
    watchers.asked("a", 4)
    await watchers.seen_by_all(5)


async def test_a_restarted_ledger_waits_one_lease_for_ingresses_it_does_not_know(clock, settle):
    watchers = Watchers(LEASE_S, clock, former_copies=True)
    watchers.asked("known", 5)
    seen = asyncio.ensure_future(watchers.seen_by_all(5))
    clock.advance(LEASE_S)
    watchers.asked("known", 5)
    await settle()
    assert not seen.done()
    clock.advance(LEASE_S * (DRIFT - 1) + 0.001)
    await settle()
    assert seen.done()
    await watchers.seen_by_all(5)


async def test_an_ingress_that_asks_for_ever_without_the_change_is_given_up_by_name(watchers, clock, settle):
    watchers.asked("broken", 4)
    seen = asyncio.ensure_future(watchers.seen_by_all(5))
    for _ in range(2 * GIVE_UP_LEASES + 1):
        await settle()
        clock.advance(LEASE_S / 2)
        watchers.asked("broken", 4)
    clock.advance(LEASE_S)
    await settle()
    with pytest.raises(ChangeNotSeen):
        await seen


async def test_a_poll_ends_at_an_announcement_or_well_within_the_lease(watchers, clock, settle):
    announced = asyncio.ensure_future(watchers.poll())
    await settle()
    assert not announced.done()
    watchers.announce()
    await settle()
    assert announced.done()
    quiet = asyncio.ensure_future(watchers.poll())
    await settle()
    clock.advance(LEASE_S / 3)
    await settle()
    assert quiet.done()
