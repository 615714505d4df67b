"""The other routes: the models, the tokenizer's, and the pages that describe them all."""

import json
import re
from html import escape

import pytest

from acs.platform.completions.request import CompletionRequest
from acs.platform.inference.contract import EngineStatus
from acs.platform.limits import Limits


def schema_of(page, path, method="post"):
    return page["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]


async def test_the_models_are_listed_key_for_key(api):
    answer = (await api.http.get("/v1/models")).json()
    (model,) = answer["data"]
    assert answer["object"] == "list"
    assert list(model) == [
        *("id", "object", "created", "owned_by", "served_model_name", "status", "capabilities", "price", "description")
    ]
    assert list(model["capabilities"]) == [
        *("max_model_len", "max_logprobs", "n_layers", "hidden_size", "vocab_size", "logprobs", "prompt_logprobs"),
        *("full_vocab_max_prompt_tokens", "activations", "steering", "harvest", "max_activation_bytes"),
    ]
    assert (model["id"], model["served_model_name"], model["status"]) == ("toy", "acs/toy-llama", "live")
    assert (model["capabilities"]["max_model_len"], model["capabilities"]["vocab_size"]) == (2048, 2048)
    assert list(model["price"]) == ["prompt_micro_usd_per_million", "completion_micro_usd_per_million"]


@pytest.mark.parametrize("status", ["live", "cold", "down"])
async def test_a_models_status_is_its_engines(api, status):
    api.engine.status = lambda: EngineStatus(status)
    assert (await api.http.get("/v1/models")).json()["data"][0]["status"] == status


async def test_health_needs_no_key(api):
    del api.http.headers["authorization"]
    response = await api.http.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


# -- the tokenizer

PREFIXES = ["", "/v1/completions"]


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_text_to_tokens_and_back(api, prefix):
    body = {"model": "toy", "prompt": "The sky is", "return_token_strs": True}
    answer = (await api.http.post(f"{prefix}/tokenize", json=body)).json()
    assert answer == {
        "count": 6,
        "max_model_len": 2048,
        "tokens": [0, 533, 262, 76, 90, 325],
        "token_strs": ["<|bos|>", "The", " s", "k", "y", " is"],
    }
    back = await api.http.post(f"{prefix}/detokenize", json={"model": "toy", "tokens": answer["tokens"][1:]})
    assert back.json() == {"prompt": "The sky is"}


async def test_tokenize_without_special_tokens_or_strings(api):
    body = {"model": "toy", "prompt": "The", "add_special_tokens": False}
    answer = (await api.http.post("/tokenize", json=body)).json()
    assert answer == {"count": 1, "max_model_len": 2048, "tokens": [533], "token_strs": None}


async def test_a_long_text_is_tokenised_as_a_short_one_is(api):
    tokens = (await api.http.post("/tokenize", json={"model": "toy", "prompt": "sky " * 30_000})).json()["tokens"]
    answer = (await api.http.post("/detokenize", json={"model": "toy", "tokens": tokens[1:]})).json()
    assert answer["prompt"] == "sky " * 30_000


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("query", ["", "?model=toy"])
async def test_the_tokenizers_settings(api, prefix, query):
    answer = (await api.http.get(f"{prefix}/tokenizer_info{query}")).json()
    assert answer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "chat_template" not in answer


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        ("tokenize", {}, "invalid_request", "prompt"),
        ("tokenize", {"prompt": 5}, "invalid_request", "prompt"),
        ("tokenize", {"prompt": ["a"]}, "invalid_request", "prompt"),
        ("tokenize", {"prompt": "x", "messages": []}, "invalid_request", "messages"),
        ("tokenize", {"prompt": "x", "add_special_tokens": 1}, "invalid_request", "add_special_tokens"),
        ("tokenize", {"prompt": "x", "model": "no"}, "model_not_found", "model"),
        ("tokenize", {"prompt": "x", "model": None}, "invalid_request", "model"),
        ("detokenize", {}, "invalid_request", "tokens"),
        ("detokenize", {"tokens": "x"}, "invalid_request", "tokens"),
        ("detokenize", {"tokens": [1, -1]}, "invalid_request", "tokens[1]"),
        ("detokenize", {"tokens": [-1] * 300_000}, "invalid_request", "tokens[0]"),
        ("detokenize", {"tokens": [1.0]}, "invalid_request", "tokens[0]"),
        ("detokenize", {"tokens": [True]}, "invalid_request", "tokens[0]"),
        ("detokenize", {"tokens": [2048]}, "invalid_request", "tokens"),
        ("detokenize", {"tokens": [10**400]}, "invalid_request", "tokens"),
        ("detokenize", {"tokens": [1], "model": "no"}, "model_not_found", "model"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_the_tokenizer_routes_refuse(api, path, fields, code, param):
    response = await api.http.post(f"/{path}", json={"model": "toy", **fields})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert len(error["message"]) < 400


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": "\xff"}'])
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_the_tokenizer_routes_judge_a_body_as_every_route_does(api, path, body):
    response = await api.http.post(path, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == ("invalid_request" if body == b"[]" else "bad_json")


async def test_an_unknown_model_has_no_tokenizer(api):
    for name in ("no", ""):
        response = await api.http.get("/tokenizer_info", params={"model": name})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "model_not_found")


# -- the pages


async def test_the_page_names_every_route_of_the_contract(api):
    page = (await api.http.get("/openapi.json")).json()
    assert page["openapi"].startswith("3.1")
    assert {(path, method) for path, methods in page["paths"].items() for method in methods} == {
        ("/v1/completions", "post"),
        ("/v1/completion-jobs", "post"),
        ("/v1/completion-jobs", "get"),
        ("/v1/completion-jobs/{job_id}", "get"),
        ("/v1/completion-jobs/{job_id}/result", "get"),
        ("/v1/completion-jobs/{job_id}/cancel", "post"),
        ("/v1/harvest", "post"),
        ("/v1/harvest", "get"),
        ("/v1/harvest/{job_id}", "get"),
        ("/v1/harvest/{job_id}", "delete"),
        ("/files/{harvest_id}/{file}", "get"),
        ("/files/{harvest_id}/{file}", "head"),
        ("/v1/looms", "post"),
        ("/v1/looms", "get"),
        ("/v1/looms/{loom_id}", "get"),
        ("/v1/looms/{loom_id}", "patch"),
        ("/v1/looms/{loom_id}", "delete"),
        ("/v1/looms/{loom_id}/nodes/{node_id}", "delete"),
        ("/v1/looms/{loom_id}/nodes/{node_id}/branch", "post"),
        ("/v1/models", "get"),
        ("/v1/usage", "get"),
        ("/health", "get"),
        ("/tokenize", "post"),
        ("/detokenize", "post"),
        ("/tokenizer_info", "get"),
    }


async def test_the_pages_bounds_are_those_that_validate(api):
    """Generated from the validating model, and read back here from the other side: the constraints themselves."""
    page = (await api.http.get("/openapi.json")).json()
    schema = schema_of(page, "/v1/completions")
    assert list(schema["properties"]) == list(CompletionRequest.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["model", "prompt"]
    names = {
        "ge": "minimum",
        "le": "maximum",
        "gt": "exclusiveMinimum",
        "lt": "exclusiveMaximum",
        "min_length": "minLength",
        "max_length": "maxLength",
    }
    for field, info in CompletionRequest.model_fields.items():
        alternatives = schema["properties"][field].get("anyOf", [schema["properties"][field]])
        parts = ((key.replace("Items", "Length"), value) for part in alternatives for key, value in part.items())
        shown = {key: value for key, value in parts if key in names.values()}
        constraints = {
            names[key]: getattr(part, key)
            for part in info.metadata
            for key in names
            if getattr(part, key, None) is not None
        }
        if constraints:
            assert shown == constraints, field


async def test_the_page_is_a_valid_openapi_document(api):
    from jsonschema import Draft202012Validator

    page = (await api.http.get("/openapi.json")).json()
    for operation in (operation for methods in page["paths"].values() for operation in methods.values()):
        contents = [operation.get("requestBody", {}), *operation["responses"].values()]
        for content in contents:
            for media in content.get("content", {}).values():
                Draft202012Validator.check_schema(media["schema"])
        assert operation["responses"]["200"]["content"]
        assert "422" not in operation["responses"]  # FastAPI's own; we never answer it
    assert "$ref" not in json.dumps(page)


async def test_the_docs_fetch_nothing_from_outside(api):
    page = await api.http.get("/docs")
    assert page.status_code == 200
    links = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(links) >= 3
    for link in links:
        assert link.startswith("/docs/static/")
        response = await api.http.get(link)
        assert response.status_code == 200
        assert len(response.content) > 100
    assert not re.findall(r"https?://|//[a-z]", page.text.replace("http://www.w3.org", ""))


async def test_the_docs_show_every_limit(api):
    page = (await api.http.get("/docs")).text
    for name, _, meaning in Limits().table():
        assert name in page
        assert escape(meaning) in page
    assert "32,000,000" in page
    assert "15,600" in page


async def test_the_pages_need_no_key(api):
    del api.http.headers["authorization"]
    for path in ("/docs", "/openapi.json", "/docs/static/swagger-ui-bundle.js"):
        assert (await api.http.get(path)).status_code == 200
