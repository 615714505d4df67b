"""Bad input: each case has its exact status, code and param, none is a 500, and the server answers afterwards."""

import base64
import json
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
import zstandard
from api_client import good, running_api

from acs import tensors
from acs.platform.completions.request import CompletionRequest

LEFT_OUT = Enum("LEFT_OUT", "left_out").left_out  # its name is the same in every process
VOCABULARY = 2048  # of the toy; its context is 2,048 tokens too
HUGE = 10**399  # 400 digits: JSON's own numbers have no end
HIDDEN, LAYERS = 128, 4  # of the toy
ROW = [0.5] * HIDDEN
VECTOR = {"activations": [ROW], "layer_indices": [1], "scale": 2.0}


class Bounds(NamedTuple):
    field: str
    accepted: list[Any]
    refused: list[Any]


# The table of the contract, field by field, each bound from both sides. Every refusal names the field.
TABLE = [
    Bounds("model", ["toy"], [LEFT_OUT, None, 5, True, [], {}]),
    Bounds(
        "prompt",
        ["x", " ", ["a", "b"], [1, 2], [0], [VOCABULARY - 1], [[1], [2, 3]]],
        [
            *(LEFT_OUT, None, 5, 1.5, True, {}, "", [], [""], ["a", ""], [[]], [[1], []]),
            *([1, "a"], ["a", [1]], [[1], "a"], [1.0], [True], [1, True], [[True]], [[1.0]], [None], [[None]], [["a"]]),
            *([-1], [[1], [-1]], [[[1]]], [{}], [VOCABULARY], [HUGE], [-HUGE]),
        ],
    ),
    Bounds("max_tokens", [1, 2, 2042, None], [0, -1, 2.0, 2.5, True, "2", [], {}, 10**9 + 1, HUGE]),
    Bounds("n", [1, 1024, None], [0, -1, 1025, 1.0, True, "1", [], HUGE]),
    Bounds("temperature", [0, 0.0, 100, 1e-9, None], [-0.001, 100.001, True, "1", [], {}, HUGE, -HUGE]),
    Bounds("top_p", [1e-9, 1, 0.5, None], [0, 0.0, -0.1, 1.001, True, "1", []]),
    Bounds("top_k", [-1, 0, 1, 2**31 - 1, None], [-2, 2**31, 1.0, True, "1", HUGE]),
    Bounds("min_p", [0, 1, None], [-0.001, 1.001, True, "0"]),
    Bounds("presence_penalty", [-2, 2, None], [-2.001, 2.001, True, "0"]),
    Bounds("frequency_penalty", [-2, 2, None], [-2.001, 2.001, False, "0"]),
    Bounds("repetition_penalty", [1e-9, 2, None], [0, -1, 2.001, True, "1"]),
    Bounds("seed", [0, 2**63 - 1, None], [-1, 2**63, 1.0, 1e300, True, "1", HUGE, -HUGE]),
    Bounds(
        "stop", ["a", [], ["a"], ["a", "b", "c", "d"], None], ["", [""], ["a", ""], list("abcde"), 5, [5], [None], {}]
    ),
    Bounds("logprobs", [0, 100, None], [-1, 101, 1.0, True, False, "1", []]),
    Bounds("prompt_logprobs", [-1, 0, 100, None], [-2, 101, 1.0, True, "1", HUGE]),
    Bounds("echo", [True, False, None], [0, 1, "true", []]),
    Bounds("stream", [True, False, None], [0, 1, "true", []]),
    Bounds("stream_options", [None], [[], "x", True, 5]),
    Bounds(
        "logit_bias",
        [{}, {"0": 100}, {"5": -100}, {str(VOCABULARY - 1): 1.5}, None],
        [
            *([], "5", 5, True, {"5": 100.001}, {"5": -100.001}, {"5": HUGE}, {"5": "1"}, {"5": True}, {"5": None}),
            *({"": 1}, {"x": 1}, {"-1": 1}, {"+1": 1}, {"01": 1}, {" 1": 1}, {"1.0": 1}, {"1e1": 1}, {"²": 1}),
            *({str(VOCABULARY): 1}, {"9" * 10: 1}, {"9" * 11: 1}, {"9" * 5000: 1}),
        ],
    ),
    Bounds("ignore_eos", [True, False, None], [0, 1, "true"]),
    Bounds("min_tokens", [0, 2, None], [-1, 3, 1.0, True, "1", 10**9 + 1, HUGE]),
    Bounds("add_special_tokens", [True, False, None], [0, 1, "true"]),
    Bounds("return_token_ids", [True, False, None], [0, 1, "true"]),
    Bounds("user", ["", "x" * 256, "é" * 256, None], ["x" * 257, 5, True, []]),
    Bounds(
        "output_residual_stream",
        [True, False, [0], [3, 0], None],
        [[], [4], [-1], [0, 0], [True], [1.0], ["0"], [None], [HUGE], [[0]], 0, 1, "true", {}],
    ),
    Bounds("apply_steering_vectors", [[VECTOR], [VECTOR] * 8, None], [[], [VECTOR] * 9, {}, 5, "x", True]),
]


