"""When several errors apply, the first in the contract's order is the answer."""

import json

import pytest
from api_client import good, running_api

from acs.platform.inference.contract import Failed

HUGE_LENGTH = {"Content-Length": "33000000"}


def outcome(response):
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def endless():
    while True:
        yield b"{" * 1_000_000


async def test_the_route_comes_before_the_size_by_its_header_and_the_key(api):
    del api.http.headers["authorization"]
    assert outcome(await api.http.post("/nothing", headers=HUGE_LENGTH)) == (404, None, None)
    assert outcome(await api.http.put("/v1/completions", headers=HUGE_LENGTH)) == (405, None, None)


async def test_the_size_by_its_header_comes_before_the_key(api):
    del api.http.headers["authorization"]
    response = await api.http.post("/v1/completions", content=b"{}", headers=HUGE_LENGTH)
    assert outcome(response) == (413, "request_too_large", None)


async def test_the_key_comes_before_the_size_by_counting(api):
    del api.http.headers["authorization"]
    response = await api.http.post("/v1/completions", content=endless())
    assert outcome(response) == (401, "missing_authorization", None)


async def test_the_size_by_counting_comes_before_the_json(api):
    assert outcome(await api.http.post("/v1/completions", content=endless())) == (413, "request_too_large", None)


async def test_the_json_comes_before_the_shape(api):
    body = json.dumps(good(temperature=-1))[:-1] + ', "n": 1, "n": 1}'
    assert outcome(await api.http.post("/v1/completions", content=body)) == (400, "bad_json", None)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"user": 5, "max_tokens": 15_601}, "invalid_request", "user"),
        ({"unknown": 5, "max_tokens": 15_601}, "invalid_request", "unknown"),
        ({"max_tokens": 15_601, "model": "no"}, "deadline_infeasible", "max_tokens"),
        ({"model": "no", "prompt": [2048]}, "model_not_found", "model"),
        ({"prompt": [2048] * 2048}, "invalid_request", "prompt"),
        ({"logit_bias": {"2048": 1}, "prompt": [5] * 2048}, "invalid_request", "logit_bias"),
        ({"prompt": [5] * 2048, "prompt_logprobs": -1}, "invalid_request", "prompt_logprobs"),
    ],
)
async def test_the_shape_then_the_deadline_then_the_model_then_what_needs_it(api, fields, code, param):
    assert outcome(await api.complete(**fields)) == (400, code, param)


async def test_the_context_comes_before_inference(toy_checkpoint):
    async with running_api(toy_checkpoint, breaker_failures=1) as api:
        api.engine.fail_next = Failed("vllm_oom", "No memory.")
        await api.complete()
        assert outcome(await api.complete()) == (503, "circuit_open", None)
        assert outcome(await api.complete(prompt=[5] * 2048)) == (400, "context_length_exceeded", "prompt")
