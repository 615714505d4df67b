"""A client that hangs up, on the raw ASGI application: its generation ends in the engine at once."""

import asyncio
import json

import pytest
from api_client import Client, running_api, until

from acs.platform.wiring import WHOLE_VOCABULARY_AT_ONCE

HOWS = [
    pytest.param({}, id="whole"),
    pytest.param({"stream": True}, id="stream"),
    pytest.param({"n": 64}, id="many choices"),
    pytest.param({"n": 64, "stream": True}, id="many choices, stream"),
    pytest.param({"prompt_logprobs": -1}, id="whole vocabulary"),
]


@pytest.mark.parametrize("how", HOWS)
async def test_a_client_that_hangs_up_aborts_its_generation(api, how):
    api.engine.step_s = 0.002
    client = Client(api, max_tokens=1500, **how)
    await until(lambda: api.running == how.get("n", 1))
    if how.get("stream"):
        await until(lambda: client.body.count(b"data: ") > 3)
    client.hang_up()
    await until(lambda: api.running == 0)
    await asyncio.wait_for(client.task, 10)
    assert b"[DONE]" not in client.body
    assert b"error" not in client.body


@pytest.mark.parametrize("how", HOWS)
async def test_a_client_that_is_gone_before_it_is_served_leaves_nothing_running(api, how):
    client = Client(api, max_tokens=1500, **how)
    client.hang_up()
    await asyncio.wait_for(client.task, 10)
    await until(lambda: api.running == 0)


@pytest.mark.parametrize("how", HOWS)
async def test_a_request_that_is_cancelled_leaves_nothing_running(api, how):
    """A server that stops cancels what it serves."""
    api.engine.step_s = 0.002
    client = Client(api, max_tokens=1500, **how)
    await until(lambda: api.running > 0)
    client.task.cancel()
    await until(lambda: api.running == 0)
    await asyncio.wait([client.task])


async def test_a_client_that_stays_gets_its_answer(api):
    client = Client(api)
    await asyncio.wait_for(client.task, 10)
    assert client.messages[0]["status"] == 200
    assert json.loads(client.body)["usage"]["completion_tokens"] == 2


async def test_a_client_that_hangs_up_does_not_count_for_the_breaker(toy_checkpoint):
    async with running_api(toy_checkpoint, breaker_failures=2) as api:
        api.engine.step_s = 0.002
        for _ in range(5):
            client = Client(api, max_tokens=1500)
            await until(lambda: api.running == 1)
            client.hang_up()
            await asyncio.wait_for(client.task, 10)
        await until(lambda: api.running == 0)
        assert (await api.complete()).status_code == 200


async def test_a_client_that_hangs_up_in_its_body_is_forgotten(api):
    client = Client(api, whole=False)
    client.hang_up()
    await asyncio.wait_for(client.task, 10)
    assert api.engine.asked == []


async def test_a_client_that_takes_nothing_of_a_long_answer_loses_its_place_to_the_next(toy_checkpoint):
    async with running_api(toy_checkpoint, stalled_s=0.01) as api:
        stalled = [Client(api, prompt_logprobs=-1, reads=False) for _ in range(WHOLE_VOCABULARY_AT_ONCE)]
        after = Client(api, prompt_logprobs=-1)
        await asyncio.wait_for(after.task, 10)
        assert json.loads(after.body)["usage"]["completion_tokens"] == 2
        for client in stalled:
            with pytest.raises(TimeoutError):  # so that the server cuts the connection
                await client.task


async def test_a_client_that_reads_no_more_of_its_stream_is_cut_off_and_its_generation_aborted(toy_checkpoint):
    async with running_api(toy_checkpoint, stalled_s=0.01) as api:
        client = Client(api, stream=True, max_tokens=1500, reads=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.task, 10)
        await until(lambda: api.running == 0)


async def test_others_are_not_disturbed(api):
    api.engine.step_s = 0.002
    gone, stays = Client(api, max_tokens=1500, stream=True), Client(api, max_tokens=100, stream=True)
    await until(lambda: api.running == 2)
    gone.hang_up()
    await asyncio.wait_for(stays.task, 10)
    assert stays.body.endswith(b"data: [DONE]\n\n")
    assert stays.body.count(b"data: ") == 101
    await until(lambda: api.running == 0)
