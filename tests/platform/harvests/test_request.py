import itertools

import numpy as np
import pytest

from acs import tensors
from acs.platform.errors import InvalidRequest
from acs.platform.harvests.request import HarvestRequest, parse_harvest
from acs.platform.limits import Limits

GOOD = {"model": "toy", "prompts": ["The sky is", "Water"]}
FAULTY = {**{key: {"not": "this"} for key in HarvestRequest.model_fields}, "model": 5, "unknown": 1}


def refusal(**fields):
    with pytest.raises(InvalidRequest) as caught:
        parse_harvest({**GOOD, **fields}, Limits())
    return caught.value


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise(FAULTY)))
def test_of_two_faults_the_first_field_is_named(first, second):
    assert refusal(**{second: FAULTY[second], first: FAULTY[first]}).param == first


@pytest.mark.parametrize(
    "fields",
    [
        {"prompts": "The sky is"},
        {"prompts": []},
        {"prompts": ["The sky is", ""]},
        {"prompts": ["The sky is", [5]]},
        {"prompts": [[5], []]},
        {"prompts": [[5, -1]]},
        {"prompts": [[5, True]]},
        {"prompts": [[5, 1.0]]},
        {"prompts": ["x"] * 4097},
        {"layers": []},
        {"layers": "some"},
        {"layers": [1, 1]},
        {"layers": [-1]},
        {"layers": [True]},
        {"layers": [10**30]},
        {"shard_size": 0},
        {"shard_size": 4097},
        {"positions": "first"},
        {"project_onto": [1.0, 2.0]},
        {"project_onto": [[0.0, 0.0]]},
        {"project_onto": [[1.0]] * 65},
        {"project_onto": [[1e39]]},
        {"project_onto": tensors.encode(np.ones((1, 2, 3), np.float32))},
    ],
)
def test_what_is_out_of_bounds_is_refused_by_the_name_of_its_field(fields):
    (field,) = fields
    assert refusal(**fields).param == field


def test_null_is_the_same_as_leaving_out():
    nulls = dict.fromkeys(HarvestRequest.model_fields.keys() - GOOD.keys())
    assert parse_harvest({**GOOD, **nulls}, Limits()) == parse_harvest(GOOD, Limits())


def test_the_most_prompts_a_harvest_may_have_are_taken():
    assert len(parse_harvest({**GOOD, "prompts": ["x"] * 4096}, Limits()).prompts) == 4096
    with pytest.raises(InvalidRequest, match="has 3 prompts; at most 2"):
        parse_harvest({**GOOD, "prompts": ["x"] * 3}, Limits(harvest_prompts=2))


def test_layers_come_in_ascending_order():
    assert parse_harvest({**GOOD, "layers": [3, 0]}, Limits()).layers == [0, 3]


@pytest.mark.parametrize("given", [[[3, 4], [0, 2]], tensors.encode(np.array([[3, 4], [0, 2]], np.float32))])
def test_directions_are_given_length_one(given):
    directions = parse_harvest({**GOOD, "project_onto": given}, Limits()).project_onto
    np.testing.assert_array_equal(directions, np.array([[0.6, 0.8], [0, 1]], np.float32))
