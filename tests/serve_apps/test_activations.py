"""What `output_residual_stream` and `apply_steering_vectors` send to the engine, and how its tensors come back."""

import numpy as np
import pytest
from test_bad_input import HIDDEN, ROW, VECTOR

from acs import tensors


async def answer_of(api, **fields):
    response = await api.complete(**fields)
    assert response.status_code == 200, response.text
    return response.json()


async def generate_of(api, **fields):
    """What the engine is asked."""
    await answer_of(api, **fields)
    return api.engine.asked[-1]


def made_by_the_fake(ids, layers):
    stream = np.zeros((len(layers), len(ids), HIDDEN), "f4")
    stream[:, :, 0] = np.array(layers)[:, None] / 16 + np.arange(len(ids)) / 4096 + np.array(ids)
    return stream


@pytest.mark.parametrize(
    ("asked", "layers"), [(True, [0, 1, 2, 3]), ([0, 2], [0, 2]), ([3, 0], [0, 3])], ids=["true", "list", "unordered"]
)
async def test_the_layers_come_ascending_at_every_token_but_the_last(api, asked, layers):
    answer = await answer_of(api, output_residual_stream=asked, max_tokens=5, return_token_ids=True)
    (choice,) = answer["choices"]
    ids = choice["prompt_token_ids"] + choice["token_ids"][:-1]
    assert list(answer)[-1] == "activations"
    assert list(answer["activations"]) == ["residual_stream"]
    envelope = answer["activations"]["residual_stream"]
    assert list(envelope) == ["data", "dtype", "original_dtype", "shape", "compression"]
    assert envelope["shape"] == [len(layers), len(ids), HIDDEN]
    assert (tensors.decode(envelope) == made_by_the_fake(ids, layers)).all()


@pytest.mark.parametrize(
    "fields", [{"n": 3}, {"prompt": ["The", "A sky"]}, {"prompt": [[5], [6, 7]], "n": 2}], ids=repr
)
async def test_several_choices_have_each_their_own(api, fields):
    answer = await answer_of(api, output_residual_stream=[1], return_token_ids=True, **fields)
    assert "activations" not in answer
    for choice in answer["choices"]:
        assert list(choice)[-1] == "activations"
        ids = choice["prompt_token_ids"] + choice["token_ids"][:-1]
        assert (tensors.decode(choice["activations"]["residual_stream"]) == made_by_the_fake(ids, [1])).all()


@pytest.mark.parametrize("asked", [False, None])
async def test_not_asked_for_there_are_none(api, asked):
    answer = await answer_of(api, output_residual_stream=asked)
    assert "activations" not in answer
    assert "activations" not in answer["choices"][0]


async def test_they_come_beside_the_whole_vocabulary(api):
    answer = await answer_of(api, output_residual_stream=[1], prompt_logprobs=-1, prompt=[5, 6])
    assert tensors.decode(answer["activations"]["residual_stream"]).shape == (1, 3, HIDDEN)
    assert len(answer["choices"][0]["prompt_logprobs"][1]) == 2048


async def test_the_capture_shows_the_steered_values(api):
    fields = {"output_residual_stream": [1, 2], "seed": 1, "max_tokens": 4}
    plain, steered = [
        tensors.decode((await answer_of(api, **fields, **more))["activations"]["residual_stream"])
        for more in ({}, {"apply_steering_vectors": [VECTOR]})
    ]
    assert (steered[0] == plain[0] + 1).all()  # 2.0 × 0.5
    assert (steered[1] == plain[1]).all()


async def test_a_vector_reaches_the_engine_as_float32_with_its_settings(api):
    vector = {"activations": [[[0.1] * HIDDEN] * 2] * 2, "layer_indices": [3, 0], "scale": -2, "norm_match": True}
    (steering,) = (await generate_of(api, apply_steering_vectors=[vector])).steering
    assert (steering.layers, steering.scale, steering.norm_match, steering.positions) == ([3, 0], -2.0, True, [0, 1])
    assert (np.frombuffer(steering.values, "<f4") == np.float32(0.1)).all()
    assert len(steering.values) == 2 * 2 * HIDDEN * 4


@pytest.mark.parametrize(
    "activations",
    [[ROW], tensors.encode(np.float32([ROW])), tensors.encode(np.float32([ROW]), bfloat16=True)],
    ids=["lists", "float32", "bfloat16"],
)
async def test_lists_and_envelopes_of_the_same_numbers_are_the_same(api, activations):
    generate = await generate_of(api, apply_steering_vectors=[{**VECTOR, "activations": activations}])
    assert generate.steering[0].values == np.float32([ROW]).tobytes()
    assert generate.steering[0].positions is None


async def test_a_vector_of_scale_0_never_reaches_the_engine(api):
    generate = await generate_of(
        api, apply_steering_vectors=[VECTOR, {**VECTOR, "scale": 0}, {**VECTOR, "scale": -0.0}]
    )
    assert len(generate.steering) == 1


async def test_capabilities_say_what_a_model_offers(api):
    (model,) = (await api.http.get("/v1/models")).json()["data"]
    offered = {name: model["capabilities"][name] for name in ("activations", "steering", "max_activation_bytes")}
    assert offered == {"activations": True, "steering": True, "max_activation_bytes": 64 * 1024**2}