def cases(side: str) -> list[Any]:
    return [
        pytest.param(bounds.field, value, id=f"{bounds.field}-{'left out' if value is LEFT_OUT else repr(value)[:40]}")
        for bounds in TABLE
        for value in getattr(bounds, side)
    ]


async def refused(api, response, status, code, param):
    """The one shape, the expected error, nothing left running, and the next request is answered."""
    body = response.json()
    error = body["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param), error
    assert list(body) == ["error", "request_id"]
    assert body["request_id"] == response.headers["x-request-id"]
    assert list(error)[:4] == ["message", "type", "param", "code"]
    assert 0 < len(error["message"]) < 400
    assert api.engine.asked == []
    assert (await api.complete()).status_code == 200
    assert api.running == 0


def test_the_table_has_every_field():
    assert [bounds.field for bounds in TABLE] == list(CompletionRequest.model_fields)


@pytest.mark.parametrize(("field", "value"), cases("accepted"))
async def test_a_value_at_its_bound_is_accepted(api, field, value):
    response = await api.complete(**{field: value})
    assert response.status_code == 200, response.text
    assert api.running == 0


@pytest.mark.parametrize(("field", "value"), cases("refused"))
async def test_a_value_beyond_its_bound_is_refused_by_name(api, field, value):
    body = good(**{field: value})
    if value is LEFT_OUT:
        del body[field]
    response = await api.http.post("/v1/completions", json=body)
    await refused(api, response, 400, "invalid_request", field)


def envelope(**changes: Any) -> dict[str, Any]:
    return {**tensors.encode(np.full((1, HIDDEN), 0.5, "f4")), **changes}


def encoded(values: Any) -> dict[str, Any]:
    return tensors.encode(np.array(values, "f4"))


BOMB = base64.b64encode(zstandard.compress(bytes(2**28))).decode()
ACCEPTED_VECTORS = [
    {"layer_indices": [3]},
    {"activations": [ROW, ROW], "layer_indices": [3, 0]},
    {"activations": [[ROW, ROW]]},
    {"activations": [[ROW, ROW]], "position_indices": [5, 0]},
    {"activations": [[ROW]], "position_indices": [2**31 - 1]},
    {"activations": [[1] * HIDDEN]},
    {"activations": [[0] * HIDDEN], "norm_match": True},
    {"activations": envelope()},
    {"activations": tensors.encode(np.full((1, HIDDEN), 0.5), bfloat16=True)},
    {"activations": tensors.encode(np.full((1, 2, HIDDEN), 0.5, "f2"))},
    {"activations": {"data": envelope(compression=None)["data"], **envelope()}},
    {"scale": 0},
    {"scale": -1},
    {"scale": None, "norm_match": None, "position_indices": None},
    {"norm_match": False},
]
REFUSED_VECTORS = [
    ({"activations": LEFT_OUT}, ".activations"),
    ({"activations": None}, ".activations"),
    ({"activations": 5}, ".activations"),
    ({"activations": "x"}, ".activations"),
    ({"activations": []}, ".activations"),
    ({"activations": [[]]}, ".activations"),
    ({"activations": ROW}, ".activations"),
    ({"activations": [[[ROW]]]}, ".activations"),
    ({"activations": [ROW, ROW[1:]], "layer_indices": [0, 1]}, ".activations"),
    ({"activations": [ROW, [ROW]], "layer_indices": [0, 1]}, ".activations"),
    ({"activations": [[True] * HIDDEN]}, ".activations"),
    ({"activations": [["1"] * HIDDEN]}, ".activations"),
    ({"activations": [[None] * HIDDEN]}, ".activations"),
    ({"activations": [[1e39] * HIDDEN]}, ".activations"),
    ({"activations": [[HUGE] * HIDDEN]}, ".activations"),
    ({"activations": [ROW[1:]]}, ".activations"),  # the hidden size
    ({"activations": [[0.5]]}, ".activations"),
    ({"activations": encoded([[0.5] * (HIDDEN + 1)])}, ".activations"),
    ({"activations": encoded(ROW)}, ".activations"),
    ({"activations": encoded([[[ROW]]])}, ".activations"),
    ({"activations": encoded([[np.nan] * HIDDEN])}, ".activations"),
    ({"activations": encoded([[-np.inf] * HIDDEN])}, ".activations"),
    ({"activations": {}}, ".activations"),
    ({"activations": envelope(more=1)}, ".activations"),
    ({"activations": envelope(data=None)}, ".activations"),
    ({"activations": envelope(data="!")}, ".activations"),
    ({"activations": envelope(data="AAAA")}, ".activations"),
    ({"activations": envelope(data=BOMB)}, ".activations"),
    ({"activations": envelope(data=BOMB, shape=[2**26])}, ".activations"),
    ({"activations": envelope(shape=[1, HIDDEN - 1])}, ".activations"),
    ({"activations": envelope(shape=[1, HIDDEN + 1])}, ".activations"),
    ({"activations": envelope(shape=[1, -HIDDEN])}, ".activations"),
    ({"activations": envelope(shape=[1, HUGE])}, ".activations"),
    ({"activations": envelope(shape=[10**5, 10**5])}, ".activations"),
    ({"activations": envelope(shape="x")}, ".activations"),
    ({"activations": envelope(shape=[True, HIDDEN])}, ".activations"),
    ({"activations": envelope(dtype="int16")}, ".activations"),
    ({"activations": envelope(dtype="object")}, ".activations"),
    ({"activations": envelope(original_dtype="torch.int64")}, ".activations"),
    ({"activations": envelope(original_dtype=["torch.float32"])}, ".activations"),
    ({"activations": envelope(compression="gzip")}, ".activations"),
    ({"layer_indices": LEFT_OUT}, ".layer_indices"),
    ({"layer_indices": None}, ".layer_indices"),
    ({"layer_indices": []}, ".layer_indices"),
    ({"layer_indices": [0, 1]}, ".layer_indices"),
    ({"layer_indices": [LAYERS]}, ".layer_indices"),
    ({"layer_indices": [-1]}, ".layer_indices"),
    ({"layer_indices": [HUGE]}, ".layer_indices"),
    ({"layer_indices": [1, 1], "activations": [ROW, ROW]}, ".layer_indices"),
    ({"layer_indices": [1.0]}, ".layer_indices[0]"),
    ({"layer_indices": [True]}, ".layer_indices[0]"),
    ({"layer_indices": 1}, ".layer_indices"),
    ({"scale": "1"}, ".scale"),
    ({"scale": True}, ".scale"),
    ({"scale": HUGE}, ".scale"),
    ({"scale": 1.1e15}, ".scale"),
    ({"scale": 1e39}, ".scale"),
    ({"scale": 1e14, "activations": [[100.0] * HIDDEN]}, ".scale"),
    ({"scale": LEFT_OUT, "activations": [[1e16] * HIDDEN]}, ".scale"),
    ({"norm_match": 1}, ".norm_match"),
    ({"position_indices": [0]}, ".position_indices"),
    ({"position_indices": [], "activations": [[ROW]]}, ".position_indices"),
    ({"position_indices": [0, 1], "activations": [[ROW]]}, ".position_indices"),
    ({"position_indices": [0, 0], "activations": [[ROW, ROW]]}, ".position_indices"),
    ({"position_indices": [-1], "activations": [[ROW]]}, ".position_indices"),
    ({"position_indices": [2**31], "activations": [[ROW]]}, ".position_indices"),
    ({"position_indices": [0.0], "activations": [[ROW]]}, ".position_indices[0]"),
    ({"more": 1}, ".more"),
]


def with_changes(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**VECTOR, **changes}.items() if value is not LEFT_OUT}


