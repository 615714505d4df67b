"""Letting in and letting out, on the real store: what is answered, in which order, and what the log then holds."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from local_ledger import local_ledger

from acs.events.hold import Price
from acs.events.ids import uuid7
from acs.events.ledger import Ledger
from acs.platform.ledger.contract import Granted, Open, Refusal, Release, Resolved, Settle, Waiting
from acs.platform.limits import Limits

PRICES = {"toy": Price(1_000_000, 2_000_000), "other": Price()}  # 1 and 2 micro-dollars a token


class Wall:
    """The time of day."""

    def __init__(self):
        self.now = datetime(2026, 11, 29, 12, tzinfo=UTC)

    def __call__(self):
        return self.now


class World:
    def __init__(self, ledger, wall):
        self.ledger = ledger
        self.wall = wall
        self.account = ledger.account()
        self.key, _ = ledger.key(self.account)
        self.answers = {}  # hold id → answers, in order

    def hear(self, reply):
        self.answers.setdefault(reply.hold_id, []).append(reply)

    def open(self, *, owner="ingress_1", account=None, key=None, model="toy", again=None, **fields):
        order = again or Open(
            hold_id=f"hold_{int(self.wall.now.timestamp() * 1000):012x}{uuid7().hex[12:]}",
            account_id=account or self.account,
            key_id=key or self.key,
            request_id="req",
            model=model,
            kind="completion",
            user=None,
            **{"prompt_tokens": 10, "choices": 1, "max_tokens": 10, "min_tokens": 0, "clamp": True, **fields},
        )
        self.ledger.desk.handle(owner, order, self.hear)
        return order

    def settle(self, order, tokens=5):
        self.ledger.desk.handle("ingress_1", Settle(order.hold_id, order.account_id, 10, tokens, 200), self.hear)

    def release(self, order):
        self.ledger.desk.handle("ingress_1", Release(order.hold_id, order.account_id, "x", None), self.hear)

    def last(self, order):
        """The latest answer to what was said about its Hold."""
        return self.answers[order.hold_id][-1] if order.hold_id in self.answers else None

    def kinds(self):
        return [type(event).__name__ for event in self.ledger.events((Ledger.Event, Ledger.Created))]


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def world_of(tmp_path, clock, wall):
    with_slots = {"toy": 3, "other": 3}
    opened = []

    def make(slots=None, **limits):
        context = local_ledger(
            tmp_path, limits=Limits(**limits), slots=slots or with_slots, prices=PRICES, clock=clock, now=wall
        )
        opened.append(context)
        return World(context.__enter__(), wall)

    yield make
    for context in opened:
        context.__exit__(None, None, None)


async def answered(world, until, *orders):
    await until(lambda: all(not isinstance(world.last(order), (Waiting, type(None))) for order in orders))


async def test_a_request_is_granted_once_its_hold_is_on_disk_and_resolved_once_its_charge_is(world_of, until):
    world = world_of()
    order = world.open()
    assert world.last(order) is None, "not before it is on disk"
    await answered(world, until, order)
    assert world.last(order) == Granted(order.hold_id, 10)
    assert world.kinds() == ["Created", "HoldPlaced"]
    world.settle(order)
    await until(lambda: world.last(order) == Resolved(order.hold_id, "settled"))
    assert world.kinds()[-1] == "HoldSettled"


async def test_a_command_that_comes_again_is_answered_as_before_and_applied_once(world_of, until):
    world = world_of()
    order = world.open()
    world.open(again=order)
    await answered(world, until, order)
    world.open(again=order)
    await until(lambda: len(world.answers[order.hold_id]) == 3)
    assert set(world.answers[order.hold_id]) == {Granted(order.hold_id, 10)}
    for count in (4, 5):
        world.settle(order)
        await until(lambda: len(world.answers[order.hold_id]) == count)  # noqa: B023
    assert world.kinds() == ["Created", "HoldPlaced", "HoldSettled"]


async def test_opening_a_hold_that_has_been_resolved_places_no_second_one(world_of, until):
    world = world_of()
    order = world.open()
    await answered(world, until, order)
    world.ledger.desk.give_up("ingress_1")
    world.open(again=order)
    assert world.last(order) == Granted(order.hold_id, 10), "its end is not on disk yet, so nobody is told of it"
    await until(lambda: world.last(order) == Resolved(order.hold_id, "expired"))
    assert world.kinds() == ["Created", "HoldPlaced", "HoldExpired"]


async def test_a_hold_id_older_than_a_day_is_refused_since_it_may_have_been_resolved_and_forgotten(world_of):
    world = world_of()
    fresh = world.open()
    assert world.last(fresh) is None, "let in"
    old = msgspec.structs.replace(fresh, hold_id="hold_" + "0" * 32)
    world.open(again=old)
    assert world.last(old) == Resolved(old.hold_id, "unknown")


async def test_a_hold_is_settled_in_the_month_in_which_it_was_placed(world_of, until, wall):
    world = world_of()
    wall.now = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    order = world.open()
    await answered(world, until, order)
    wall.now += timedelta(seconds=2)
    second = world.open()
    world.settle(order)
    await until(lambda: isinstance(world.last(order), Resolved))
    await answered(world, until, second)
    november, december = world.ledger.memory.books.ledgers.values()
    assert (november.book.month, november.book.account.charged) == ("2026-11", 15)
    assert (december.book.month, december.book.account.held) == ("2026-12", 20)


async def test_a_new_month_begins_with_the_standing_budgets(world_of, until, wall):
    world = world_of()
    world.ledger.accounts.set_account_budget(world.account, 20)
    first = world.open()
    await answered(world, until, first)
    assert world.last(world.open()).code == "budget_exceeded"
    wall.now = datetime(2026, 12, 1, tzinfo=UTC)
    second = world.open()
    await answered(world, until, second)
    assert isinstance(world.last(second), Granted)


async def test_a_changed_budget_binds_the_running_month(world_of, until):
    world = world_of()
    first = world.open()
    await answered(world, until, first)
    world.ledger.accounts.set_account_budget(world.account, 25)
    stored = []
    world.ledger.desk.note_budgets(world.account, lambda: stored.append(True))
    await until(lambda: stored)
    assert world.last(world.open()).code == "budget_exceeded"
    assert world.kinds() == ["Created", "HoldPlaced", "BudgetChanged"]


async def test_two_requests_that_race_for_the_last_tokens_never_get_more_than_there_are(world_of, until):
    world = world_of(slots={"toy": 100})
    world.ledger.accounts.set_account_budget(world.account, 35)
    orders = [world.open() for _ in range(3)]
    await answered(world, until, *orders)
    answers = [world.last(order) for order in orders]
    assert [answer.max_tokens for answer in answers[:2]] == [10, 5]
    assert answers[2].code == "budget_exceeded"


async def test_a_spend_limit_counts_what_is_held_and_what_is_charged_on_the_day(world_of, until, wall):
    world = world_of()
    world.ledger.accounts.set_account_spend_limit(world.account, 60)  # two requests of 10 + 2 × 10 micro-dollars
    first, second = world.open(), world.open()
    await answered(world, until, first, second)
    refused = world.last(world.open())
    assert refused.code == "spend_cap"
    assert "60 micro-dollars a day; 60 are spent or held" in refused.message
    world.settle(first, tokens=0)  # 10 of its 30
    third = world.open(max_tokens=5)
    await answered(world, until, third)
    assert isinstance(world.last(third), Granted)
    wall.now += timedelta(days=1)
    assert world.last(world.open(max_tokens=20)) is None, "a new day"


async def test_the_platforms_spend_limit_is_of_all_accounts_together(world_of, until):
    world = world_of()
    world.ledger.accounts.set_platform_spend_limit(30)
    order = world.open()
    await answered(world, until, order)
    other = world.ledger.account("Bob")
    key, _ = world.ledger.key(other)
    assert world.last(world.open(account=other, key=key)).code == "spend_cap"


async def test_a_key_revoked_since_its_ingress_last_heard_is_refused(world_of):
    world = world_of()
    world.ledger.accounts.revoke_key(world.key)
    assert world.last(world.open()).code == "revoked"


# -- turns


async def test_more_than_a_model_has_slots_for_wait_and_start_in_order(world_of, until):
    world = world_of(slots={"toy": 2})
    orders = [world.open() for _ in range(4)]
    assert [type(world.last(order)) for order in orders[2:]] == [Waiting, Waiting]
    await answered(world, until, *orders[:2])
    assert world.kinds().count("HoldPlaced") == 2, "who waits holds nothing"
    world.settle(orders[0])
    await answered(world, until, orders[2])
    assert isinstance(world.last(orders[3]), Waiting)
    world.release(orders[1])
    await answered(world, until, orders[3])


async def test_a_key_runs_only_so_many_at_once_and_another_key_passes_it(world_of, until):
    world = world_of(slots={"toy": 10}, key_running=2)
    orders = [world.open() for _ in range(3)]
    assert isinstance(world.last(orders[2]), Waiting)
    key, _ = world.ledger.key(world.account)
    other = world.open(key=key)
    await answered(world, until, other)
    assert isinstance(world.last(orders[2]), Waiting)


async def test_accounts_that_wait_take_turns(world_of, until):
    world = world_of(slots={"toy": 1})
    busy = [world.open() for _ in range(5)]
    other = world.ledger.account("Bob")
    key, _ = world.ledger.key(other)
    late = [world.open(account=other, key=key) for _ in range(2)]
    running, order_of_start = busy[0], []
    await answered(world, until, running)
    for _ in range(6):
        world.settle(running)
        waiting = [o for o in [*busy[1:], *late] if o not in order_of_start]
        await until(lambda: any(not isinstance(world.last(o), Waiting) for o in waiting))  # noqa: B023
        (running,) = [o for o in waiting if isinstance(world.last(o), Granted)]
        order_of_start.append(running)
    assert order_of_start == [busy[1], late[0], busy[2], late[1], busy[3], busy[4]]


async def test_a_waiting_request_of_one_model_does_not_stand_in_the_way_of_another_models(world_of, until):
    world = world_of(slots={"toy": 1, "other": 1})
    world.open()
    waits = world.open()
    other = world.open(model="other")
    await answered(world, until, other)
    assert isinstance(world.last(waits), Waiting)


async def test_beyond_the_waiting_room_is_queue_full(world_of):
    world = world_of(slots={"toy": 1}, key_waiting=2)
    for _ in range(3):
        world.open()
    refused = world.last(world.open())
    assert (refused.code, refused.retry_after_s) == ("queue_full", 5)


async def test_beyond_the_rate_says_when_the_next_may_start_and_lets_it(world_of, clock):
    world = world_of(slots={"toy": 100}, key_rate_per_minute=2)
    world.open()
    clock.advance(20)
    world.open()
    refused = world.last(world.open())
    assert (refused.code, refused.retry_after_s) == ("rate_limited", 40)
    clock.advance(40)
    assert world.last(world.open()) is None, "let in"


async def test_a_refused_request_does_not_count_towards_the_rate(world_of):
    world = world_of(key_rate_per_minute=1)
    world.ledger.accounts.set_account_budget(world.account, 5)
    for _ in range(3):
        assert world.last(world.open()).code == "budget_exceeded"


async def test_who_has_waited_too_long_is_refused(world_of, clock):
    world = world_of(slots={"toy": 1}, wait_s=30)
    world.open()
    waits = world.open()
    clock.advance(29)
    world.ledger.desk.refuse_overdue()
    assert isinstance(world.last(waits), Waiting)
    clock.advance(1)
    world.ledger.desk.refuse_overdue()
    assert world.last(waits).code == "queue_full"


async def test_who_leaves_while_waiting_gives_its_place_to_the_next(world_of, until):
    world = world_of(slots={"toy": 1})
    running, leaves, stays = world.open(), world.open(), world.open()
    world.release(leaves)
    assert world.last(leaves) == Resolved(leaves.hold_id, "released")
    await answered(world, until, running)
    world.settle(running)
    await answered(world, until, stays)
    assert world.kinds().count("HoldPlaced") == 2


async def test_a_waiting_request_that_is_sent_again_keeps_its_place(world_of, until):
    world = world_of(slots={"toy": 1})
    running, first, second = world.open(), world.open(), world.open()
    world.open(again=first)
    await answered(world, until, running)
    world.settle(running)
    await answered(world, until, first)
    assert isinstance(world.last(second), Waiting)


async def test_who_waits_is_judged_again_at_its_turn(world_of, until):
    world = world_of(slots={"toy": 1})
    running, poor, late, last = world.open(), world.open(clamp=False), world.open(), world.open()
    await answered(world, until, running)
    world.ledger.accounts.set_account_budget(world.account, 35)
    world.ledger.desk.note_budgets(world.account, lambda: None)
    world.settle(running, tokens=10)
    await answered(world, until, poor, late)
    assert world.last(poor).code == "budget_exceeded"
    assert world.last(late) == Granted(late.hold_id, 5)
    world.ledger.accounts.suspend_account(world.account)
    world.release(late)
    await until(lambda: isinstance(world.last(last), Refusal))
    assert world.last(last).code == "suspended"


# -- owners that vanish


async def test_the_holds_of_a_vanished_owner_expire_charge_nothing_and_free_their_slots(world_of, until):
    world = world_of(slots={"toy": 2})
    gone, stays = world.open(owner="ingress_1"), world.open(owner="ingress_2")
    waits, leaves = world.open(owner="ingress_2"), world.open(owner="ingress_1")
    await answered(world, until, gone, stays)
    world.ledger.desk.give_up("ingress_1")
    await answered(world, until, waits)
    assert isinstance(world.last(leaves), Waiting), "nobody is left to be told"
    assert world.kinds().count("HoldExpired") == 1
    world.settle(gone)
    await until(lambda: world.last(gone) == Resolved(gone.hold_id, "expired"))
    assert world.kinds()[-1] == "LateSettlementNoted"
    (book,) = [ledger.book for ledger in world.ledger.memory.books.ledgers.values()]
    assert book.account.charged == 0


async def test_a_charge_above_its_hold_is_not_made_and_its_caller_is_told(world_of, until):
    world = world_of()
    order = world.open()
    await answered(world, until, order)
    world.settle(order, tokens=11)
    await until(lambda: world.last(order) == Resolved(order.hold_id, "released"))
    assert world.ledger.events(Ledger.HoldReleased)[0].reason == "charge_exceeds_hold"


async def test_a_hold_that_nobody_knows_is_unknown(world_of):
    world = world_of()
    never = Release("hold_" + "0" * 32, world.account, "x", None)
    world.ledger.desk.handle("ingress_1", never, world.hear)
    assert world.answers[never.hold_id] == [Resolved(never.hold_id, "unknown")]


async def test_after_a_failed_commit_nobody_is_told_anything(world_of, until):
    world = world_of()
    order = world.open()
    await answered(world, until, order)
    world.ledger.memory.store.close()
    world.settle(order)
    second = world.open()
    await until(lambda: world.ledger.failures)
    assert isinstance(world.last(order), Granted)
    assert world.last(second) is None
