"""Inference that fails, before a stream begins and after; the breaker; the deadline; silence."""

import asyncio
import dataclasses
import json

import pytest
from api_client import KEY_LEASE_S, Client, events_of, running_api, until

from acs.platform.clock import FakeClock
from acs.platform.inference.contract import Delta, EngineStatus, Failed
from acs.platform.key_book import RENEWAL_S

CODES = [
    ("upstream_unreachable", 502, True),
    ("upstream_server_error", 502, False),
    ("vllm_oom", 502, True),
    ("vllm_engine_dead", 502, True),
    ("upstream_deadline", 504, False),
]
HOWS = [{}, {"stream": True}, {"prompt_logprobs": -1}]


async def failing(api, code="vllm_oom", **fields):
    api.engine.fail_next = Failed(code, "It failed.")
    return await api.complete(**fields)


class Scripted:
    """An Engine that gives each request these Pieces, and notes what it was asked. A fact in between is waited for."""

    def __init__(self, *pieces, status="live"):
        self.pieces, self.asked, self.aborted, self._status = pieces, [], [], status

    def submit(self, request, sink):
        self.asked.append(request)
        self._task = asyncio.create_task(self._send(sink))

    async def _send(self, sink):
        for piece in self.pieces:
            if callable(piece):
                await until(piece)
            else:
                sink(piece)

    def abort(self, request_id):
        self.aborted.append(request_id)
        self._task.cancel()

    def status(self):
        return EngineStatus(self._status)


def never():
    return False


def use(api, engine):
    models = api.services.models
    models["toy"] = dataclasses.replace(models["toy"], engine=engine)
    return engine


@pytest.mark.parametrize("how", HOWS, ids=repr)
@pytest.mark.parametrize(("code", "status", "retryable"), CODES)
async def test_a_failure_before_anything_was_written_has_its_own_status(api, code, status, retryable, how):
    response = await failing(api, code, **how)
    error = response.json()["error"]
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert (error["code"], error["retryable"], error["type"]) == (code, retryable, "server_error")
    assert response.headers.get("x-should-retry") == (None if retryable else "false")
    assert response.headers.get("retry-after") == ("2" if retryable else None)
    assert (await api.complete()).status_code == 200


async def test_a_code_that_we_do_not_know_is_a_server_error(api):
    assert (await failing(api, "new_in_a_later_version")).json()["error"]["code"] == "upstream_server_error"


async def test_what_the_engine_refuses_is_the_clients_fault(api):
    response = await failing(api, "invalid_request")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert "retryable" not in response.json()["error"]


async def test_a_failure_after_the_stream_began_is_an_event_and_then_done(api):
    client = Client(api, stream=True)
    begun = Delta(0, [5], ["a"]), lambda: b'"a"' in client.body
    engine = use(api, Scripted(*begun, Failed("vllm_engine_dead", "It died.")))
    await client.task
    first, error, done = client.events
    assert client.messages[0]["status"] == 200
    assert json.loads(first)["choices"][0]["text"] == "a"
    assert json.loads(error) == {
        "error": {
            "message": "It died.",
            "type": "server_error",
            "param": None,
            "code": "vllm_engine_dead",
            "retryable": True,
        },
        "request_id": dict(client.messages[0]["headers"])[b"x-request-id"].decode(),
    }
    assert done == "[DONE]"
    assert engine.aborted == []


async def test_a_fault_of_ours_in_a_stream_is_an_internal_error_and_aborts(api):
    client = Client(api, stream=True)
    begun = Delta(0, [5], ["a"]), lambda: b'"a"' in client.body
    engine = use(api, Scripted(*begun, Delta(0, [5], [None])))
    await client.task
    _, error, done = client.events
    assert json.loads(error)["error"]["code"] == "internal_error"
    assert done == "[DONE]"
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("how", [{}, {"prompt_logprobs": -1}], ids=repr)
async def test_a_fault_of_ours_is_a_500_that_says_nothing_of_the_inside(api, how):
    use(api, Scripted(Delta(7, [5], ["a"], None, "length")))
    response = await api.complete(**how)
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"] == {
        "message": "The server failed on this request. It has been logged.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert response.json()["request_id"] == response.headers["x-request-id"]


async def test_a_fault_in_the_middle_of_a_long_answer_does_not_pass_for_its_end(api, monkeypatch):
    def parts(*_):
        yield b'{"id":'
        raise ValueError("a fault of ours")

    monkeypatch.setattr("acs.serve_apps.api.whole_vocabulary.rendered_parts", parts)
    client = Client(api, prompt_logprobs=-1)
    with pytest.raises(ValueError, match="a fault of ours"):  # so that the server cuts the connection
        await client.task
    assert [message["type"] for message in client.messages] == ["http.response.start", "http.response.body"]
    assert client.messages[-1]["more_body"] is True


@pytest.mark.parametrize("how", HOWS, ids=repr)
async def test_what_an_engine_aborts_on_its_own_may_be_sent_again(api, how):
    use(api, Scripted(Delta(0, [], [], None, "abort")))
    response = await api.complete(**how)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "vllm_engine_dead")


# -- the breaker


@pytest.fixture
async def clocked(toy_checkpoint):
    clock = FakeClock()
    async with running_api(toy_checkpoint, clock=clock.now) as api:
        api.clock = clock
        yield api