@pytest.mark.parametrize("changes", ACCEPTED_VECTORS, ids=lambda changes: repr(changes)[:60])
async def test_a_sound_steering_vector_is_accepted(api, changes):
    response = await api.complete(apply_steering_vectors=[VECTOR, with_changes(changes)])
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("changes", "where"), REFUSED_VECTORS, ids=lambda value: repr(value)[:60])
async def test_a_broken_steering_vector_is_refused_by_its_number_and_field(api, changes, where):
    response = await api.complete(apply_steering_vectors=[VECTOR, with_changes(changes)])
    await refused(api, response, 400, "invalid_request", f"apply_steering_vectors[1]{where}")


async def test_vectors_that_are_together_too_large_are_refused(toy_checkpoint):
    async with running_api(toy_checkpoint, steering_bytes=2 * HIDDEN * 4) as api:
        assert (await api.complete(apply_steering_vectors=[VECTOR] * 2)).status_code == 200
        api.engine.asked.clear()
        await refused(
            api,
            await api.complete(apply_steering_vectors=[VECTOR] * 3),
            *(400, "invalid_request", "apply_steering_vectors"),
        )


async def test_activations_that_would_be_too_large_are_refused_before_anything_runs(toy_checkpoint):
    async with running_api(toy_checkpoint, activation_bytes=2 * 10 * HIDDEN * 4) as api:
        fields = {"prompt": [5] * 9, "max_tokens": 2, "output_residual_stream": [0, 1]}
        assert (await api.complete(**fields)).status_code == 200
        api.engine.asked.clear()
        for more in ({"max_tokens": 3}, {"max_tokens": None}, {"n": 2}, {"output_residual_stream": [0, 1, 2]}):
            response = await api.complete(**{**fields, **more})
            await refused(api, response, 400, "invalid_request", "output_residual_stream")
            api.engine.asked.clear()


