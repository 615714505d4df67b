"""Sending a request again under an Idempotency-Key: every outcome, and what it costs."""

import asyncio
import json

import pytest
from api_client import Client, good, running_api, until
from test_failures import Scripted, never, use
from test_holds import set_budget

from acs.events.idempotency import IdempotentRequest
from acs.events.ledger import Ledger
from acs.platform.inference.contract import Delta, Failed


async def send(api, key="k1", secret=None, path="/v1/completions", content=None, **fields):
    headers = {"Idempotency-Key": key}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    body = json.dumps(good(**fields)) if content is None else content
    return await api.http.post(path, content=body, headers={**headers, "Content-Type": "application/json"})


def code(response):
    return response.status_code, response.json()["error"]["code"]


def charges(api):
    return api.ledger.events(Ledger.HoldSettled)


async def test_the_same_request_again_gives_the_first_answer_and_costs_nothing(api):
    first = await send(api, temperature=0.9)
    again = await send(api, temperature=0.9)
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert len(api.engine.asked) == len(charges(api)) == 1


async def test_without_a_key_every_request_runs(api):
    for _ in range(2):
        await api.complete()
    assert len(api.engine.asked) == 2


@pytest.mark.parametrize(
    "content",
    [
        '{"prompt": "x", "model": "toy",   "max_tokens": 2.0}',
        '{"model": "toy", "max_tokens": 2, "prompt": "\\u0078", "seed": null}',
    ],
)
async def test_the_order_of_keys_spacing_nulls_and_the_spelling_of_numbers_make_no_other_request(api, content):
    await send(api, content='{"model": "toy", "prompt": "x", "max_tokens": 2}')
    again = await send(api, content=content)
    if again.status_code == 200:  # 2.0 is no whole number to the shape, and is refused before its key is looked at
        assert again.headers["idempotent-replayed"] == "true"
    assert len(api.engine.asked) == 1


async def test_another_body_under_the_same_key_is_a_conflict(api):
    await send(api)
    other = await send(api, max_tokens=3)
    assert code(other) == (409, "idempotency_conflict")
    assert other.headers["x-should-retry"] == "false"


async def test_a_default_spelled_out_is_another_request(api):
    await send(api)
    assert code(await send(api, temperature=1)) == (409, "idempotency_conflict")


async def test_a_key_belongs_to_its_account(api):
    await send(api)
    other = api.ledger.account("Bob")
    _, secret = api.ledger.key(other)
    await api.complete_with(secret)  # the ingress hears of the key
    assert (await send(api, secret=secret, max_tokens=3)).status_code == 200


async def test_two_keys_of_one_account_share_its_idempotency_keys(api):
    await send(api)
    (account, *_) = api.ledger.accounts.list_accounts()
    _, secret = api.ledger.key(f"acct_{account.id.hex}", "second")
    await api.complete_with(secret)
    assert (await send(api, secret=secret)).headers["idempotent-replayed"] == "true"


async def test_while_the_first_runs_the_second_is_told_so_and_when_to_come_back(api):
    api.engine.step_s = 0.002
    first = asyncio.create_task(send(api, max_tokens=100))
    await until(lambda: api.running == 1)
    second = await send(api, max_tokens=100)
    assert code(second) == (409, "running")
    assert second.headers["retry-after"] == "1"
    assert code(await send(api, max_tokens=101)) == (409, "idempotency_conflict")
    await first
    assert (await send(api, max_tokens=100)).content == first.result().content


async def test_while_the_first_waits_for_its_turn_the_second_is_told_so(toy_checkpoint):
    async with running_api(toy_checkpoint, key_running=1) as api:
        api.engine.step_s = 0.002
        blocks = Client(api, max_tokens=1500)
        await until(lambda: api.running == 1)
        first = asyncio.create_task(send(api))
        await until(lambda: api.ledger.traffic.tickets)
        assert code(await send(api)) == (409, "running")
        assert code(await send(api, max_tokens=3)) == (409, "idempotency_conflict")
        blocks.hang_up()
        assert (await first).status_code == 200


async def test_two_hundred_clients_with_one_key_at_once_make_one_run_and_one_charge(toy_checkpoint):
    async with running_api(toy_checkpoint) as api:
        responses = await asyncio.gather(*(send(api, max_tokens=20) for _ in range(200)))
        outcomes = {response.status_code for response in responses}
        assert outcomes <= {200, 409}
        assert 200 in outcomes
        assert len(api.engine.asked) == 1
        await until(lambda: len(charges(api)) == 1)


async def test_a_client_that_hangs_up_on_a_whole_answer_finds_it_when_it_comes_back(api):
    """A flaky connection is what the key is for: the run goes on."""
    api.engine.step_s = 0.002
    client = Client(api, max_tokens=50, key="k1")
    await until(lambda: api.running == 1)
    client.hang_up()
    await until(lambda: api.running == 0)
    await until(lambda: charges(api))
    again = await send(api, max_tokens=50)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["usage"]["completion_tokens"] == 50