@pytest.mark.parametrize("how", HOWS, ids=repr)
async def test_after_five_failures_in_a_row_the_model_is_refused_for_30_s_and_then_probed(clocked, how):
    for _ in range(5):
        assert (await failing(clocked, **how)).status_code == 502
    response = await clocked.complete(**how)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "circuit_open")
    assert response.json()["error"]["retryable"] is True
    assert response.headers["retry-after"] == "30"
    assert len(clocked.engine.asked) == 5
    clocked.clock.advance(29.5)
    assert (await clocked.complete(**how)).headers["retry-after"] == "1"
    clocked.clock.advance(0.5)
    assert (await failing(clocked, **how)).status_code == 502  # the probe
    assert (await clocked.complete(**how)).headers["retry-after"] == "30"
    clocked.clock.advance(30)
    assert (await clocked.complete(**how)).status_code == 200
    assert (await clocked.complete(**how)).status_code == 200


async def test_one_probe_at_a_time(clocked):
    for _ in range(5):
        await failing(clocked)
    clocked.clock.advance(30)
    refused = []
    engine = use(clocked, Scripted(lambda: len(refused) == 4, Delta(0, [5], ["a"], None, "length")))
    probe = Client(clocked)
    await until(lambda: engine.asked)
    for _ in range(4):
        refused.append((await clocked.complete()).status_code)
    await probe.task
    assert refused == [503] * 4
    assert probe.messages[0]["status"] == 200


async def test_four_failures_and_a_success_do_not_open_it(clocked):
    for _ in range(3):
        for _ in range(4):
            await failing(clocked)
        assert (await clocked.complete()).status_code == 200


async def test_refused_requests_do_not_count(clocked):
    for _ in range(10):
        await failing(clocked, "invalid_request")
        await clocked.complete(temperature=-1)
    assert (await clocked.complete()).status_code == 200


async def test_a_failure_in_a_stream_that_began_counts(clocked):
    real = clocked.engine
    for _ in range(5):
        client = Client(clocked, stream=True)
        use(
            clocked,
            Scripted(Delta(0, [5], ["a"]), lambda client=client: b'"a"' in client.body, Failed("vllm_oom", "-")),
        )
        await client.task
        assert client.messages[0]["status"] == 200
    use(clocked, real)
    assert (await clocked.complete()).status_code == 503


async def test_an_engine_that_cannot_be_asked_leaves_the_probes_place_free(clocked):
    for _ in range(5):
        await failing(clocked)
    clocked.clock.advance(30)
    real, clocked.engine.submit = clocked.engine.submit, None
    assert (await clocked.complete()).status_code == 500
    clocked.engine.submit = real
    assert (await clocked.complete()).status_code == 200


# -- deadlines and silence


@pytest.mark.parametrize("how", [{}, {"prompt_logprobs": -1}], ids=repr)
async def test_a_whole_answer_that_takes_too_long_is_504_and_aborted(toy_checkpoint, how):
    async with running_api(toy_checkpoint, whole_deadline_s=0.05) as api:
        engine = use(api, Scripted(never))
        response = await api.complete(**how)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_deadline")
        assert response.headers["x-should-retry"] == "false"
        assert "retry-after" not in response.headers
        assert len(engine.aborted) == 1


async def test_a_stream_has_a_deadline_of_its_own(toy_checkpoint):
    async with running_api(toy_checkpoint, whole_deadline_s=0.001, stream_deadline_s=0.5) as api:
        engine = use(api, Scripted(Delta(0, [5], ["a"]), never))
        first, error, done = events_of(await api.complete(stream=True))
        assert json.loads(first)["choices"][0]["text"] == "a"
        assert json.loads(error)["error"]["code"] == "upstream_deadline"
        assert done == "[DONE]"
        assert len(engine.aborted) == 1


@pytest.mark.parametrize("how", [{}, {"stream": True}], ids=repr)
async def test_a_model_that_does_not_wake_is_503(toy_checkpoint, how):
    async with running_api(toy_checkpoint, whole_deadline_s=0.05, stream_deadline_s=0.05) as api:
        use(api, Scripted(never, status="cold"))
        response = await api.complete(**how)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "upstream_unreachable")
        assert response.headers["retry-after"] == "30"


async def test_deadlines_count_for_the_breaker(toy_checkpoint):
    async with running_api(toy_checkpoint, whole_deadline_s=0.01) as api:
        use(api, Scripted(never))
        for _ in range(5):
            assert (await api.complete()).status_code == 504
        assert (await api.complete()).status_code == 503


async def test_a_silent_stream_sends_comments_and_nothing_else_changes(toy_checkpoint):
    async with running_api(toy_checkpoint, keepalive_s=0.01) as api:
        client = Client(api, stream=True)

        def comments(count):
            return lambda: client.body.count(b": keepalive\n\n") >= count

        use(api, Scripted(comments(2), Delta(0, [5], ["a"]), comments(4), Delta(0, [6], ["b"], None, "length")))
        await client.task
        assert client.messages[0]["status"] == 200
        assert client.body.startswith(b": keepalive\n\n: keepalive\n\n")
        *events, done = client.events
        assert [json.loads(event)["choices"][0]["text"] for event in events] == ["a", "b"]
        assert done == "[DONE]"


async def test_keys_that_cannot_be_checked_are_503_and_not_a_refusal(api):
    api.key_clock.advance(KEY_LEASE_S)
    asking = asyncio.create_task(api.complete())
    await until(lambda: api.key_clock.waited_for)
    assert not asking.done()
    api.key_clock.advance(RENEWAL_S)
    response = await asking
    assert (response.status_code, response.json()["error"]["code"]) == (503, None)
    assert response.headers["retry-after"] == "1"
    assert "retryable" not in response.json()["error"]
