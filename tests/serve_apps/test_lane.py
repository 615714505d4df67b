"""Requests that give way: how many go into the engine, alone and beside others."""

import asyncio

import pytest
from api_client import until

from acs.platform.inference.contract import Delta, Failed, Generate, Sampling
from acs.serve_apps.inference.lane import Lane, Step


class World:
    def __init__(self, step=None):
        self.now = 0.0
        self.takes = False  # the engine says when it has taken what went in
        self.begun = True  # and, when it is asked, that it has begun with that
        self.lane = Lane(300, step, 128, clock=lambda: self.now)
        self.inside = []  # (request id, index)
        self.sinks = {}
        self.tasks = []

    def came(self, name, lengths=(1,), gives_way=False):
        request = Generate(name, [[0] * length for length in lengths], 1, Sampling(1), gives_way=gives_way)
        self.sinks[name] = self.lane.watched(request, lambda piece: None)
        self.tasks.append(asyncio.create_task(self._start(request)))

    async def _start(self, request):
        if not request.gives_way:
            self.inside += [(request.request_id, index) for index in range(len(request.prompts))]
            return
        left = len(request.prompts)
        while left:
            together = await self.lane.enter(request)
            if not together:
                return
            self.inside += [(request.request_id, index) for index in together]
            if self.takes:
                self.lane.taken(request, together, lambda: self.begun)
            left -= len(together)

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


async def test_with_steps_the_next_go_in_when_a_step_has_begun_and_wait_for_the_end_of_what_takes_several():
    world = World(Step(300, 4))
    world.takes = True
    world.came("harvest", [100, 150, 200, 1000, 5, 5, 60], gives_way=True)
    assert await world.settled() == [3, 2], "the last step of a prompt of several has room for those that came with it"
    world.end("harvest", 2)
    world.end("harvest", 3)
    assert await world.settled() == [3, 2, 1, 0, 4, 5, 6]


async def test_with_steps_the_next_wait_until_a_step_with_those_before_has_begun_however_long_that_takes():
    world = World(Step(300, 4))
    world.takes, world.begun = True, False
    world.came("harvest", [300, 300, 300], gives_way=True)
    await until(lambda: world.inside == [("harvest", 0)])
    assert await world.settled() == [0]
    world.begun = True
    await until(lambda: world.inside == [("harvest", 0), ("harvest", 1), ("harvest", 2)])


async def test_with_steps_what_is_said_of_a_group_that_has_ended_says_nothing_of_the_next():
    world = World(Step(300, 4))
    world.came("harvest", [300, 300, 300], gives_way=True)
    await world.settled()
    requests = {name: one.request for name, one in world.lane._requests.items()}
    world.came("another", [300], gives_way=True)
    world.end("harvest", 0)
    assert await world.settled() == [0, 1]
    world.end("harvest", 1)
    await world.settled()
    assert ("another", 0) in world.inside
    world.lane.taken(requests["harvest"], [1], lambda: True)  # the engine's word of it comes late
    assert await world.settled() == [0, 1]


async def test_with_steps_prompts_that_fill_one_go_in_together_the_same_each_time_and_nothing_joins_them():
    world = World(Step(300, 4))
    world.came("harvest", [100, 150, 100, 10, 10, 10, 10, 1000, 5], gives_way=True)
    world.came("another", [5], gives_way=True)
    seen = []
    for group in ([7, 1, 3, 4], [0, 2, 5, 6]):
        seen += group
        for index in group:
            assert await world.settled() == seen
            assert ("another", 0) not in world.inside
            world.end("harvest", index)
    assert await world.settled() == seen
    assert ("another", 0) in world.inside, "each has its turn"
    world.end("another")
    assert await world.settled() == [*seen, 8]


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
