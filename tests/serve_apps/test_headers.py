"""The table of headers: the request id on every answer, compression, and when to try again."""

import gzip
import json

import pytest
from api_client import good, running_api

from acs.platform import errors
from acs.platform.limits import Limits

LARGE = {"max_tokens": 200}  # an answer of more than 500 bytes


async def answers_of_every_kind(api, headers):
    """(what, response) for successes, errors, streams and pages."""
    post, get = api.http.post, api.http.get
    yield "whole", await post("/v1/completions", json=good(), headers=headers)
    yield "stream", await post("/v1/completions", json=good(stream=True), headers=headers)
    yield "vocabulary", await post("/v1/completions", json=good(prompt_logprobs=-1), headers=headers)
    yield "400", await post("/v1/completions", json={}, headers=headers)
    yield "401", await post("/v1/completions", json={}, headers={**headers, "Authorization": ""})
    yield "404", await get("/nothing", headers=headers)
    yield "405", await get("/v1/completions", headers=headers)
    yield "413", await post("/v1/completions", content=b"", headers={**headers, "Content-Length": "9" * 9})
    yield "models", await get("/v1/models", headers=headers)
    yield "health", await get("/health", headers=headers)
    yield "docs", await get("/docs", headers=headers)
    yield "script", await get("/docs/static/swagger-ui.css", headers=headers)
    yield "openapi", await get("/openapi.json", headers=headers)


async def test_a_clients_request_id_is_on_every_answer_once(api):
    async for what, response in answers_of_every_kind(api, {"X-Request-Id": "mine-1_A"}):
        assert response.headers.get_list("x-request-id") == ["mine-1_A"], what
        if response.status_code >= 400:
            assert response.json()["request_id"] == "mine-1_A"


async def test_an_answer_has_an_id_of_ours_when_the_client_sends_none(api):
    ids = set()
    async for _, response in answers_of_every_kind(api, {}):
        (request_id,) = response.headers.get_list("x-request-id")
        ids.add(request_id)
        if response.status_code >= 400:
            assert response.json()["request_id"] == request_id
    assert len(ids) == 13


