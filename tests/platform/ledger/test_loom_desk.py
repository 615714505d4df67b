"""Looms at the ledger: what stays of them through a restart, and what comes twice and is done once."""

import pytest
from local_ledger import local_ledger

from acs.events.ids import BRANCH, HOLD, LOOM, NODE, show, uuid7
from acs.events.ledger import Ledger
from acs.events.loom import Loom
from acs.platform.ledger import memory as memory_module
from acs.platform.ledger.contract import Open
from acs.platform.ledger.job_contract import Finish, Grown, Offer, RunJob, StopJob
from acs.platform.ledger.loom_contract import (
    AskBranch,
    CreateLoom,
    DeleteLoom,
    DeleteNodes,
    LookAtLoom,
    LoomTold,
    Retitle,
    Written,
)
from acs.storage.blobs import BlobUnavailable

RUNNER = "runner_1"
PLANTED = 1_800_000_000


class World:
    def __init__(self, ledger):
        self.ledger = ledger
        self.work = []
        self.told = []
        self.asked = 0

    def hire(self, name=RUNNER):
        self.ledger.job_desk.runner_came(name, self.work.append)
        self.ledger.job_desk.handle(name, Offer(["toy"]), self.told.append)

    def say(self, command):
        desk = self.ledger.job_desk if isinstance(command, Finish) else self.ledger.loom_desk
        desk.handle(RUNNER, command, self.told.append)
        return command

    def number(self):
        self.asked += 1
        return self.asked

    def caller(self):
        account = self.ledger.account()
        return account, self.ledger.key(account)[0]

    def plant(self, caller):
        root = Written(show(NODE, uuid7()), "0" * 64, 10, 3)
        return self.say(CreateLoom(self.number(), show(LOOM, uuid7()), *caller, "toy", "t" * 64, None, root, PLANTED))

    def branch(self, planted, n=1, parent=None):
        order = Open(
            *(show(HOLD, uuid7()), planted.account_id, planted.key_id, "req", "toy", "branch", None, 3, n, 10, 0, False)
        )
        ids = [show(NODE, uuid7()) for _ in range(n)]
        parent = parent or planted.root.node_id
        blobs = ["1" * 64, "2" * 64, 2]
        return self.say(
            AskBranch(
                *(
                    self.number(),
                    planted.loom_id,
                    show(BRANCH, uuid7()),
                    parent,
                    None,
                    ids,
                    None,
                    order,
                    *blobs,
                    PLANTED,
                )
            )
        )

    def finish(self, run, **fields):
        grown = [Grown(id, id[-32:] * 2, 20, 4, "length", None) for id in run.node_ids]
        fields = {"http_status": 200, "grown": grown, **fields}
        return self.say(Finish(self.number(), run.job_id, run.run, 3, 4, **fields))

    def events(self, kind):
        return [type(event).__name__ for event in self.ledger.events(kind)]

    @property
    def runs(self):
        return [work for work in self.work if isinstance(work, RunJob)]

    def looms(self):
        return {loom_id: (version, record) for loom_id, version, record in self.ledger.memory.looms.everything()}


@pytest.fixture
def open_world(tmp_path, clock):
    opened = []

    def make():
        if opened:  # the ledger before it dies
            opened.pop().__exit__(None, None, None)
        opened.append(local_ledger(tmp_path, clock=clock))
        return World(opened[-1].__enter__())

    yield make
    for context in opened:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("checkpoint_events", [10**6, 5, 1])
async def test_looms_are_as_they_were_after_a_restart(open_world, until, monkeypatch, checkpoint_events):
    monkeypatch.setattr(memory_module, "CHECKPOINT_EVENTS", checkpoint_events)
    world = open_world()
    world.hire()
    caller = world.caller()
    planted = world.plant(caller)
    world.branch(planted, 3)
    await until(lambda: len(world.runs) == 1)
    first, second, third = world.runs[0].node_ids
    world.finish(world.runs[0])
    world.branch(planted, 2, parent=first)
    world.branch(planted, 1, parent=third)
    world.say(DeleteNodes(world.number(), caller[0], planted.loom_id, [second]))
    world.say(DeleteLoom(world.number(), caller[0], world.plant(caller).loom_id))
    await until(lambda: len(world.runs) == 3 and len(world.told) == 8)
    before = world.looms()
    assert list(before) == [planted.loom_id]
    world = open_world()
    assert world.looms() == before
    world.hire()
    await until(lambda: len(world.runs) == 2)
    for run in world.runs:
        world.finish(run)
    await until(lambda: world.events(Loom.BranchGrown) == ["BranchGrown"] * 3)
    assert world.events((Ledger.HoldSettled, Ledger.HoldReleased)) == ["HoldSettled"] * 3
    assert world.ledger.traffic._taken["toy"] == 0