async def test_a_model_without_activations_says_so(toy_checkpoint):
    async with running_api(toy_checkpoint, activations=False) as api:
        for field, value in (("output_residual_stream", [0]), ("apply_steering_vectors", [VECTOR])):
            response = await api.complete(**{field: value})
            assert "toy" in response.json()["error"]["message"]
            await refused(api, response, 400, "invalid_request", field)
            api.engine.asked.clear()


BETWEEN_FIELDS = [
    ({"stream": True, "output_residual_stream": [0]}, 400, "invalid_request", "output_residual_stream"),
    ({"stream": True, "output_residual_stream": False}, 200, None, None),
    ({"stream": True, "apply_steering_vectors": [VECTOR]}, 200, None, None),
    ({"prompt": [5] * 2047, "output_residual_stream": [4]}, 400, "invalid_request", "output_residual_stream"),
    ({"prompt": ["a"] * 1024}, 200, None, None),
    ({"prompt": ["a"] * 1025}, 400, "invalid_request", "prompt"),
    ({"prompt": ["a"] * 2, "n": 512}, 200, None, None),
    ({"prompt": ["a"] * 2, "n": 513}, 400, "invalid_request", "n"),
    ({"prompt": ["a", "b"], "max_tokens": None}, 400, "invalid_request", "max_tokens"),
    ({"n": 2, "max_tokens": None}, 400, "invalid_request", "max_tokens"),
    ({"n": 1, "prompt": ["a"], "max_tokens": None}, 200, None, None),
    ({"stream": True, "prompt_logprobs": 0}, 400, "invalid_request", "prompt_logprobs"),
    ({"stream": True, "prompt_logprobs": -1}, 400, "invalid_request", "prompt_logprobs"),
    ({"stream": False, "prompt_logprobs": 0}, 200, None, None),
    ({"stream_options": {"include_usage": True}}, 400, "invalid_request", "stream_options"),
    ({"stream_options": {}}, 400, "invalid_request", "stream_options"),
    ({"stream": True, "stream_options": {}}, 200, None, None),
    ({"stream": True, "stream_options": {"include_usage": None}}, 200, None, None),
    ({"stream": True, "stream_options": {"include_usage": 1}}, 400, "invalid_request", "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"x": 1}}, 400, "invalid_request", "stream_options.x"),
    ({"max_tokens": None, "min_tokens": 2042}, 200, None, None),
    ({"max_tokens": None, "min_tokens": 2043}, 400, "context_length_exceeded", "min_tokens"),
    # token ids and the context
    ({"prompt": [[1], [VOCABULARY]]}, 400, "invalid_request", "prompt[1]"),
    ({"prompt": [5] * 2046}, 200, None, None),
    ({"prompt": [5] * 2047}, 400, "context_length_exceeded", "max_tokens"),
    ({"prompt": [5] * 2048}, 400, "context_length_exceeded", "prompt"),
    ({"prompt": [5] * 2047, "max_tokens": None}, 200, None, None),
    ({"prompt": [5] * 2048, "max_tokens": None}, 400, "context_length_exceeded", "prompt"),
    ({"prompt": [5] * 2048, "max_tokens": None, "stream": True}, 400, "context_length_exceeded", "prompt"),
    ({"prompt": "sky " * 20_000}, 400, "context_length_exceeded", "prompt"),
    # the whole vocabulary: prompt tokens × n
    ({"prompt": [5] * 128, "n": 2, "prompt_logprobs": -1}, 200, None, None),
    ({"prompt": [5] * 257, "prompt_logprobs": -1}, 400, "invalid_request", "prompt_logprobs"),
    ({"prompt": [5] * 129, "n": 2, "prompt_logprobs": -1}, 400, "invalid_request", "prompt_logprobs"),
    ({"prompt": [[5] * 200, [5] * 57], "prompt_logprobs": -1}, 400, "invalid_request", "prompt_logprobs"),
    # unknown fields and models
    ({"extra_body": {"top_k": 5}}, 400, "invalid_request", "extra_body"),
    ({"best_of": 1}, 400, "invalid_request", "best_of"),
    ({"suffix": None}, 400, "invalid_request", "suffix"),
    ({"prompt.x": 1}, 400, "invalid_request", "prompt.x"),
    ({"": 1}, 400, "invalid_request", ""),
    ({"x" * 5000: 1}, 400, "invalid_request", "x" * 100),
    ({"model": ""}, 400, "model_not_found", "model"),
    ({"model": "no-such"}, 400, "model_not_found", "model"),
    ({"model": "x" * 10_000}, 400, "model_not_found", "model"),
    ({"max_tokens": 15_601}, 400, "deadline_infeasible", "max_tokens"),
]


@pytest.mark.parametrize(("fields", "status", "code", "param"), BETWEEN_FIELDS, ids=lambda value: repr(value)[:50])
async def test_what_must_hold_between_fields(api, fields, status, code, param):
    response = await api.complete(**fields)
    if status == 200:
        assert response.status_code == 200, response.text
        assert api.running == 0
    else:
        await refused(api, response, status, code, param)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_tokens": 15_600}, None),
        ({"max_tokens": 15_601}, "deadline_infeasible"),
        ({"max_tokens": 15_601, "stream": True, "stop": "e"}, None),
        ({"max_tokens": 20_000 - 6, "stream": True, "stop": "e"}, None),
        ({"max_tokens": 20_000 - 5, "stream": True, "stop": "e"}, "context_length_exceeded"),
    ],
)
async def test_only_a_stream_may_be_longer_than_the_deadline_allows(toy_checkpoint, fields, code):
    async with running_api(toy_checkpoint, max_model_len=20_000) as api:
        response = await api.complete(**fields)
        if code is None:
            assert response.status_code == 200, response.text
        else:
            await refused(api, response, 400, code, "max_tokens")