@pytest.mark.parametrize("given", ["a", "-", "x" * 64, "A_b-9"])
async def test_a_request_id_of_64_letters_is_kept(api, given):
    response = await api.http.get("/health", headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a.b", "é".encode("latin-1"), "a\tb", "a,b"])
async def test_any_other_request_id_is_replaced(api, given):
    response = await api.http.get("/nothing", headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] == response.json()["request_id"]
    assert len(response.headers["x-request-id"]) == 32


# -- compression

ACCEPTED = ["gzip", "GZIP", "gzip, deflate, br", "br;q=1.0, gzip;q=0.8, *;q=0.1", "*", "*;q=0.5", "gzip;q=0.001"]
ACCEPTED += ["*;q=0, gzip", "identity;q=0, gzip ; q = 1", "deflate , gzip"]
REFUSED = [None, "", "identity", "br", "gzip;q=0", "gzip;q=0.000", "*, gzip;q=0", "gzipped", "x", "*;q=0", "gzip;q=x"]


async def large(api, accept):
    api.http.headers.pop("accept-encoding", None)
    headers = {} if accept is None else {"Accept-Encoding": accept}
    async with api.http.stream("POST", "/v1/completions", json=good(**LARGE), headers=headers) as response:
        return response, b"".join([part async for part in response.aiter_raw()])


@pytest.mark.parametrize("accept", ACCEPTED)
async def test_a_large_answer_is_compressed_when_the_client_takes_gzip(api, accept):
    response, body = await large(api, accept)
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["vary"] == "Accept-Encoding"
    assert int(response.headers["content-length"]) == len(body)
    assert json.loads(gzip.decompress(body))["object"] == "text_completion"


@pytest.mark.parametrize("accept", REFUSED)
async def test_it_is_sent_as_it_is_when_the_client_does_not(api, accept):
    response, body = await large(api, accept)
    assert "content-encoding" not in response.headers
    assert response.headers["vary"] == "Accept-Encoding"
    assert json.loads(body)["object"] == "text_completion"


def test_the_limit_is_500_bytes():
    assert Limits().gzip_bytes == 500


@pytest.mark.parametrize(("bytes_more", "compressed"), [(-1, False), (0, True)])
async def test_compression_begins_at_the_limit_to_the_byte(toy_checkpoint, bytes_more, compressed):
    async with running_api(toy_checkpoint) as api:
        size = len((await api.http.get("/health")).content)
    async with running_api(toy_checkpoint, gzip_bytes=size - bytes_more) as api:
        response = await api.http.get("/health", headers={"Accept-Encoding": "gzip"})
        assert ("content-encoding" in response.headers) is compressed


async def test_a_stream_is_never_compressed(api):
    response = await api.http.post(
        "/v1/completions", json=good(stream=True, max_tokens=50), headers={"Accept-Encoding": "gzip"}
    )
    assert "content-encoding" not in response.headers
    assert len(response.content) > 500


@pytest.mark.parametrize("fields", [{"prompt_logprobs": -1, "n": 2}, {"prompt_logprobs": 5, "prompt": [5] * 500}])
async def test_a_very_large_answer_is_compressed_too(api, fields):
    response = await api.complete(**fields)
    assert response.headers["content-encoding"] == "gzip"
    assert response.json()["choices"][0]["prompt_logprobs"][0] is None


async def test_errors_and_lists_are_compressed_by_the_same_rule(api):
    for path in ("/v1/models", "/openapi.json"):
        assert (await api.http.get(path)).headers["content-encoding"] == "gzip", path


# -- when to try again: every error class, with exactly the headers of the cheatsheet

NONE: dict[str, str] = {}
NEVER = {"x-should-retry": "false"}
SOON = {"Retry-After": "2"}
HEADERS = [
    (errors.BadJson("-"), 400, NONE, None),
    (errors.InvalidRequest("-"), 400, NONE, None),
    (errors.DeadlineInfeasible("-"), 400, NEVER, None),
    (errors.ModelNotFound("-"), 400, NONE, None),
    (errors.ContextLengthExceeded("-"), 400, NONE, None),
    (errors.HarvestUnsupported("-"), 400, NONE, None),
    (errors.MissingAuthorization("-"), 401, NONE, None),
    (errors.InvalidApiKey("-"), 401, NONE, None),
    (errors.KeyRevoked("-"), 401, NONE, None),
    (errors.KeyDisabled("-"), 401, NONE, None),
    (errors.AccountSuspended("-"), 401, NONE, None),
    (errors.NotFound("-"), 404, NONE, None),
    (errors.JobNotFound("-"), 404, NONE, None),
    (errors.HarvestNotFound("-"), 404, NONE, None),
    (errors.LoomNotFound("-"), 404, NONE, None),
    (errors.MethodNotAllowed("-", allow="GET"), 405, {"Allow": "GET"}, None),
    (errors.RequestTooLarge("-"), 413, NEVER, None),
    (errors.RangeBeyond("-", size=7), 416, NEVER | {"Content-Range": "bytes */7"}, None),
    (errors.RateLimited("-", retry_after_s=12.5), 429, {"Retry-After": "13"}, None),
    (errors.QueueFull("-", retry_after_s=5), 429, {"Retry-After": "5"}, None),
    (errors.SpendCap("-"), 429, {"Retry-After": "3600"} | NEVER, None),
    (errors.BudgetExceeded("-"), 429, NEVER, None),
    (errors.JobEnded("-"), 409, NONE, None),
    (errors.Running("-"), 409, {"Retry-After": "1"}, None),
    (errors.JobCapacity("-"), 429, NEVER, None),
    (errors.HarvestConcurrencyExceeded("-"), 429, {"Retry-After": "30"}, None),
    (errors.HarvestCapacityExceeded("-"), 429, {"Retry-After": "30"}, None),
    (errors.HarvestQuotaExceeded("-"), 429, NEVER, None),
    (errors.HarvestNotCancellable("-"), 409, NEVER, None),
    (errors.NodeNotDone("-"), 409, NEVER, None),
    (errors.NoAnswer("-"), 409, NEVER, None),
    (errors.IdempotencyConflict("-"), 409, NEVER, None),
    (errors.InternalError("-"), 500, NEVER, None),
    (errors.PartUnavailable("-"), 503, {"Retry-After": "1"}, None),
    (errors.UpstreamUnreachable("-"), 502, SOON, True),
    (errors.UpstreamUnreachable("-", cold=True), 503, {"Retry-After": "30"}, True),
    (errors.UpstreamServerError("-"), 502, NEVER, False),
    (errors.VllmOom("-"), 502, SOON, True),
    (errors.VllmEngineDead("-"), 502, SOON, True),
    (errors.CircuitOpen("-", retry_after_s=29.2), 503, {"Retry-After": "30"}, True),
    (errors.UpstreamDeadline("-"), 504, NEVER, False),
]


@pytest.mark.parametrize(("error", "status", "headers", "retryable"), HEADERS, ids=lambda value: type(value).__name__)
def test_each_error_has_exactly_these_headers(error, status, headers, retryable):
    body = error.body("id")
    assert error.status == status
    assert error.headers() == headers
    assert body["error"].get("retryable") is retryable
    assert ("retryable" in body["error"]) is (retryable is not None)


def leaves(cls):
    return [leaf for sub in cls.__subclasses__() for leaf in leaves(sub)] or [cls]


def test_the_list_has_every_error():
    assert {type(error) for error, *_ in HEADERS} == set(leaves(errors.ApiError))


async def test_a_success_has_none_of_them(api):
    response = await api.complete()
    assert not {"retry-after", "x-should-retry", "allow"} & set(response.headers)
