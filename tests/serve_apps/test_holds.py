"""What each request costs, read from the events: one Hold, resolved once, however the request ends."""

import asyncio
import json

import pytest
from api_client import Client, events_of, running_api, until
from test_failures import Scripted, never, use

from acs.events.ledger import Ledger
from acs.platform.inference.contract import Delta, Failed
from acs.platform.ledger.contract import Standing

RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)
HOWS = [{}, {"stream": True}, {"prompt_logprobs": -1}]


async def placed(api):
    await api.ledger.stored()
    return api.ledger.events(Ledger.HoldPlaced)


async def resolutions(api, count=1):
    """The events that resolved the Holds, once as many are stored; each Hold by one."""
    await until(lambda: len(api.ledger.events(RESOLVED)) >= count)
    found = api.ledger.events(RESOLVED)
    assert sorted(event.hold_id for event in found) == sorted(hold.hold_id for hold in await placed(api))
    return found


async def set_budget(api, tokens):
    (account, *_) = api.ledger.accounts.list_accounts()
    account_id = f"acct_{account.id.hex}"
    api.ledger.accounts.set_account_budget(account_id, tokens)
    stored = asyncio.Event()
    api.ledger.desk.note_budgets(account_id, stored.set)
    await stored.wait()


def prompt_tokens_of(api):
    return sum(map(len, api.engine.asked[-1].prompts))


# -- what is held, what is charged


@pytest.mark.parametrize("how", HOWS, ids=repr)
async def test_an_answer_is_charged_its_prompt_and_what_was_generated(api, how):
    response = await api.complete(max_tokens=7, user="lab 3", **how)
    assert response.status_code == 200
    (settled,) = await resolutions(api)
    (hold,) = await placed(api)
    assert (hold.prompt_tokens, hold.choices, hold.max_tokens) == (prompt_tokens_of(api), 1, 7)
    assert (settled.prompt_tokens, settled.completion_tokens) == (prompt_tokens_of(api), 7)
    assert (settled.http_status, settled.model, hold.kind, hold.user) == (200, "toy", "completion", "lab 3")


@pytest.mark.parametrize("stream", [False, True])
async def test_one_request_takes_one_hold_with_each_prompt_once_and_every_choice(api, stream):
    await api.complete(prompt=["The sky", "The sea is"], n=3, max_tokens=4, stream=stream)
    (settled,) = await resolutions(api)
    (hold,) = await placed(api)
    assert (hold.prompt_tokens, hold.choices) == (prompt_tokens_of(api), 6)
    assert settled.completion_tokens == 24


async def test_an_answer_that_stops_early_gives_the_rest_back(api):
    text = (await api.complete(max_tokens=30)).json()["choices"][0]["text"]
    answer = (await api.complete(max_tokens=30, stop=[text[5:9]])).json()
    _, settled = await resolutions(api, 2)
    assert settled.completion_tokens == answer["usage"]["completion_tokens"] < 30
    await until(lambda: not api.ledger.memory.books.open_holds)


async def test_the_hold_has_the_request_id_of_the_answer(api):
    response = await api.http.post("/v1/completions", json={"model": "toy", "prompt": "x", "max_tokens": 1})
    assert (await placed(api))[0].request_id == response.headers["x-request-id"]


@pytest.mark.parametrize("how", HOWS, ids=repr)
async def test_a_whole_answer_leaves_only_when_its_charge_is_on_disk(api, how):
    await api.complete(**how)
    if not how.get("stream"):
        assert len(api.ledger.events(Ledger.HoldSettled)) == 1


async def test_an_answer_whose_charge_cannot_be_recorded_is_not_given(toy_checkpoint):
    async with running_api(toy_checkpoint, settle_s=0.05) as api:
        api.ledger.commits_fail_after(0)  # a small request's Hold and charge are one batch
        response = await api.complete()
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


# -- what is refused places no Hold


