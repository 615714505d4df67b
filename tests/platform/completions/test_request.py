"""Which fault of several answers, and how it is said."""

import itertools

import pytest
from pydantic import ValidationError

from acs.platform.completions.body import Body, faults_of, shown
from acs.platform.completions.request import CompletionRequest, parse_completion
from acs.platform.errors import DeadlineInfeasible, InvalidRequest
from acs.platform.limits import Limits

GOOD = {"model": "m", "prompt": "x", "max_tokens": 2}
# Each field with a value that no request may have, in the order of the contract's table; an unknown field comes last.
FAULTY = {
    **{name: {"not": "this"} for name in CompletionRequest.model_fields},
    "model": 5,
    "prompt": 5,
    "logit_bias": 5,
    "stream_options": 5,
    "unknown": 1,
}


def refusal(limits=None, **fields):
    with pytest.raises(InvalidRequest) as caught:
        parse_completion({**GOOD, **fields}, limits or Limits())
    return caught.value


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise(FAULTY)))
def test_of_two_faults_the_first_in_the_table_is_named(first, second):
    assert refusal(**{second: FAULTY[second], first: FAULTY[first]}).param == first


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        # what must hold between fields has its place in the same order
        ({"n": 2, "max_tokens": None, "temperature": -1}, "max_tokens"),
        ({"prompt": ["a"] * 600, "n": 2, "temperature": -1}, "n"),
        ({"prompt": ["a"] * 1025, "max_tokens": 0}, "prompt"),
        ({"stream_options": {}, "logit_bias": 5}, "stream_options"),
        ({"stream_options": {}, "temperature": -1}, "temperature"),
        ({"stream": True, "prompt_logprobs": 1, "echo": 5}, "prompt_logprobs"),
        ({"min_tokens": 3, "user": 5}, "min_tokens"),
        ({"min_tokens": 3, "ignore_eos": 5}, "ignore_eos"),
        ({"min_tokens": 3, "unknown": 1}, "min_tokens"),
        # and is not judged where one of its fields is faulty already
        ({"min_tokens": 3, "max_tokens": "2"}, "max_tokens"),
        ({"n": 2, "max_tokens": None, "prompt": 5}, "prompt"),
        # a name that looks like a path is still an unknown field
        ({"model.x": 1, "user": 5}, "user"),
        ({"model[0]": 1, "user": 5}, "user"),
    ],
)
def test_what_must_hold_between_fields_has_its_place_in_the_order(fields, param):
    assert refusal(**fields).param == param


def test_the_shape_is_judged_before_the_deadline():
    assert refusal(max_tokens=15_601, user=5).param == "user"
    with pytest.raises(DeadlineInfeasible):
        parse_completion({**GOOD, "max_tokens": 15_601}, Limits())


def test_a_lowered_limit_is_the_one_that_refuses():
    limits = Limits(choices=4, max_logprobs=5)
    assert refusal(limits, n=5).message == "n is 5 with 1 prompts, 5 choices; at most 4 choices in all."
    assert refusal(limits, logprobs=6).message == "logprobs is 6; at most 5."
    assert refusal(limits, prompt_logprobs=6).param == "prompt_logprobs"
    assert parse_completion({**GOOD, "n": 4, "logprobs": 5, "prompt_logprobs": 5}, limits).n == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 101}, "temperature is 101; it must be less than or equal to 100."),
        ({"temperature": "1"}, "temperature must be a valid number."),
        ({"max_tokens": 2.5}, "max_tokens must be a valid integer."),
        ({"best_of": 1}, "best_of is not a field of this request."),
        ({"stream_options": 5}, "stream_options must be an object."),
        ({"user": "x" * 257}, "user must have at most 256 characters."),
        ({"stop": list("abcde")}, "stop has 5 texts; at most 4 are allowed."),
        ({"logit_bias": {"x": 1}}, "logit_bias has the key x, which is no token id."),
        ({"prompt": [1, -1]}, "prompt holds the token id -1; token ids are not negative."),
        ({"min_tokens": 3}, "min_tokens is 3, above max_tokens 2."),
        ({"apply_steering_vectors": []}, "apply_steering_vectors must not be empty."),
    ],
)
def test_a_message_names_the_field_and_the_values_that_disagree(fields, message):
    assert refusal(**fields).message == message


def test_a_missing_field_is_required():
    with pytest.raises(InvalidRequest) as caught:
        parse_completion({"model": "m"}, Limits())
    assert caught.value.message == "prompt is required."


def test_a_number_of_many_digits_is_shortened():
    assert shown(10**60) == "10000000000000000000… (61 digits)"
    assert shown(-0.25) == "-0.25"
    assert len(refusal(seed=10**4000).message) < 200


def test_of_many_unknown_fields_only_one_is_looked_at():
    """Pydantic takes 12 s to report a million."""

    class Small(Body):
        known: int

    with pytest.raises(ValidationError) as caught:
        Small.model_validate({f"k{number}": 1 for number in range(100)} | {"known": "x"})
    assert [(fault.field, fault.path) for fault in faults_of(caught.value)] == [("known", "known"), ("", "k0")]