async def test_what_is_said_twice_is_done_once(open_world, until):
    world = open_world()
    world.hire()
    planted = world.plant(world.caller())
    world.say(planted)
    asked = world.branch(planted, 2)
    world.say(asked)
    await until(lambda: len(world.runs) == 1)
    finished = world.finish(world.runs[0])
    world.say(finished)
    await until(lambda: len(world.told) == 6)
    assert world.events(Loom.Event) == ["Created", "BranchAsked", "BranchStarted", "BranchGrown"]
    assert world.events(Ledger.Event) == ["Created", "HoldPlaced", "HoldSettled"]
    assert all(told.loom is not None for told in world.told if isinstance(told, LoomTold))


async def test_a_hold_and_what_it_is_for_are_one_commit(open_world, until):
    world = open_world()
    planted = world.plant(world.caller())
    await until(lambda: len(world.told) == 1)
    world.ledger.commits_fail_after(0)
    world.branch(planted)
    await until(lambda: world.ledger.failures)
    world = open_world()
    assert world.events(Ledger.HoldPlaced) == world.events(Loom.BranchAsked) == []
    (_, record) = world.looms()[planted.loom_id]
    assert list(record.nodes) == [planted.root.node_id]


async def test_a_branch_deleted_just_before_the_ledgers_end_is_stopped_by_the_next(open_world, until):
    world = open_world()
    world.hire()
    caller = world.caller()
    planted = world.plant(caller)
    world.branch(planted)
    await until(lambda: len(world.runs) == 1)
    world.say(DeleteLoom(world.number(), caller[0], planted.loom_id))
    await until(lambda: world.events(Loom.Deleted) == ["Deleted"])
    world = open_world()
    world.hire()
    await until(lambda: any(isinstance(work, StopJob) for work in world.work))
    world.finish(world.runs[0], http_status=None, grown=[])
    await until(lambda: world.events(Loom.BranchCancelled) == ["BranchCancelled"])
    assert world.looms() == {}
    assert world.events(Ledger.HoldSettled) == ["HoldSettled"]


async def test_a_late_word_of_a_run_that_no_longer_counts_changes_nothing(open_world, until):
    world = open_world()
    world.hire()
    planted = world.plant(world.caller())
    world.branch(planted)
    await until(lambda: len(world.runs) == 1)
    world.hire("runner_2")
    world.ledger.job_desk.runner_left("runner_2")
    world.finish(world.runs[0])
    world.hire()
    await until(lambda: world.runs[-1].run == 3)
    world.finish(world.runs[-1])
    await until(lambda: world.events(Loom.BranchGrown) == ["BranchGrown"])
    assert len(world.events(Ledger.HoldSettled)) == 1


async def test_what_is_told_is_on_disk(open_world, until):
    """A version that somebody was told never comes again with something else in it."""
    world = open_world()
    caller = world.caller()
    planted = world.plant(caller)
    world.branch(planted)
    world.say(LookAtLoom(world.number(), *caller, planted.loom_id))
    assert world.told == []
    await until(lambda: len(world.told) == 3)
    told = world.told[-1].loom
    assert told.version == len(world.ledger.events(Loom.Event)) == 2


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
async def test_a_title_that_is_given_twice_around_another_does_not_name_what_was_erased(tmp_path, restarted):
    """It was stored when it was given first, and the answer lost."""

    def give(world, planted, title):
        world.say(Retitle(world.number(), planted.account_id, planted.loom_id, title.sha256))

    with local_ledger(tmp_path) as ledger:
        world = World(ledger)
        planted = world.plant(world.caller())
        twice, other = ledger.loom_blobs.put(b"Skies"), ledger.loom_blobs.put(b"Seas")
        give(world, planted, twice)
        give(world, planted, other)
        if not restarted:
            give(world, planted, twice)
        await ledger.stored()
    with local_ledger(tmp_path) as ledger:
        world = World(ledger)
        if restarted:
            give(world, planted, twice)
            await ledger.stored()
        title = ledger.memory.looms.find(planted.account_id, planted.loom_id).title_sha256
        assert ledger.loom_blobs.get(title) == b"Seas"
        with pytest.raises(BlobUnavailable):
            ledger.loom_blobs.get(twice.sha256)
