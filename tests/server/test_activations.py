"""Activations and steering through the whole server, against Transformers on the same weights."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from pathlib import Path

import httpx
import numpy as np
import pytest
from engine.reference import Reference
from server.waiting import within

from acs import tensors
from acs.platform.catalogue import Catalogue
from acs.platform.inference.contract import Steering
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.serve_apps.inference.tap.exchange import AGAIN_BYTES

pytestmark = [pytest.mark.server, pytest.mark.engine]

TOLERANCE = 1e-4  # of the largest value of a row, in float32: the same weights, summed in another order
MODELS = {"smollm2-135m": "default", "toy": "toy"}


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.v1, headers=server.headers, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def complete(http):
    def ask(model="toy", **fields):
        body = {"model": model, "prompt": "The sky is", "max_tokens": 8, "return_token_ids": True, **fields}
        response = http.post("/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return ask


@pytest.fixture(scope="module", params=MODELS)
def model(request, models_dir):
    """Its id, and Transformers with the same weights."""
    entry = Catalogue.load(SHIPPED_CATALOGUES / f"{MODELS[request.param]}.toml")[request.param]
    return request.param, Reference(entry.checkpoint(models_dir))


def assert_close(ours, expected):
    assert ours.shape == expected.shape
    assert (np.abs(ours - expected).max(-1) / np.abs(expected).max(-1)).max() < TOLERANCE


def test_every_layer_is_that_of_transformers(complete, model):
    name, reference = model
    answer = complete(name, output_residual_stream=True, ignore_eos=True)
    (choice,) = answer["choices"]
    forward = reference.forward(choice["prompt_token_ids"] + choice["token_ids"][:-1])
    assert_close(tensors.decode(answer["activations"]["residual_stream"]), forward.stream)


def test_a_steered_completion_is_transformers_with_the_vector_added(complete, model):
    name, reference = model
    layers = [1, reference.layers - 1]
    vector = np.random.RandomState(0).standard_normal((2, reference.hidden)).astype("f4")
    given = [{"activations": tensors.encode(vector), "layer_indices": layers, "scale": 2.0, "norm_match": True}]
    answer = complete(name, n=2, output_residual_stream=layers, apply_steering_vectors=given, ignore_eos=True)
    steering = [Steering(layers, vector.tobytes(), 2.0, norm_match=True)]
    for choice in answer["choices"]:
        forward = reference.forward(choice["prompt_token_ids"] + choice["token_ids"][:-1], steering)
        assert_close(tensors.decode(choice["activations"]["residual_stream"]), forward.stream[layers])


def test_scale_0_is_bit_for_bit_the_unsteered_answer(complete):
    fields = {"seed": 3, "logprobs": 5, "output_residual_stream": [3]}
    vector = {"activations": [[100.0] * 128], "layer_indices": [1], "scale": 0}
    plain, zero = complete(**fields), complete(**fields, apply_steering_vectors=[vector])
    assert zero["choices"] == plain["choices"]
    assert zero["activations"] == plain["activations"]


def test_nothing_stays_in_shared_memory(server, complete):
    def ask(number: int) -> None:
        vector = {"activations": [[0.5] * 128], "layer_indices": [1]}
        wanted = {"output_residual_stream": [1, 2]} if number % 2 else {"apply_steering_vectors": [vector]}
        complete(**wanted, n=2)

    async def hang_up() -> None:
        async with httpx.AsyncClient(base_url=server.v1, headers=server.headers) as client:
            body = {"model": "toy", "prompt": "The", "max_tokens": 2000, "output_residual_stream": [0]}
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/completions", json=body, timeout=httpx.Timeout(60, read=0.3))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(40)))
    asyncio.run(hang_up())
    assert within(10, lambda: files(server) == ["lock", "lock"])  # one of each replica


def files(server) -> list[str]:
    """But the sheets that harvests, of other tests perhaps, use again."""
    scratch = Path(os.readlink(server.data / "run" / "scratch"))
    tensors = next(path for path in (Path("/dev/shm") / scratch.name, scratch / "tensors") if path.exists())
    found = [path for replica in tensors.iterdir() for path in replica.iterdir()]
    return [path.name for path in found if path.stat().st_size != AGAIN_BYTES]