async def test_a_max_tokens_that_is_left_out_is_what_the_deadline_allows_without_stream(toy_checkpoint):
    async with running_api(toy_checkpoint, max_model_len=20_000) as api:
        await api.complete(max_tokens=None, stop="e")
        await api.complete(max_tokens=None, stop="e", stream=True)
        assert [asked.sampling.max_tokens for asked in api.engine.asked] == [15_600, 20_000 - 6]


def raw(text: str | bytes) -> bytes:
    """A sound request with `text` as one more member."""
    more = text.encode() if isinstance(text, str) else text
    return json.dumps(good()).encode()[:-1] + b", " + more + b"}"


def nested(levels: int) -> str:
    """A member whose arrays make the body that deep."""
    return '"echo": ' + "[" * (levels - 1) + "]" * (levels - 1)


BODIES = {
    "empty": (b"", "bad_json", None),
    "only spaces": (b" \n\t ", "bad_json", None),
    "not JSON": (b"model=toy", "bad_json", None),
    "cut off": (b'{"model": "toy"', "bad_json", None),
    "something after the object": (json.dumps(good()).encode() + b" x", "bad_json", None),
    "two objects": (json.dumps(good()).encode() * 2, "bad_json", None),
    "a trailing comma": (b'{"model": "toy",}', "bad_json", None),
    "single quotes": (b"{'model': 'toy'}", "bad_json", None),
    "a byte order mark": (b"\xef\xbb\xbf" + json.dumps(good()).encode(), "bad_json", None),
    "a control character in a text": (raw(b'"user": "\x01"'), "bad_json", None),
    "a number that starts with 0": (raw('"seed": 01'), "bad_json", None),
    "a number that ends with a point": (raw('"seed": 1.'), "bad_json", None),
    "a list": (b"[]", "invalid_request", None),
    "a text": (b'"x"', "invalid_request", None),
    "a number": (b"5", "invalid_request", None),
    "null": (b"null", "invalid_request", None),
    "true": (b"true", "invalid_request", None),
    "infinity alone": (b"1e400", "invalid_request", None),
    "an empty object": (b"{}", "invalid_request", "model"),
    "NaN": (raw('"temperature": NaN'), "bad_json", None),
    "Infinity": (raw('"temperature": Infinity'), "bad_json", None),
    "-Infinity": (raw('"temperature": -Infinity'), "bad_json", None),
    "NaN in a list": (raw('"stop": [NaN]'), "bad_json", None),
    "1e400 as a number": (raw('"temperature": 1e400'), "invalid_request", "temperature"),
    "-1e400 as a number": (raw('"temperature": -1e400'), "invalid_request", "temperature"),
    "1e400 as an integer": (raw('"seed": 1e400'), "invalid_request", "seed"),
    "1e400 inside": (raw('"logit_bias": {"5": 1e400}'), "invalid_request", "logit_bias"),
    "400 digits and a point": (raw('"temperature": ' + "1" * 400 + ".5"), "invalid_request", "temperature"),
    "5,000 digits as a number": (raw('"temperature": ' + "1" * 5000), "invalid_request", "temperature"),
    "5,000 digits as an integer": (raw('"seed": ' + "1" * 5000), "invalid_request", "seed"),
    "-5,000 digits": (raw('"seed": -' + "1" * 5000), "invalid_request", "seed"),
    "5,000 digits inside": (raw('"logit_bias": {"5": ' + "1" * 5000 + "}"), "invalid_request", "logit_bias"),
    "5,000 digits and an earlier fault": (raw('"seed": ' + "1" * 5000 + ', "n": 0'), "invalid_request", "n"),
    "64 levels": (raw(nested(64)), "invalid_request", "echo"),
    "65 levels": (raw(nested(65)), "bad_json", None),
    "65 levels of objects": (raw('"echo": ' + '{"a":' * 64 + "1" + "}" * 64), "bad_json", None),
    "201 levels": (raw(nested(201)), "bad_json", None),
    "100,000 levels": (raw(nested(100_000)), "bad_json", None),
    "100,000 levels that do not close": (b"[" * 100_000, "bad_json", None),
    "65 levels and half a surrogate": (raw(nested(65) + r', "user": "\ud800"'), "bad_json", None),
    "900 levels and half a surrogate": (raw(nested(900) + r', "user": "\ud800"'), "bad_json", None),
    "not UTF-8 in a value": (raw(b'"user": "\xff"'), "bad_json", None),
    "not UTF-8 in a key": (raw(b'"\xff": 1'), "bad_json", None),
    "UTF-16": (json.dumps(good()).encode("utf-16"), "bad_json", None),
    "an encoded surrogate": (raw(b'"user": "\xed\xa0\x80"'), "bad_json", None),
    "an overlong encoding": (raw(b'"user": "\xc0\x80"'), "bad_json", None),
    "half a surrogate in a value": (raw(r'"user": "\ud800"'), "invalid_request", "user"),
    "the other half": (raw(r'"user": "x\udc00"'), "invalid_request", "user"),
    "both halves, the wrong way round": (raw(r'"user": "\udc00\ud800"'), "invalid_request", "user"),
    "half a surrogate in a list": (raw(r'"stop": ["a", "\ud800"]'), "invalid_request", "stop[1]"),
    "half a surrogate in an object": (raw(r'"logit_bias": {"5": "\ud800"}'), "invalid_request", "logit_bias.5"),
    "half a surrogate in a key": (raw(r'"\ud800": 1'), "invalid_request", None),
    "half a surrogate in a key inside": (raw(r'"logit_bias": {"\ud800": 1}'), "invalid_request", "logit_bias"),
    "half a surrogate in the model": (rb'{"model": "\ud800", "prompt": "x"}', "invalid_request", "model"),
    "half a surrogate and the same key twice": (raw(r'"user": "\ud800", "user": 1'), "bad_json", None),
    "the same key twice": (raw('"max_tokens": 2'), "bad_json", None),
    "the same key twice, once escaped": (raw(r'"max\u005ftokens": 2'), "bad_json", None),
    "the same key twice inside": (raw('"logit_bias": {"5": 1, "5": 2}'), "bad_json", None),
    "the same key twice in a list": (raw('"apply_steering_vectors": [{"a": 1, "a": 1}]'), "bad_json", None),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_is_no_request(api, name):
    body, code, param = BODIES[name]
    response = await api.http.post("/v1/completions", content=body)
    await refused(api, response, 400, code, param)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "x", "application/json"]
)
async def test_the_body_is_json_whatever_the_content_type_says(api, content_type):
    headers = {} if content_type is None else {"content-type": content_type}
    response = await api.http.post("/v1/completions", content=json.dumps(good()).encode(), headers=headers)
    assert response.status_code == 200


