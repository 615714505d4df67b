"""Requests that give way: how many go into the engine, alone and beside others."""

import asyncio

import pytest

from acs.platform.inference.contract import Delta, Failed, Generate, Sampling
from acs.serve_apps.inference.lane import Lane, Step


class World:
    def __init__(self, step=None):
        self.now = 0.0
        self.lane = Lane(300, step, 128, clock=lambda: self.now)
        self.inside = []  # (request id, index)
        self.sinks = {}
        self.tasks = []

    def came(self, name, lengths=(1,), gives_way=False):
        request = Generate(name, [[0] * length for length in lengths], 1, Sampling(1), gives_way=gives_way)
        self.sinks[name] = self.lane.watched(request, lambda piece: None)
        self.tasks.append(asyncio.create_task(self._start(request)))

    async def _start(self, request):
        index = 0
        while index < len(request.prompts):
            together = await self.lane.enter(request, index)
            if not together:
                return
            self.inside += [(request.request_id, inside) for inside in together]
            index = together.stop

    def end(self, name, index=0):
        self.sinks[name](Delta(index, [1], ["a"], None, "length"))

    async def settled(self):
        for _ in range(10):
            await asyncio.sleep(0)
        return [index for name, index in self.inside if name == "harvest"]


@pytest.fixture
def world():
    return World()


async def test_alone_as_many_go_in_as_keep_the_engine_busy(world):
    world.came("harvest", [100] * 5, gives_way=True)
    assert await world.settled() == [0, 1, 2]
    world.end("harvest", 1)
    assert await world.settled() == [0, 1, 2, 3]


async def test_a_prompt_that_is_longer_than_that_goes_in_alone(world):
    world.came("harvest", [1000, 10], gives_way=True)
    assert await world.settled() == [0]
    world.end("harvest")
    assert await world.settled() == [0, 1]


async def test_none_goes_in_beside_what_is_there_when_somebody_else_comes(world):
    world.came("harvest", [100] * 5, gives_way=True)
    await world.settled()
    world.came("direct")
    world.end("harvest", 0)
    world.end("harvest", 1)
    assert await world.settled() == [0, 1, 2]
    assert ("direct", 0) in world.inside


async def test_beside_others_a_few_tokens_go_in_now_and_then(world):
    world.came("direct")
    await world.settled()
    world.came("harvest", [60] * 6, gives_way=True)
    assert await world.settled() == [0, 1], "128 tokens at most"
    world.now = 1.0
    world.end("harvest", 0)
    assert await world.settled() == [0, 1], "no more of them than went in together"
    world.end("harvest", 1)
    assert await world.settled() == [0, 1]
    world.now = 9.9
    world.lane._rested()
    assert await world.settled() == [0, 1]
    world.now = 10.0
    world.lane._rested()
    assert await world.settled() == [0, 1, 2, 3]


async def test_soon_after_the_others_have_gone_it_goes_on(world):
    world.came("direct")
    world.came("harvest", [100] * 5, gives_way=True)
    assert await world.settled() == [0]
    world.now = 1.0
    world.end("harvest", 0)
    world.end("direct")
    assert await world.settled() == [0], "most clients ask again at once"
    world.now = 1.5
    world.lane._rested()
    assert await world.settled() == [0, 1, 2, 3]


async def test_with_steps_prompts_go_in_together_cut_the_same_way_and_nothing_joins_them():
    world = World(Step(300, 4))
    world.came("harvest", [100, 150, 100, 10, 10, 10, 10, 1000, 5], gives_way=True)
    world.came("another", [5], gives_way=True)
    assert await world.settled() == [0, 1]
    world.end("harvest", 0)
    assert await world.settled() == [0, 1]
    world.end("harvest", 1)
    assert await world.settled() == [0, 1, 2, 3, 4, 5]
    for index in (2, 3, 4, 5):
        assert ("another", 0) not in world.inside
        world.end("harvest", index)
        await world.settled()
    assert await world.settled() == [0, 1, 2, 3, 4, 5], "another has its turn"
    world.end("another")
    for index in (6, 7, 8):
        assert await world.settled() == list(range(index + 1))
        world.end("harvest", index)


async def test_a_request_that_failed_or_was_dropped_leaves_its_place(world):
    world.came("harvest", [300, 300], gives_way=True)
    world.came("another", [300], gives_way=True)
    await world.settled()
    world.lane.drop("harvest")
    await world.settled()
    assert world.tasks[0].done()
    world.sinks["harvest"](Failed("vllm_oom", "It failed."))
    await world.settled()
    assert ("another", 0) in world.inside
    world.end("another")
    assert (world.lane._inside, world.lane._requests) == (0, {})