@pytest.mark.parametrize("fields", [{"temperature": 101}, {"model": "nobody"}, {"max_tokens": 10**4}, {"prompt": []}])
async def test_a_request_that_cannot_be_answered_holds_nothing(api, fields):
    assert (await api.complete(**fields)).status_code == 400
    assert await placed(api) == []


async def test_an_open_breaker_holds_nothing(toy_checkpoint):
    async with running_api(toy_checkpoint, breaker_failures=1) as api:
        api.engine.fail_next = Failed("vllm_oom", "It failed.")
        await api.complete()
        assert (await api.complete()).json()["error"]["code"] == "circuit_open"
        assert len(await placed(api)) == 1


async def test_a_key_revoked_on_the_ledger_is_refused_before_its_ingress_has_heard(api):
    (account, *_) = api.ledger.accounts.list_accounts()
    for key in api.ledger.accounts.list_keys(f"acct_{account.id.hex}"):
        if key.name == Standing.ACCEPTED:
            api.ledger.accounts.revoke_key(f"key_{key.id.hex}")
    response = await api.complete()
    assert (response.status_code, response.json()["error"]["code"]) == (401, "key_revoked")
    assert await placed(api) == []


# -- budgets


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_is_lowered_to_what_the_budget_leaves_and_the_header_says_so(api, stream):
    await set_budget(api, 20)
    response = await api.complete(max_tokens=50, stream=stream)
    (settled,) = await resolutions(api)
    left = 20 - settled.prompt_tokens
    assert response.headers["x-acs-max-tokens-clamped"] == f"requested=50,applied={left},reason=budget"
    assert api.engine.asked[-1].sampling.max_tokens == settled.completion_tokens == left
    if stream:
        assert len(events_of(response)) == left + 1
    else:
        assert response.json()["usage"]["completion_tokens"] == left


async def test_the_header_comes_too_when_max_tokens_was_left_out(api):
    await set_budget(api, 20)
    response = await api.http.post("/v1/completions", json={"model": "toy", "prompt": "The sky is"})
    prompt_tokens = response.json()["usage"]["prompt_tokens"]
    context = api.services.models["toy"].max_model_len
    requested, applied = context - prompt_tokens, 20 - prompt_tokens
    assert response.headers["x-acs-max-tokens-clamped"] == f"requested={requested},applied={applied},reason=budget"


async def test_a_request_that_fits_has_no_such_header(api):
    await set_budget(api, 20)
    assert "x-acs-max-tokens-clamped" not in (await api.complete(max_tokens=2)).headers


@pytest.mark.parametrize("fields", [{}, {"n": 20}, {"min_tokens": 19, "max_tokens": 30}, {"stream": True}])
async def test_not_even_one_token_a_choice_or_fewer_than_min_tokens_is_429(api, fields):
    await set_budget(api, 20 if fields.get("n") or fields.get("min_tokens") else 3)
    response = await api.complete(**fields)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "budget_exceeded")
    assert response.headers["x-should-retry"] == "false"
    assert await placed(api) == []


# -- endings


@pytest.mark.parametrize("how", HOWS, ids=repr)
async def test_an_engine_that_fails_before_it_wrote_anything_costs_nothing(api, how):
    api.engine.fail_next = Failed("vllm_engine_dead", "It died.")
    assert (await api.complete(**how)).status_code == 502
    (released,) = await resolutions(api)
    assert (released.reason, released.http_status) == ("vllm_engine_dead", 502)


async def test_a_stream_that_fails_in_the_middle_costs_what_was_sent(api):
    def sent():
        return len(client.events) == 2

    use(api, Scripted(Delta(0, [5], ["a"]), Delta(0, [6], ["b"]), sent, Failed("vllm_engine_dead", "It died.")))
    client = Client(api, stream=True, max_tokens=9)
    await asyncio.wait_for(client.task, 10)
    assert json.loads(client.events[2])["error"]["code"] == "vllm_engine_dead"
    (settled,) = await resolutions(api)
    assert (settled.completion_tokens, settled.http_status) == (2, 200)


