"""Harvests at the ledger: whose turn it is, and what stays of them through a restart."""

from datetime import UTC, datetime, timedelta

import pytest
from local_ledger import local_ledger

from acs.events.harvest import Harvest, Terms, WrittenShard
from acs.events.ids import HARVEST, HOLD, show, uuid7
from acs.events.ledger import Ledger
from acs.platform.ledger import memory as memory_module
from acs.platform.ledger.contract import Open
from acs.platform.ledger.harvest_contract import (
    EndHarvest,
    HarvestTold,
    LookAtHarvest,
    NoteShard,
    RunHarvest,
    SubmitHarvest,
    WaitForHarvest,
)
from acs.platform.ledger.job_contract import SubmitRefused
from acs.platform.limits import Limits

RUNNER = "runner_1"
SHARD = WrittenShard("shard-00000-11111111.parquet", 10, 100, "1" * 64, 2, 10, 5, 5)


class World:
    """Clients and a runner of a local ledger; the runner runs until it is told how a run ends."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.desk = ledger.harvest_desk
        self.work = []
        self.told = []
        self.asked = 0

    def hire(self, name=RUNNER, models=("toy",)):
        self.desk.runner_came(name, self.work.append)
        self.desk.offers(name, models)

    def say(self, command, owner="ingress_1"):
        self.desk.handle(owner, command, self.told.append)

    def number(self):
        self.asked += 1
        return self.asked

    def submit(self, caller, tokens=20):
        account, key = caller
        harvest_id = show(HARVEST, uuid7())
        order = Open(show(HOLD, uuid7()), account, key, "req", "toy", "harvest", None, tokens, 4, 0, 0, False)
        terms = Terms(account, key, "toy", order.hold_id, "req", "0" * 64, 4, tokens, 2, [0], 8, "all", 1000)
        self.say(SubmitHarvest(self.number(), harvest_id, order, terms))
        return harvest_id

    def note(self, harvest_id, run=1, owner=RUNNER):
        self.say(NoteShard(self.number(), harvest_id, run, 0, SHARD), owner)

    def end(self, harvest_id, run=1, owner=RUNNER, tokens=20, manifest="2" * 64, word=None):
        self.say(EndHarvest(self.number(), harvest_id, run, tokens, manifest, word), owner)

    def status(self, harvest_id):
        return self.ledger.memory.harvests[harvest_id].status.value

    def started(self):
        return [work.harvest_id for work in self.work if isinstance(work, RunHarvest)]

    async def stored(self):
        """What has been answered, once all of it is on disk."""
        while self.ledger.commits.busy:
            await self.ledger.stored()
        return self.told


@pytest.fixture
def caller():
    def make(ledger, name="Ada"):
        account = ledger.account(name)
        return account, ledger.key(account)[0]

    return make


async def test_accounts_take_turns(tmp_path, caller):
    with local_ledger(tmp_path, limits=Limits(harvests_at_once=2)) as ledger:
        world, ada, bob = World(ledger), caller(ledger), caller(ledger, "Bob")
        first, second, third = (world.submit(ada) for _ in range(3))
        bobs = world.submit(bob)
        world.hire()
        await world.stored()
        assert world.started() == [first, bobs]
        world.end(first)
        await world.stored()
        assert world.started() == [first, bobs, second]
        world.end(bobs)
        await world.stored()
        assert world.started()[-1] == third


async def test_a_harvest_of_a_model_that_is_down_waits(tmp_path, caller):
    with local_ledger(tmp_path) as ledger:
        world = World(ledger)
        world.hire(models=())
        harvest_id = world.submit(caller(ledger))
        await world.stored()
        assert (world.started(), world.status(harvest_id)) == ([], "pending")
        world.desk.offers(RUNNER, ["toy"])
        await world.stored()
        assert world.started() == [harvest_id]


async def test_what_was_running_goes_on_after_a_restart_of_ledger_and_runner(tmp_path, caller):
    with local_ledger(tmp_path) as ledger:
        world = World(ledger)
        world.hire()
        harvest_id = world.submit(caller(ledger))
        world.note(harvest_id)
        await world.stored()
    with local_ledger(tmp_path) as ledger:
        world = World(ledger)
        world.hire()
        await world.stored()
        assert world.work == [RunHarvest(harvest_id, 1, ledger.memory.harvests[harvest_id].terms, {0: SHARD})]
        world.hire("runner_2")
        world.end(harvest_id)  # by the first one
        await world.stored()
        assert world.work[-1].run == 2
        assert world.status(harvest_id) == "running"
        world.end(harvest_id, 2, "runner_2")
        await world.stored()
        assert world.status(harvest_id) == "done"
        (settled,) = ledger.events(Ledger.HoldSettled)
        assert settled.prompt_tokens == 20


async def test_a_harvest_whose_runners_die_again_and_again_fails_and_costs_what_it_has_read(tmp_path, caller):
    with local_ledger(tmp_path, limits=Limits(harvest_runs=3)) as ledger:
        world = World(ledger)
        world.hire("runner_1")
        harvest_id = world.submit(caller(ledger))
        world.hire("runner_2")
        world.note(harvest_id, 2, "runner_2")  # it got further: the count begins again
        for name in ("runner_3", "runner_4"):
            world.hire(name)
        await world.stored()
        assert world.status(harvest_id) == "running"
    with local_ledger(tmp_path, limits=Limits(harvest_runs=3)) as ledger:
        world = World(ledger)
        world.hire("runner_4")  # the same one, which goes on
        await world.stored()
        world.hire("runner_5")
        await world.stored()
        assert (world.status(harvest_id), [work.run for work in world.work]) == ("running", [4, 5])
        world.hire("runner_6")
        await world.stored()
        assert (world.status(harvest_id), len(world.work)) == ("failed", 2)
        (failed,) = ledger.events(Harvest.Failed)
        (settled,) = ledger.events(Ledger.HoldSettled)
        assert (failed.word, settled.prompt_tokens) == ("runner_lost", SHARD.tokens)


async def test_of_harvests_that_lose_their_runners_together_one_is_given_up_at_a_time(tmp_path, caller):
    """The others may have lost them by its fault."""
    with local_ledger(tmp_path, limits=Limits(harvest_runs=2)) as ledger:
        world = World(ledger)
        world.hire("runner_1")
        first, second = world.submit(caller(ledger)), world.submit(caller(ledger, "Bob"))
        world.hire("runner_2")
        world.hire("runner_3")
        assert (world.status(first), world.status(second)) == ("running", "failed")
        world.note(first, 3, "runner_3")
        world.hire("runner_4")
        await world.stored()
        assert world.status(first) == "running"


async def test_an_end_that_is_told_twice_is_one_end(tmp_path, caller):
    with local_ledger(tmp_path) as ledger:
        world = World(ledger)
        world.hire()
        harvest_id = world.submit(caller(ledger))
        for _ in range(2):
            world.end(harvest_id)
        await world.stored()
        assert len(ledger.events(Harvest.Done)) == len(ledger.events(Ledger.HoldSettled)) == 1
        assert [reply.counts for reply in world.told[-2:]] == [True, True]


async def test_a_failed_harvest_pays_what_it_had_read(tmp_path, caller):
    with local_ledger(tmp_path) as ledger:
        world = World(ledger)
        world.hire()
        harvest_id = world.submit(caller(ledger))
        world.note(harvest_id)
        world.end(harvest_id, tokens=12, manifest=None, word="storage_full")
        nothing = world.submit(caller(ledger, "Bob"))
        world.end(nothing, tokens=0, manifest=None, word="vllm_oom")
        await world.stored()
        (settled,), (released,) = ledger.events(Ledger.HoldSettled), ledger.events(Ledger.HoldReleased)
        assert settled.prompt_tokens == 12
        assert released.reason == "vllm_oom"


async def test_a_checkpoint_remembers_harvests(tmp_path, caller, monkeypatch):
    monkeypatch.setattr(memory_module, "CHECKPOINT_EVENTS", 1)
    with local_ledger(tmp_path) as ledger:
        world, ada = World(ledger), caller(ledger)
        world.hire()
        done, running = world.submit(ada), world.submit(ada)
        for harvest_id in (done, running):
            world.note(harvest_id)
        world.end(done)
        await world.stored()
        remembered = list(ledger.memory.harvests.everything())
    with local_ledger(tmp_path) as ledger:
        assert ledger.memory.replayed <= 1
        assert list(ledger.memory.harvests.everything()) == remembered
        assert [id for id, _ in ledger.memory.harvests.unfinished()] == [running]


async def test_files_expire_and_long_after_that_nobody_finds_the_harvest(tmp_path, caller):
    now = datetime.now(UTC)
    with local_ledger(tmp_path, now=lambda: now) as ledger:
        world = World(ledger)
        world.hire()
        harvest_id = world.submit(ada := caller(ledger))
        world.end(harvest_id)
        world.desk.look_after()
        await world.stored()
        assert ledger.memory.harvests.with_files() == [harvest_id]
        now += timedelta(days=7, seconds=1)
        world.desk.look_after()
        await world.stored()
        assert ledger.memory.harvests.with_files() == []
        world.say(LookAtHarvest(world.number(), ada[0], harvest_id))
        now += timedelta(days=26)
        world.desk.look_after()
        world.say(LookAtHarvest(world.number(), ada[0], harvest_id))
        still, gone = (await world.stored())[-2:]
        assert still.harvest.expired
        assert gone == HarvestTold(world.asked, None)
    with local_ledger(tmp_path, now=lambda: now) as ledger:
        ledger.harvest_desk.look_after()
        assert list(ledger.memory.harvests.everything()) == []


async def test_a_cancelled_harvest_whose_runner_stays_away_ends_with_what_was_noted(tmp_path, caller):
    from acs.platform.clock import FakeClock
    from acs.platform.ledger.harvest_contract import CancelHarvest

    clock = FakeClock()
    with local_ledger(tmp_path, clock=clock) as ledger:
        world, ada = World(ledger), caller(ledger)
        world.hire()
        harvest_id = world.submit(ada)
        world.note(harvest_id)
        world.say(CancelHarvest(world.number(), ada[0], harvest_id))
        world.desk.runner_left(RUNNER)
        world.desk.look_after()
        assert world.status(harvest_id) == "running"
        clock.advance(Limits().owner_lease_s)
        world.desk.look_after()
        await world.stored()
        assert world.status(harvest_id) == "cancelled"
        (settled,) = ledger.events(Ledger.HoldSettled)
        assert settled.prompt_tokens == SHARD.tokens


async def test_waiting_reads_are_counted_over_all_ingresses_and_end_in_their_time(tmp_path, caller):
    from acs.platform.clock import FakeClock

    clock = FakeClock()
    with local_ledger(tmp_path, clock=clock, limits=Limits(platform_harvest_waits=2)) as ledger:
        world, ada = World(ledger), caller(ledger)
        harvest_id = world.submit(ada)
        await world.stored()
        world.told.clear()
        for number in range(3):
            world.say(WaitForHarvest(number, ada[0], f"key_{number}", harvest_id, "pending", 60), f"ingress_{number}")
        world.say(WaitForHarvest(0, ada[0], "key_0", harvest_id, "pending", 60), "ingress_0")  # sent again
        (declined,) = await world.stored()
        assert (declined.ask, declined.declined) == (2, True)
        clock.advance(60)
        world.desk.look_after()
        told = (await world.stored())[1:]
        assert {(reply.ask, reply.declined, reply.harvest.status) for reply in told} == {
            (0, False, "pending"),
            (1, False, "pending"),
        }


async def test_a_revoked_keys_submission_is_refused_by_the_ledger_itself(tmp_path, caller):
    with local_ledger(tmp_path) as ledger:
        world, (account, key) = World(ledger), caller(ledger)
        ledger.accounts.revoke_key(key)
        world.submit((account, key))
        (refused,) = await world.stored()
        assert isinstance(refused, SubmitRefused)
        assert refused.refusal.code == "revoked"
