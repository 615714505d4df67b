"""Jobs at the ledger: whose turn it is, and what stays of them through a restart."""

from datetime import UTC, datetime, timedelta

import pytest
from local_ledger import local_ledger

from acs.events.ids import HOLD, JOB, show, uuid7
from acs.events.job import Job
from acs.events.ledger import Ledger
from acs.platform.ledger import memory as memory_module
from acs.platform.ledger.contract import Granted, Open, Settle
from acs.platform.ledger.job_contract import Browse, Finish, JobTold, LookAt, Noted, Offer, RunJob, Submit
from acs.platform.limits import Limits

RUNNER = "runner_1"


class World:
    """Clients and a runner of a local ledger; the runner runs until it is told how a run ends."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.started = []  # RunJob of Jobs, Hold ids of clients' requests: in the order of their starts
        self.told = []
        self.asked = 0
        self.hired = False

    def hire(self, name=RUNNER, models=("toy",)):
        self.ledger.job_desk.runner_came(name, self.hear_work)
        self.say(Offer(list(models)), name)

    def hear_work(self, work):
        if isinstance(work, RunJob):
            self.started.append(work)

    def say(self, command, owner="ingress_1"):
        self.ledger.job_desk.handle(owner, command, self.told.append)

    def number(self):
        self.asked += 1
        return self.asked

    def order(self, caller, kind, clamp):
        account, key = caller
        return Open(show(HOLD, uuid7()), account, key, "req", "toy", kind, None, 10, 1, 10, 0, clamp)

    def submit(self, caller):
        job_id = show(JOB, uuid7())
        self.say(Submit(self.number(), job_id, self.order(caller, "job", False), "0" * 64, 1_800_000_000))
        return job_id

    def open(self, caller):
        order = self.order(caller, "completion", True)

        def hear(reply):
            if isinstance(reply, Granted):
                self.started.append(order)

        self.ledger.desk.handle("ingress_1", order, hear)
        return order

    def finish(self, started, **fields):
        if isinstance(started, Open):
            command = Settle(started.hold_id, started.account_id, 10, 5, 200)
            return self.ledger.desk.handle("ingress_1", command, lambda reply: None)
        fields = {"http_status": 200, "result_sha256": "1" * 64, "result_bytes": 3, **fields}
        self.say(Finish(self.number(), started.job_id, started.run, 10, 5, **fields), RUNNER)

    def status(self, job_id):
        return self.ledger.memory.jobs.get(job_id).status.value

    def caller(self, name):
        account = self.ledger.account(name)
        return account, self.ledger.key(account)[0]


@pytest.fixture
def open_world(tmp_path, clock):
    opened = []

    def make(slots=1, now=lambda: datetime.now(UTC), **limits):
        if opened:  # the ledger before it dies
            opened.pop().__exit__(None, None, None)
        context = local_ledger(tmp_path, limits=Limits(**limits), slots={"toy": slots}, clock=clock, now=now)
        opened.append(context)
        return World(context.__enter__())

    yield make
    for context in opened:
        context.__exit__(None, None, None)


async def start(world, until, count):
    """Waits until as many have been started, one after the other, each ending when the next is waited for."""
    for number in range(count):
        await until(lambda: len(world.started) > number)  # noqa: B023
        world.finish(world.started[number])
    return world.started[:count]


async def test_accounts_take_turns_with_their_jobs(open_world, until):
    world = open_world()
    ada, bob = world.caller("Ada"), world.caller("Bob")
    many = [world.submit(ada) for _ in range(5)]
    single = world.submit(bob)
    world.hire()
    order = [run.job_id for run in await start(world, until, 6)]
    assert order == [many[0], single, *many[1:]]


async def test_a_direct_request_waits_for_one_slot_whatever_jobs_wait(open_world, until):
    world = open_world()
    ada, bob = world.caller("Ada"), world.caller("Bob")
    for _ in range(100):
        world.submit(ada)
    world.hire()
    await until(lambda: len(world.started) == 1)
    direct = world.open(bob)
    world.finish(world.started[0])
    await until(lambda: len(world.started) == 2)
    assert world.started[1] is direct


async def test_every_tenth_slot_goes_to_a_job_that_waits(open_world, until):
    world = open_world(key_waiting=100)
    ada, bob = world.caller("Ada"), world.caller("Bob")
    running = world.open(bob)
    await until(lambda: world.started == [running])
    for _ in range(40):
        world.open(bob)
    for _ in range(4):
        world.submit(ada)
    world.hire()
    kinds = [type(started).__name__ for started in await start(world, until, 41)]
    assert [number for number, kind in enumerate(kinds) if kind == "RunJob"] == [10, 20, 30, 40]


async def test_a_job_takes_none_of_its_keys_running_requests(open_world, until):
    world = open_world(slots=5, key_running=1)
    ada = world.caller("Ada")
    world.hire()
    for _ in range(3):
        world.submit(ada)
    direct = world.open(ada)
    await until(lambda: len(world.started) == 4)
    assert direct in world.started


# -- restarts of the ledger


@pytest.mark.parametrize("checkpoint_events", [1, 10**6])
async def test_a_ledger_that_starts_again_knows_every_job_as_it_was(open_world, until, monkeypatch, checkpoint_events):
    monkeypatch.setattr(memory_module, "CHECKPOINT_EVENTS", checkpoint_events)
    world = open_world(slots=2)
    ada = world.caller("Ada")
    world.hire()
    ids = [world.submit(ada) for _ in range(5)]
    await until(lambda: len(world.started) == 2)
    world.finish(world.started[0])
    await until(lambda: len(world.started) == 3)
    world.say(Browse(world.number(), ada[0], 10, None, None))
    await until(lambda: hasattr(world.told[-1], "jobs"))
    before = world.told[-1].jobs

    again = open_world(slots=2)
    again.say(Browse(1, ada[0], 10, None, None))
    await until(lambda: again.told)
    assert again.told[-1].jobs == before
    again.hire()
    await until(lambda: len(again.started) == 2)
    assert {run.job_id for run in again.started} == set(ids[1:3]), "what its runner ran it goes on with"
    assert {run.run for run in again.started} == {1}
    for number in range(4):
        await until(lambda: len(again.started) > number)  # noqa: B023
        again.finish(again.started[number])
    await until(lambda: len(again.ledger.events(Ledger.HoldSettled)) == 5)
    assert {show(JOB, event.originator_id) for event in again.ledger.events(Job.Succeeded)} == set(ids)
    assert len(again.ledger.events(Job.Succeeded)) == 5
    assert again.ledger.memory.books.open_holds == {}


async def test_a_running_job_whose_runner_stays_away_waits_again(open_world, until, clock):
    world = open_world()
    job_id = world.submit(world.caller("Ada"))
    world.hire()
    await until(lambda: len(world.started) == 1)
    world.ledger.job_desk.runner_left(RUNNER)
    world.ledger.job_desk.look_after()
    assert world.status(job_id) == "running"
    clock.advance(Limits().owner_lease_s)
    world.ledger.job_desk.look_after()
    assert world.status(job_id) == "queued"


async def test_an_end_that_is_told_again_to_a_ledger_that_started_again_is_applied_once(open_world, until):
    world = open_world()
    job_id = world.submit(world.caller("Ada"))
    world.hire()
    await until(lambda: len(world.started) == 1)
    run = world.started[0]
    world.finish(run)
    await until(lambda: isinstance(world.told[-1], Noted))
    again = open_world()
    again.hire()
    again.finish(run)
    await until(lambda: again.told == [Noted(1)])
    assert (again.status(job_id), len(again.ledger.events(Job.Succeeded))) == ("succeeded", 1)


# -- what ends by itself


async def test_another_try_waits_longer_each_time(open_world, until, clock):
    world = open_world(job_retry_s=1)
    world.submit(world.caller("Ada"))
    world.hire()
    for tries, pause_s in ((1, 1), (2, 4)):
        await until(lambda: len(world.started) == tries)  # noqa: B023
        world.finish(world.started[-1], http_status=502, code="vllm_engine_dead", retryable=True)
        clock.advance(pause_s - 0.1)
        world.ledger.job_desk.look_after()
        assert len(world.ledger.traffic._job_tickets) == 0
        clock.advance(0.1)
        world.ledger.job_desk.look_after()
    await until(lambda: len(world.started) == 3)


async def test_the_queued_jobs_of_a_suspended_account_are_cancelled_when_their_turn_comes(open_world, until):
    world = open_world()
    ada = world.caller("Ada")
    first, second = world.submit(ada), world.submit(ada)
    world.hire()
    await until(lambda: len(world.started) == 1)
    world.ledger.accounts.suspend_account(ada[0])
    world.finish(world.started[0])
    await until(lambda: len(world.ledger.events(Job.Cancelled)) == 1)
    assert (world.status(first), world.status(second)) == ("succeeded", "cancelled")
    assert world.ledger.events(Job.Cancelled)[0].reason == "account_suspended"
    assert len(world.ledger.events(Ledger.HoldReleased)) == 1


async def test_a_result_is_kept_for_its_time_and_then_nobody_finds_the_job(open_world, until):
    moment = datetime(2026, 11, 29, 12, tzinfo=UTC)
    world = open_world(now=lambda: moment)
    ada = world.caller("Ada")
    job_id = world.submit(ada)
    world.hire()
    await until(lambda: len(world.started) == 1)
    kept = world.ledger.job_blobs.put(b"the result")
    world.finish(world.started[0], result_sha256=kept.sha256)
    moment += timedelta(seconds=Limits().job_kept_s)
    world.ledger.job_desk.look_after()
    assert world.status(job_id) == "succeeded"
    moment += timedelta(seconds=1)
    world.ledger.job_desk.look_after()
    await until(lambda: len(world.ledger.events(Job.ResultExpired)) == 1)
    world.say(LookAt(99, ada[0], job_id))
    await until(lambda: world.told[-1] == JobTold(99, None))
    assert not list(world.ledger.job_blobs._folder.glob("??/*"))
    assert open_world().ledger.memory.jobs.get(job_id) is None