async def test_texts_of_every_kind_of_character_pass(api):
    response = await api.http.post("/v1/completions", content=raw(r'"user": "\ud83c\udf89 \u0000 日本"'))
    assert response.status_code == 200


@pytest.mark.parametrize("where", [{}, {"stream": True, "stream_options": {}}], ids=["in the body", "inside"])
async def test_many_unknown_fields_are_one_fault(api, where):
    many = {f"k{number}": 0 for number in range(100_000)}
    body = good(**many) if not where else good(stream=True, stream_options=many)
    response = await api.http.post("/v1/completions", json=body)
    await refused(api, response, 400, "invalid_request", "stream_options.k0" if where else "k0")


class Upload:
    """A body that counts how much of it was asked for."""

    def __init__(self, size, piece=1_000_000):
        self.size, self.piece, self.read = size, piece, 0

    async def __aiter__(self):
        while self.read < self.size:
            part = b" " * min(self.piece, self.size - self.read)
            self.read += len(part)
            yield part


@pytest.mark.parametrize("size", ["33000000", "32000001", "9" * 5000])
async def test_a_body_that_says_it_is_too_large_is_not_read_at_all(api, size):
    upload = Upload(33_000_000)
    response = await api.http.post("/v1/completions", content=upload, headers={"Content-Length": size})
    await refused(api, response, 413, "request_too_large", None)
    assert upload.read == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/v1/completions/detokenize"])