async def test_a_whole_answer_that_is_late_costs_nothing(toy_checkpoint):
    async with running_api(toy_checkpoint, whole_deadline_s=0.01) as api:
        use(api, Scripted(never))
        assert (await api.complete()).status_code == 504
        (released,) = await resolutions(api)
        assert released.reason == "upstream_deadline"


async def test_a_client_that_leaves_a_stream_pays_the_prompt_and_what_was_sent(api):
    api.engine.step_s = 0.002
    client = Client(api, stream=True, max_tokens=1500)
    await until(lambda: len(client.events) > 3)
    client.hang_up()
    await asyncio.wait_for(client.task, 10)
    (settled,) = await resolutions(api)
    assert settled.completion_tokens == len(client.events)
    assert (settled.prompt_tokens, settled.http_status) == (prompt_tokens_of(api), None)


class LastWords(Scripted):
    """Its first choice has ended; it aborts the second after three tokens."""

    def submit(self, request, sink):
        super().submit(request, sink)
        self._sink = sink

    def abort(self, request_id):
        super().abort(request_id)
        self._sink(Delta(1, [7, 8, 9], ["abc"], None, "abort"))


async def test_a_client_that_leaves_a_whole_answer_pays_the_prompt_and_what_was_generated(api):
    first_has_ended = asyncio.Event()
    use(api, LastWords(Delta(0, [5, 6], ["ab"], None, "stop"), lambda: not first_has_ended.set(), never))
    client = Client(api, max_tokens=9, n=2)
    await asyncio.wait_for(first_has_ended.wait(), 10)
    client.hang_up()
    (settled,) = await resolutions(api)
    assert (settled.completion_tokens, settled.http_status) == (5, None)


async def test_a_client_that_leaves_while_it_waits_for_its_turn_costs_nothing_and_frees_its_place(toy_checkpoint):
    async with running_api(toy_checkpoint, key_running=1) as api:
        api.engine.step_s = 0.002
        runs = Client(api, max_tokens=1500)
        await until(lambda: api.running == 1)
        waits, after = Client(api), Client(api)
        await until(lambda: len(api.ledger.traffic.tickets) == 2)
        waits.hang_up()
        await asyncio.wait_for(waits.task, 10)
        await until(lambda: len(api.ledger.traffic.tickets) == 1)
        runs.hang_up()
        await asyncio.wait_for(after.task, 10)
        assert json.loads(after.body)["usage"]["completion_tokens"] == 2
        assert len(await resolutions(api, 2)) == 2


async def test_a_request_that_is_cancelled_with_its_server_resolves_its_hold(api):
    api.engine.step_s = 0.002
    client = Client(api, stream=True, max_tokens=1500)
    await until(lambda: len(client.events) > 3)
    client.task.cancel()
    await resolutions(api)


