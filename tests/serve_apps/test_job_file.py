"""`acs job submit --file`: every line once, within what the account may have, and on where it stopped."""

import json

import httpx
import pytest
from api_client import good
from test_jobs import jobs_api

from acs.events.job import Job
from acs.platform.cli import job_file
from acs.platform.cli.api import Api
from acs.platform.cli.job_file import Batch, keys_in, read_lines


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(job_file, "LOOK_S", 0.01)


@pytest.fixture
def requests(tmp_path):
    """A file of as many requests."""

    def write(count, **fields):
        path = tmp_path / "requests.jsonl"
        path.write_text("\n".join(json.dumps(good(seed=number, **fields)) for number in range(count)) + "\n\n")
        return path

    return write


@pytest.fixture
def api_of(monkeypatch):
    def make(jobs):
        monkeypatch.setenv("ACS_API_BASE", "http://api/v1")
        monkeypatch.setenv("ACS_API_KEY", jobs.http.headers["authorization"].removeprefix("Bearer "))
        return Api(transport=httpx.ASGITransport(jobs.api.app))

    return make


async def run(jobs, api_of, path, out):
    lines = list(read_lines(path))
    done = keys_in(out)
    async with api_of(jobs) as api:
        with out.open("a") as results:
            return await Batch([line for line in lines if line.key not in done], results, len(lines)).run(api)


def results_in(out):
    return [json.loads(line) for line in out.read_text().splitlines()]


async def test_each_line_becomes_a_result_whatever_the_account_may_have_at_once(
    toy_checkpoint, requests, api_of, tmp_path
):
    async with jobs_api(toy_checkpoint, account_jobs=3) as jobs:
        out = tmp_path / "results.jsonl"
        assert await run(jobs, api_of, requests(20), out) == 0
        results = results_in(out)
        assert sorted(result["line"] for result in results) == list(range(1, 21))
        assert {result["http_status"] for result in results} == {200}
        assert len(jobs.events(Job.Created)) == 20


async def test_a_line_that_is_refused_is_a_result_too(toy_checkpoint, requests, api_of, tmp_path):
    async with jobs_api(toy_checkpoint) as jobs:
        out, path = tmp_path / "results.jsonl", requests(2)
        path.write_text(path.read_text() + json.dumps(good(temperature=101)))
        assert await run(jobs, api_of, path, out) == 1
        (refused,) = [result for result in results_in(out) if result["http_status"] != 200]
        assert (refused["line"], refused["job"], refused["body"]["error"]["param"]) == (4, None, "temperature")


async def test_run_again_it_goes_on_where_it_stopped_and_runs_no_line_twice(toy_checkpoint, requests, api_of, tmp_path):
    async with jobs_api(toy_checkpoint) as jobs:
        out, path = tmp_path / "results.jsonl", requests(10)
        await run(jobs, api_of, path, out)
        lines = out.read_text().splitlines()
        out.write_text("\n".join(lines[:4]) + "\n" + lines[5][:20])  # as a run left it that was killed
        await run(jobs, api_of, path, out)
        assert sorted(result["line"] for result in results_in(out)) == list(range(1, 11))
        assert len(jobs.events(Job.Created)) == 10, "the six were found again by their keys"


async def test_the_same_line_twice_in_a_file_is_two_jobs(toy_checkpoint, api_of, tmp_path):
    async with jobs_api(toy_checkpoint) as jobs:
        path = tmp_path / "requests.jsonl"
        path.write_text(f"{json.dumps(good())}\n{json.dumps(good())}\n")
        await run(jobs, api_of, path, tmp_path / "results.jsonl")
        assert len(jobs.events(Job.Created)) == 2