async def test_a_body_without_a_length_is_read_no_further_than_the_limit(api, path):
    upload = Upload(60_000_000)
    response = await api.http.post(path, content=upload)
    await refused(api, response, 413, "request_too_large", None)
    assert upload.read <= 33_000_000


async def test_a_body_of_the_full_size_is_read(api):
    body = json.dumps(good()).encode()
    response = await api.http.post("/v1/completions", content=body + b" " * (32_000_000 - len(body)))
    assert response.status_code == 200


@pytest.mark.parametrize("length", ["-1", "abc", "", "1e9", "²"])
async def test_a_length_that_is_no_number_is_not_believed(api, length):
    body = json.dumps(good()).encode()
    headers = {"Content-Length": length.encode("latin-1")}
    assert (await api.http.post("/v1/completions", content=body, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST"),
        ("PUT", "/v1/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("OPTIONS", "/v1/completions", "POST"),
        ("BREW", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
        ("GET", "/tokenize", "POST"),
        ("GET", "/v1/completions/detokenize", "POST"),
        ("POST", "/tokenizer_info", "GET"),
        ("POST", "/docs", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("POST", "/docs/static/swagger-ui.css", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(api, method, path, allow):
    response = await api.http.request(method, path)
    assert response.headers["allow"] == allow
    await refused(api, response, 405, None, None)
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/completions/", "/v1/chat/completions", "/V1/completions", "/v1/x?y=z", "/é", "//"]
)
async def test_an_unknown_route(api, path):
    response = await api.http.post(path, json=good())
    await refused(api, response, 404, None, None)
    assert "allow" not in response.headers


@pytest.mark.parametrize("path", ["/docs/static/nothing.js", "/docs/static/../openapi.py", "/docs/static/%2e%2e/x"])
async def test_no_file_but_those_of_the_page_is_served(api, path):
    await refused(api, await api.http.get(path), 404, None, None)


@pytest.mark.parametrize("host", ["[", "a b", "x" * 5000, ""])
async def test_a_malformed_host_header_harms_nothing(api, host):
    await refused(api, await api.http.get("/nothing", headers={"Host": host}), 404, None, None)


UNKNOWN = "sk-acs-" + "0" * 40
AUTHORIZATIONS = [
    (None, "missing_authorization"),
    ("", "missing_authorization"),
    ("   ", "missing_authorization"),
    ("Bearer", "invalid_api_key"),
    ("Bearer ", "invalid_api_key"),
    ("{accepted}", "invalid_api_key"),
    ("Basic {accepted}", "invalid_api_key"),
    ("Bearer{accepted}", "invalid_api_key"),
    ("Bearer {accepted}x", "invalid_api_key"),
    ("Bearer {accepted} x", "invalid_api_key"),
    ("Bearer Bearer {accepted}", "invalid_api_key"),
    (f"Bearer {UNKNOWN}", "invalid_api_key"),
    ("Bearer é", "invalid_api_key"),
    ("Bearer " + "x" * 100_000, "invalid_api_key"),
    ("Bearer {revoked}", "key_revoked"),
    ("Bearer {disabled}", "key_disabled"),
    ("Bearer {suspended}", "account_suspended"),
]


@pytest.mark.parametrize(("value", "code"), AUTHORIZATIONS, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("route", [("POST", "/v1/completions"), ("GET", "/v1/models")], ids=lambda route: route[1])
async def test_a_key_that_is_not_accepted(api, route, value, code):
    del api.http.headers["authorization"]
    secrets = {standing.value: secret for standing, secret in api.secrets.items()}
    headers = {} if value is None else {"Authorization": value.format(**secrets).encode("latin-1")}
    response = await api.http.request(*route, headers=headers)
    api.http.headers["authorization"] = f"Bearer {secrets['accepted']}"
    await refused(api, response, 401, code, None)
    assert response.json()["error"]["type"] == "authentication_error"
    assert not any(secret in response.text for secret in secrets.values())


@pytest.mark.parametrize("value", ["bearer {key}", "BEARER {key}", "Bearer   {key}", "  Bearer {key}  "])
async def test_an_accepted_key_may_be_written_in_these_ways(api, value):
    key = api.http.headers["authorization"].removeprefix("Bearer ")
    response = await api.http.get("/v1/models", headers={"Authorization": value.format(key=key)})
    assert response.status_code == 200