async def test_a_fault_of_our_own_costs_nothing(api, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(api.engine, "submit", broken)
    assert (await api.complete()).status_code == 500
    (released,) = await resolutions(api)
    assert (released.reason, released.http_status) == ("internal_error", 500)


# -- traffic


async def test_requests_beyond_those_that_may_run_wait_and_are_answered(toy_checkpoint):
    async with running_api(toy_checkpoint, key_running=2) as api:
        responses = await asyncio.gather(*(api.complete() for _ in range(10)))
        assert {response.status_code for response in responses} == {200}
        assert len(await resolutions(api, 10)) == 10


async def test_too_many_waiting_is_queue_full_and_too_many_a_minute_is_rate_limited(toy_checkpoint):
    async with running_api(toy_checkpoint, key_running=1, key_waiting=1, key_rate_per_minute=2) as api:
        api.engine.step_s = 0.002
        runs, waits = Client(api, max_tokens=1500), Client(api)
        await until(lambda: len(api.ledger.traffic.tickets) == 1)
        limited = await api.complete()
        assert (limited.status_code, limited.json()["error"]["code"]) == (429, "rate_limited")
        assert 55 < int(limited.headers["retry-after"]) <= 60
        for client in (runs, waits):
            client.hang_up()
    async with running_api(toy_checkpoint, key_running=1, key_waiting=1) as api:
        api.engine.step_s = 0.002
        runs, waits = Client(api, max_tokens=1500), Client(api)
        await until(lambda: len(api.ledger.traffic.tickets) == 1)
        full = await api.complete()
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        assert full.headers["retry-after"] == "5"
        for client in (runs, waits):
            client.hang_up()


# -- how another gateway's budgets failed (its public issues), and do not here


async def test_two_parallel_requests_cannot_both_pass_a_budget_that_one_uses_up(api):
    await set_budget(api, 30)
    responses = await asyncio.gather(*(api.complete(max_tokens=20) for _ in range(8)))
    charged = [event.prompt_tokens + event.completion_tokens for event in await resolutions(api)]
    assert sum(charged) <= 30
    assert {r.status_code for r in responses} == {200, 429}


async def test_a_key_past_its_limit_stops_while_the_account_goes_on(api):
    (account, *_) = api.ledger.accounts.list_accounts()
    account_id = f"acct_{account.id.hex}"
    (good,) = [key for key in api.ledger.accounts.list_keys(account_id) if key.name == Standing.ACCEPTED]
    api.ledger.accounts.set_key_budget(account_id, f"key_{good.id.hex}", 10)
    codes = [(await api.complete()).status_code for _ in range(4)]
    assert codes[0] == 200
    assert codes[-1] == 429
    _, other = api.ledger.key(account_id, "other")
    assert (await api.complete_with(other)).status_code == 200


async def test_budget_exceeded_is_true_when_said_and_ends_as_soon_as_a_hold_gives_back(api):
    """No refusal that heals itself minutes later: what is refused is what the events say."""
    await set_budget(api, 30)
    api.engine.step_s = 0.002
    client = Client(api, max_tokens=20)
    await until(lambda: api.running == 1)
    assert (await api.complete(max_tokens=20, min_tokens=20)).status_code == 429
    client.hang_up()
    await resolutions(api)
    assert (await api.complete()).status_code == 200


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"prompt_logprobs": -1}, {"n": 3}, {"echo": True}], ids=repr)
async def test_a_reservation_is_given_back_on_every_kind_of_answer(api, how):
    await set_budget(api, 1000)
    for _ in range(3):
        await api.complete(**how)
    await resolutions(api, 3)
    await until(lambda: not api.ledger.memory.books.open_holds)
    (book,) = [ledger.book for ledger in api.ledger.memory.books.ledgers.values()]
    charged = sum(e.prompt_tokens + e.completion_tokens for e in api.ledger.events(Ledger.HoldSettled))
    assert (book.account.held, book.account.charged) == (0, charged)


async def test_a_long_prompt_is_reserved_in_full(api):
    await set_budget(api, 1000)
    codes = [(await api.complete(prompt=[7] * 400)).status_code for _ in range(5)]
    assert codes == [200, 200, 429, 429, 429]


async def test_what_one_model_used_counts_once_wherever_it_is_counted(api):
    """Tracking, enforcing and reporting are folds of the same events."""
    await set_budget(api, 10_000)
    for number in range(5):
        await api.complete(max_tokens=number + 1)
    events = await resolutions(api, 5)
    charged = sum(event.prompt_tokens + event.completion_tokens for event in events)
    (ledger,) = api.ledger.memory.books.ledgers.values()
    assert ledger.book.account.charged == charged == sum(use.charged for use in ledger.book.keys.values())
    assert ledger.book.account.left == 10_000 - charged