async def test_a_stream_runs_once_under_a_key(api):
    assert (await send(api, stream=True)).status_code == 200
    await until(lambda: charges(api))
    again = await send(api, stream=True)
    assert code(again) == (409, "no_answer")
    assert again.headers["x-should-retry"] == "false"
    assert len(api.engine.asked) == 1


async def test_an_answer_too_large_to_be_kept_leaves_none(toy_checkpoint):
    async with running_api(toy_checkpoint, kept_answer_bytes=100) as api:
        assert (await send(api)).status_code == 200
        assert code(await send(api)) == (409, "no_answer")


@pytest.mark.parametrize(
    "fields", [{"temperature": 101}, {"model": "nobody"}, {"max_tokens": 10**4}, {"nonsense": 1}], ids=repr
)
async def test_what_was_refused_before_it_ran_is_not_kept(api, fields):
    assert (await send(api, **fields)).status_code == 400
    assert (await send(api)).status_code == 200


async def test_a_refusal_for_the_budget_is_not_kept(api):
    await set_budget(api, 1)
    assert code(await send(api)) == (429, "budget_exceeded")
    await set_budget(api, None)
    assert (await send(api)).status_code == 200


async def test_a_retryable_failure_that_cost_nothing_frees_the_key(api):
    api.engine.fail_next = Failed("vllm_engine_dead", "It died.")
    assert (await send(api)).status_code == 502
    await until(lambda: api.ledger.events(IdempotentRequest.Freed))
    assert (await send(api)).status_code == 200
    assert (await send(api)).headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(("failure", "status"), [("upstream_server_error", 502), ("upstream_deadline", 504)])
async def test_a_failure_that_is_not_worth_a_retry_is_the_answer(api, failure, status):
    api.engine.fail_next = Failed(failure, "It failed.")
    first = await send(api)
    assert first.status_code == status
    await until(lambda: api.ledger.events(IdempotentRequest.Answered))
    again = await send(api)
    assert (again.status_code, again.content) == (status, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert len(api.engine.asked) == 1


async def test_a_fault_of_our_own_is_the_answer(api, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(api.engine, "submit", broken)
        first = await send(api)
    await until(lambda: api.ledger.events(IdempotentRequest.Answered))
    again = await send(api)
    assert (again.status_code, again.content) == (500, first.content)


async def test_the_clamp_header_is_given_again(api):
    await set_budget(api, 20)
    first = await send(api, max_tokens=50)
    again = await send(api, max_tokens=50)
    assert first.headers["x-acs-max-tokens-clamped"] == again.headers["x-acs-max-tokens-clamped"]


async def test_an_ingress_that_died_left_no_answer(api):
    engine = use(api, Scripted(never))
    first = asyncio.ensure_future(send(api))
    await until(lambda: engine.asked)
    api.ledger.desk.give_up(api.services.ledger.owner)
    await until(lambda: api.ledger.events(IdempotentRequest.LeftNoAnswer))
    assert code(await send(api)) == (409, "no_answer")
    first.cancel()


async def test_an_answer_whose_bytes_are_gone_is_said_to_be_and_not_run_again(api):
    await send(api)
    (event,) = api.ledger.events(IdempotentRequest.Answered)
    api.services.answers.erase(event.body_sha256)
    assert code(await send(api)) == (409, "no_answer")
    assert len(api.engine.asked) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\tinside", "ü"])
async def test_a_bad_key_is_refused(api, key):
    response = await send(api, key=key.encode("latin-1") if key else key)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_request", "Idempotency-Key")


async def test_a_key_of_255_characters_is_good(api):
    assert (await send(api, key="~" * 255)).status_code == 200


async def test_the_key_itself_is_stored_nowhere(api):
    await send(api, key="a-very-particular-key")
    assert "a-very-particular-key" not in str([vars(event) for event in api.ledger.events()])


async def test_a_fault_of_the_shape_comes_before_a_bad_key_and_a_replay_before_the_rate(toy_checkpoint):
    async with running_api(toy_checkpoint, key_rate_per_minute=1) as api:
        assert (await send(api, key="", temperature=101)).json()["error"]["param"] == "temperature"
        assert (await send(api)).status_code == 200
        assert (await send(api)).headers["idempotent-replayed"] == "true"
        assert code(await send(api, key="k2")) == (429, "rate_limited")


async def test_a_suspended_account_is_given_nothing_again(api):
    await send(api)
    (account, *_) = api.ledger.accounts.list_accounts()
    api.ledger.accounts.suspend_account(f"acct_{account.id.hex}")
    assert code(await send(api)) == (401, "account_suspended")


async def test_a_choice_that_ended_before_the_engine_failed_costs_nothing_and_frees_the_key(api):
    died = Failed("vllm_engine_dead", "It died.")
    use(api, Scripted(Delta(0, [5], ["a"], None, "stop"), died))
    assert (await send(api, n=2)).status_code == 502
    await until(lambda: api.ledger.events(IdempotentRequest.Freed))
    assert charges(api) == []
