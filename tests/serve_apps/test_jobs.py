"""Completion Jobs over HTTP: what is answered, what the events say, and what it costs."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from api_client import good, running_api, until
from local_runner import LocalRunner

from acs.events.job import Job
from acs.events.ledger import Ledger
from acs.platform.inference.contract import Failed
from acs.serve_apps.api.routes import jobs as routes

ENDS = (Job.Succeeded, Job.Failed, Job.Cancelled)
RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)
DEAD = Failed("vllm_engine_dead", "It died.")


class JobsApi:
    """An API with a runner."""

    def __init__(self, api):
        self.api = api
        self.http = api.http
        self.engine = api.engine
        self.runner = self.new_runner()

    def new_runner(self):
        services = self.api.services
        self.runner = LocalRunner(self.api.ledger, services.models, services.limits, services.harvest_files)
        return self.runner

    async def submit(self, headers=None, **fields):
        answer = await self.http.post("/v1/completion-jobs", json=good(**fields), headers=headers)
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    async def job(self, job_id):
        return (await self.http.get(f"/v1/completion-jobs/{job_id}")).json()

    async def ended(self, job_id):
        while (job := await self.job(job_id))["status"] in ("queued", "running"):
            self.api.ledger.job_desk.look_after()
            await asyncio.sleep(0.001)
        return job

    async def result(self, job_id):
        await self.ended(job_id)
        return await self.http.get(f"/v1/completion-jobs/{job_id}/result")

    async def cancel(self, job_id):
        return await self.http.post(f"/v1/completion-jobs/{job_id}/cancel")

    def events(self, kinds):
        return self.api.ledger.events(kinds)

    def kinds(self):
        return [type(event).__name__ for event in self.events(Job.Event)]

    async def running_in_engine(self, count):
        await until(lambda: self.api.running == count)


@asynccontextmanager
async def jobs_api(checkpoint, **settings):
    async with running_api(checkpoint, **{"job_retry_s": 0.001, **settings}) as api:
        yield JobsApi(api)


@pytest.fixture
async def jobs(toy_checkpoint):
    async with jobs_api(toy_checkpoint) as jobs:
        yield jobs


async def test_a_submitted_job_is_answered_with_its_object_and_its_place(jobs):
    answer = await jobs.http.post("/v1/completion-jobs", json=good())
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/completion-jobs/{job['id']}")
    assert job == {
        "id": job["id"],
        "object": "completion_job",
        "status": "queued",
        "model": "toy",
        "created_at": job["created_at"],
        "started_at": None,
        "finished_at": None,
        "http_status": None,
        "expires_at": None,
    }
    assert list(await jobs.job(job["id"])) == list(job)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5, "seed": 3, "logprobs": 2, "echo": True},
        {"prompt": ["The sky", "The sea"], "n": 2, "max_tokens": 3, "seed": 1, "prompt_logprobs": 1},
        {"prompt_logprobs": -1, "seed": 1},
        {"max_tokens": None, "stop": ["e"], "seed": 5},
        {"output_residual_stream": [0, 2], "max_tokens": 3, "seed": 1},
    ],
    ids=repr,
)
async def test_the_result_is_the_answer_that_a_direct_call_gets(jobs, fields):
    direct = await jobs.http.post("/v1/completions", json=good(**fields))
    result = await jobs.result(await jobs.submit(**fields))
    assert result.status_code == direct.status_code == 200
    same = {"id": "", "created": 0}
    assert result.json() | same == direct.json() | same
    assert list(result.json()) == list(direct.json())
    unlike = {"x-request-id", "content-length", "transfer-encoding"}
    assert {n: v for n, v in result.headers.items() if n not in unlike} == {
        n: v for n, v in direct.headers.items() if n not in unlike
    }
    direct_charge, job_charge = jobs.events(Ledger.HoldSettled)
    assert job_charge.prompt_tokens == direct_charge.prompt_tokens
    assert job_charge.completion_tokens == direct_charge.completion_tokens


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_large_result_is_sent_bit_by_bit_and_is_the_same(jobs, monkeypatch, encoding):
    job_id = await jobs.submit(prompt_logprobs=-1)
    whole = await jobs.result(job_id)
    monkeypatch.setattr(routes, "WHOLE_BYTES", 1000)
    path = f"/v1/completion-jobs/{job_id}/result"
    sent = await jobs.http.get(path, headers={"Accept-Encoding": encoding})
    assert sent.headers.get("content-encoding", "identity") == encoding
    assert sent.content == whole.content


async def test_the_text_of_a_request_is_erased_when_its_job_has_ended(jobs):
    job_id = await jobs.submit(prompt="quartz-hippopotamus")
    assert any(b"quartz-hippopotamus" in path.read_bytes() for path in blob_files(jobs))
    await jobs.ended(job_id)
    await until(lambda: not any(b"quartz-hippopotamus" in path.read_bytes() for path in blob_files(jobs)))
    assert len(blob_files(jobs)) == 1, "the result"


async def test_until_it_has_ended_the_result_is_the_job_and_when_to_ask_again(jobs):
    jobs.engine.step_s = 3600
    job_id = await jobs.submit()
    answer = await jobs.http.get(f"/v1/completion-jobs/{job_id}/result")
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["id"]) == (202, "1", job_id)


async def test_its_hold_is_placed_when_it_is_submitted_and_settled_with_its_end(jobs):
    job_id = await jobs.submit(max_tokens=4, user="lab")
    await jobs.ended(job_id)
    (hold,) = jobs.events(Ledger.HoldPlaced)
    assert (hold.kind, hold.owner, hold.max_tokens, hold.user) == ("job", job_id, 4, "lab")
    assert jobs.kinds() == ["Created", "Started", "Succeeded"]
    (settled,) = jobs.events(RESOLVED)
    assert (settled.completion_tokens, settled.http_status) == (4, 200)


async def test_times_and_status_go_on_with_the_job(jobs):
    job = await jobs.ended(await jobs.submit())
    assert job["status"] == "succeeded"
    assert job["http_status"] == 200
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]
    assert job["expires_at"] == job["finished_at"] + 30 * 24 * 3600


# -- what is refused


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"stream": True}, "invalid_request", "stream"),
        ({"temperature": 101, "stream": True}, "invalid_request", "temperature"),
        ({"model": "nobody"}, "model_not_found", "model"),
        ({"max_tokens": 20_000}, "deadline_infeasible", "max_tokens"),
        ({"max_tokens": 10_000}, "context_length_exceeded", "max_tokens"),
    ],
)
async def test_a_request_that_cannot_be_answered_is_no_job(jobs, fields, code, param):
    answer = await jobs.http.post("/v1/completion-jobs", json=good(**fields))
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (400, code, param)
    assert jobs.events(Job.Event) == []


async def test_a_hundred_unfinished_jobs_and_one_more(toy_checkpoint):
    async with jobs_api(toy_checkpoint, slots=1) as jobs:
        jobs.engine.step_s = 3600
        ids = [await jobs.submit() for _ in range(100)]
        answer = await jobs.http.post("/v1/completion-jobs", json=good())
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "job_capacity")
        assert answer.headers["x-should-retry"] == "false"
        assert "100 unfinished Jobs" in answer.json()["error"]["message"]
        await jobs.cancel(ids[-1])
        await jobs.submit()


async def test_a_job_is_never_clamped(jobs):
    (account, *_) = jobs.api.ledger.accounts.list_accounts()
    jobs.api.ledger.accounts.set_account_budget(f"acct_{account.id.hex}", 20)
    answer = await jobs.http.post("/v1/completion-jobs", json=good(max_tokens=100))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "budget_exceeded")
    await jobs.submit(max_tokens=10)


async def test_a_job_counts_towards_the_rate_when_it_is_submitted(toy_checkpoint):
    async with jobs_api(toy_checkpoint, key_rate_per_minute=2) as jobs:
        await jobs.ended(await jobs.submit())
        await jobs.ended(await jobs.submit())
        answer = await jobs.http.post("/v1/completion-jobs", json=good())
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited")


async def test_what_was_refused_leaves_no_text_behind(toy_checkpoint):
    async with jobs_api(toy_checkpoint, key_rate_per_minute=1) as jobs:
        await jobs.ended(await jobs.submit())
        await jobs.http.post("/v1/completion-jobs", json=good())
        assert len(blob_files(jobs)) == 1


def blob_files(jobs):
    return list(jobs.api.ledger.job_blobs._folder.glob("??/*"))


@pytest.mark.parametrize("path", ["", "/result", "/cancel"])
async def test_an_unknown_job_and_another_accounts_job_are_not_found(jobs, path):
    other = jobs.api.ledger.account("Bob")
    _, secret = jobs.api.ledger.key(other)
    mine = await jobs.submit()
    await jobs.api.complete_with(secret)
    theirs = {"Authorization": f"Bearer {secret}"}
    for job_id, headers in ((f"job_{'0' * 32}", None), ("nothing", None), (mine, theirs)):
        method = "POST" if path == "/cancel" else "GET"
        answer = await jobs.http.request(method, f"/v1/completion-jobs/{job_id}{path}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")


# -- failures


async def test_a_failure_worth_another_try_is_tried_again_under_the_same_hold(jobs):
    jobs.engine.fail_next = DEAD
    job = await jobs.ended(await jobs.submit())
    assert job["status"] == "succeeded"
    assert jobs.kinds() == ["Created", "Started", "TryFailed", "Started", "Succeeded"]
    assert len(jobs.events(Ledger.HoldPlaced)) == len(jobs.events(RESOLVED)) == 1


async def test_after_three_tries_the_last_error_is_the_result_and_nothing_is_charged(jobs):
    fail_always(jobs.engine, DEAD)
    job_id = await jobs.submit()
    job = await jobs.ended(job_id)
    assert (job["status"], job["http_status"]) == ("failed", 502)
    assert jobs.kinds().count("Started") == 3
    result = await jobs.result(job_id)
    assert result.status_code == 502
    assert result.json()["error"] == {
        "message": "It died.",
        "type": "server_error",
        "param": None,
        "code": "vllm_engine_dead",
        "retryable": True,
    }
    assert result.json()["request_id"] == result.headers["x-request-id"]
    assert result.headers["retry-after"] == "2"
    (released,) = jobs.events(RESOLVED)
    assert (type(released), released.http_status) == (Ledger.HoldReleased, 502)


async def test_a_failure_that_would_come_again_is_not_tried_again(jobs):
    jobs.engine.fail_next = Failed("upstream_server_error", "No.")
    job_id = await jobs.submit()
    result = await jobs.result(job_id)
    assert (result.status_code, result.headers["x-should-retry"]) == (502, "false")
    assert jobs.kinds() == ["Created", "Started", "Failed"]


def fail_always(engine, failed):
    submit = engine.submit

    def failing(request, sink):
        engine.fail_next = failed
        submit(request, sink)

    engine.submit = failing


# -- cancelling


async def test_a_running_job_that_is_cancelled_stops_in_the_engine_and_pays_what_it_had(jobs):
    jobs.engine.step_s = 0.001
    job_id = await jobs.submit(max_tokens=2000)
    await until(lambda: jobs.api.running == 1)
    answer = await jobs.cancel(job_id)
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert answer.json()["http_status"] is None
    assert jobs.api.running == 0
    (settled,) = jobs.events(RESOLVED)
    assert (type(settled), settled.http_status) == (Ledger.HoldSettled, None)
    assert settled.completion_tokens < 2000
    result = await jobs.result(job_id)
    assert (result.status_code, result.json()["error"]["code"]) == (409, None)


async def test_a_queued_job_that_is_cancelled_costs_nothing(toy_checkpoint):
    async with jobs_api(toy_checkpoint, slots=1) as jobs:
        jobs.engine.step_s = 3600
        await jobs.submit()
        job_id = await jobs.submit()
        assert (await jobs.cancel(job_id)).json()["status"] == "cancelled"
        (released,) = jobs.events(RESOLVED)
        assert type(released) is Ledger.HoldReleased


async def test_a_job_that_has_ended_cannot_be_cancelled(jobs):
    job_id = await jobs.submit()
    await jobs.ended(job_id)
    answer = await jobs.cancel(job_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, None)
    assert "x-should-retry" not in answer.headers
    assert (await jobs.result(job_id)).status_code == 200


async def test_when_cancelling_races_completion_status_result_and_charge_agree(jobs):
    outcomes = set()
    for turns in range(40):
        job_id = await jobs.submit(max_tokens=3)
        for _ in range(turns):
            await asyncio.sleep(0)
        answer, again = await asyncio.gather(jobs.cancel(job_id), jobs.cancel(job_id))
        job, result = await jobs.job(job_id), await jobs.result(job_id)
        (end,) = [event for event in jobs.events(ENDS) if f"job_{event.originator_id.hex}" == job_id]
        hold = next(event for event in jobs.events(Ledger.HoldPlaced) if event.owner == job_id)
        (resolved,) = [event for event in jobs.events(RESOLVED) if event.hold_id == hold.hold_id]
        outcomes.add(job["status"])
        if job["status"] == "cancelled":
            assert 200 in (answer.status_code, again.status_code)
            assert (result.status_code, type(end)) == (409, Job.Cancelled)
            assert resolved.http_status is None
        else:
            assert answer.status_code == again.status_code == 409
            assert (job["status"], result.status_code, type(end)) == ("succeeded", 200, Job.Succeeded)
            assert (resolved.completion_tokens, resolved.http_status) == (3, 200)
    assert outcomes == {"cancelled", "succeeded"}


# -- runners that come and go


async def test_a_job_whose_runner_is_gone_runs_again_under_the_same_hold(jobs):
    jobs.engine.step_s = 3600
    job_id = await jobs.submit()
    await until(lambda: jobs.api.running == 1)
    jobs.runner.lose_link()
    jobs.engine.step_s = 0
    jobs.new_runner()
    assert (await jobs.ended(job_id))["status"] == "succeeded"
    assert jobs.kinds() == ["Created", "Started", "Interrupted", "Started", "Succeeded"]
    assert len(jobs.events(Ledger.HoldPlaced)) == len(jobs.events(RESOLVED)) == 1


async def test_what_a_runner_says_that_was_replaced_changes_nothing(jobs):
    jobs.engine.step_s = 0.02
    job_id = await jobs.submit(max_tokens=3)
    await until(lambda: jobs.api.running == 1)
    former = jobs.runner
    jobs.new_runner()
    await until(lambda: not former.runner._running)  # it has finished, and has been answered
    assert (await jobs.ended(job_id))["status"] == "succeeded"
    assert jobs.kinds().count("Succeeded") == 1
    assert len(jobs.events(RESOLVED)) == 1


async def test_a_runner_whose_link_was_cut_for_a_moment_goes_on_with_what_it_runs(jobs):
    jobs.engine.step_s = 0.01
    job_id = await jobs.submit(max_tokens=5)
    await until(lambda: jobs.api.running == 1)
    runner = jobs.runner
    runner.lose_link()
    await until(lambda: jobs.api.running == 0)
    runner.find_link()
    assert (await jobs.ended(job_id))["status"] == "succeeded"
    assert jobs.kinds() == ["Created", "Started", "Succeeded"]


async def test_a_job_that_is_cancelled_while_its_runner_is_away_ends_with_it(jobs):
    jobs.engine.step_s = 3600
    job_id = await jobs.submit()
    await until(lambda: jobs.api.running == 1)
    jobs.runner.lose_link()
    cancelling = asyncio.create_task(jobs.cancel(job_id))
    await asyncio.sleep(0)
    jobs.new_runner()
    assert (await cancelling).json()["status"] == "cancelled"


async def test_without_a_runner_jobs_wait_and_take_no_slot(toy_checkpoint):
    async with jobs_api(toy_checkpoint, slots=1) as jobs:
        jobs.runner.lose_link()
        job_id = await jobs.submit()
        assert (await jobs.api.complete()).status_code == 200
        assert (await jobs.job(job_id))["status"] == "queued"
        jobs.new_runner()
        assert (await jobs.ended(job_id))["status"] == "succeeded"


async def test_jobs_of_a_model_that_is_down_wait_until_it_is_back(jobs):
    status = jobs.engine.status
    jobs.engine.status = lambda: type(status())("down")
    jobs.runner.runner.offer_now()
    job_id = await jobs.submit()
    await asyncio.sleep(0.05)
    assert (await jobs.job(job_id))["status"] == "queued"
    jobs.engine.status = status
    jobs.runner.runner.offer_now()
    assert (await jobs.ended(job_id))["status"] == "succeeded"


# -- listing


async def test_jobs_are_listed_newest_first_page_by_page(jobs):
    ids = [await jobs.submit() for _ in range(5)]
    page = (await jobs.http.get("/v1/completion-jobs?limit=2")).json()
    assert ([job["id"] for job in page["data"]], page["has_more"], page["object"]) == (ids[:2:-1], True, "list")
    page = (await jobs.http.get(f"/v1/completion-jobs?limit=3&after={ids[3]}")).json()
    assert ([job["id"] for job in page["data"]], page["has_more"]) == (ids[2::-1], False)


async def test_jobs_are_listed_by_status(jobs):
    done = await jobs.submit()
    await jobs.ended(done)
    jobs.engine.step_s = 3600
    running = await jobs.submit()
    await until(lambda: jobs.api.running == 1)
    for status, ids in {"succeeded": [done], "running": [running], "failed": []}.items():
        page = (await jobs.http.get(f"/v1/completion-jobs?status={status}")).json()
        assert [job["id"] for job in page["data"]] == ids


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=1&limit=2", "after=job_1", "status=done"])
async def test_a_listing_is_refused_by_the_name_of_its_parameter(jobs, query):
    answer = await jobs.http.get(f"/v1/completion-jobs?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


# -- sending again


async def test_a_submission_that_is_sent_again_under_its_key_is_the_same_job(jobs):
    headers = {"Idempotency-Key": "sky-001"}
    first = await jobs.http.post("/v1/completion-jobs", json=good(), headers=headers)
    await jobs.ended(first.json()["id"])
    again = await jobs.http.post("/v1/completion-jobs", json=good(), headers=headers)
    assert (again.status_code, again.json(), again.headers["location"]) == (
        202,
        first.json(),
        first.headers["location"],
    )
    assert again.headers["idempotent-replayed"] == "true"
    other = await jobs.http.post("/v1/completion-jobs", json=good(max_tokens=3), headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert len(jobs.events(Job.Created)) == len(jobs.events(Ledger.HoldPlaced)) == 1


async def test_a_cancellation_that_is_sent_again_under_its_key_is_answered_as_before(jobs):
    jobs.engine.step_s = 0.001
    job_id = await jobs.submit(max_tokens=2000)
    await until(lambda: jobs.api.running == 1)
    path, headers = f"/v1/completion-jobs/{job_id}/cancel", {"Idempotency-Key": "no-more"}
    first, beside = await asyncio.gather(*(jobs.http.post(path, headers=headers) for _ in range(2)))
    again = await jobs.http.post(path, headers=headers)
    assert first.json() == beside.json() == again.json()
    assert {first.status_code, beside.status_code, again.status_code} == {200}
    assert again.headers["idempotent-replayed"] == "true"
    assert (await jobs.http.post(path)).status_code == 409
    assert (await jobs.http.post(path, headers={"Idempotency-Key": "other"})).status_code == 409


async def test_two_hundred_clients_that_submit_under_one_key_make_one_job(jobs):
    headers = {"Idempotency-Key": "sky-001"}
    answers = await asyncio.gather(
        *(jobs.http.post("/v1/completion-jobs", json=good(), headers=headers) for _ in range(200))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(jobs.events(Job.Created)) == 1
