"""From a request to what the engine is asked."""

import dataclasses

import pytest

from acs.platform.catalogue import Catalogue
from acs.platform.completions.breaker import Breaker
from acs.platform.completions.plan import plan_completion
from acs.platform.completions.request import parse_completion
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from acs.platform.inference.contract import Sampling
from acs.platform.limits import Limits
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.platform.tokenizer import ModelTokenizer

CONTEXT = 64


@pytest.fixture
def plan_of(toy_checkpoint):
    entry = Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"]
    entry = dataclasses.replace(entry, engine={**entry.engine, "max_model_len": CONTEXT})
    # A plan asks the engine nothing.
    model = ServedModel(entry, ModelTokenizer(toy_checkpoint), engine=None, breaker=Breaker(5, 30))

    async def plan(limits=None, **fields):
        limits = limits or Limits()
        body = {"model": "toy", "prompt": [5, 6, 7], "max_tokens": 2, **fields}
        return await plan_completion(parse_completion(body, limits), {"toy": model}, limits)

    return plan


async def test_defaults_are_openais_and_off_is_zero(plan_of):
    plan = await plan_of(top_k=-1)
    assert plan.generate.sampling == Sampling(max_tokens=2)
    assert plan.generate.n == 1
    assert (plan.generate.logprobs, plan.generate.prompt_logprobs, plan.generate.stream) == (None, None, False)


async def test_every_sampling_field_reaches_the_engine(plan_of):
    given = {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.25,
        "presence_penalty": -1.0,
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.5,
        "seed": 0,
        "stop": ["a"],
        "logit_bias": {"5": 1},
        "ignore_eos": True,
        "min_tokens": 1,
    }
    plan = await plan_of(**given)
    assert plan.generate.sampling == Sampling(max_tokens=2, **{**given, "logit_bias": {5: 1.0}})


async def test_the_quote_has_each_prompt_once_and_every_choice_at_its_longest(plan_of):
    plan = await plan_of(prompt=[[5, 6, 7], [8]], n=3, max_tokens=10)
    assert (plan.prompt_tokens, plan.choices, plan.max_tokens) == (4, 2 * 3, 10)


async def test_ids_are_ours_and_differ(plan_of):
    first, second = await plan_of(), await plan_of()
    assert first.id != second.id


async def test_a_text_begins_with_the_tokenizers_first_token_unless_told_otherwise(plan_of):
    assert (await plan_of(prompt="The")).generate.prompts == [[0, 533]]
    assert (await plan_of(prompt="The", add_special_tokens=False)).generate.prompts == [[533]]
    assert (await plan_of(prompt=[533])).generate.prompts == [[533]]


async def test_without_max_tokens_the_context_left_is_what_may_come(plan_of):
    assert (await plan_of(max_tokens=None)).generate.sampling.max_tokens == CONTEXT - 3
    limits = Limits(max_tokens_whole=10)
    assert (await plan_of(limits, max_tokens=None)).generate.sampling.max_tokens == 10
    assert (await plan_of(limits, max_tokens=None, stream=True)).generate.sampling.max_tokens == CONTEXT - 3


async def test_the_longest_prompt_must_fit(plan_of):
    assert (await plan_of(prompt=[[5], [5] * (CONTEXT - 2)])).prompt_tokens == CONTEXT - 1
    with pytest.raises(ContextLengthExceeded):
        await plan_of(prompt=[[5], [5] * (CONTEXT - 1)])


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"logprobs": 3}, None),
        ({"echo": True}, None),
        ({"logprobs": 0, "echo": True}, 0),
        ({"logprobs": 3, "echo": True}, 3),
        ({"logprobs": 3, "echo": True, "prompt_logprobs": 5}, 5),
        ({"logprobs": 5, "echo": True, "prompt_logprobs": 3}, 5),
        ({"prompt_logprobs": 0}, 0),
        ({"logprobs": 3, "echo": True, "prompt_logprobs": -1}, -1),
    ],
)
async def test_an_echo_with_log_probabilities_asks_for_those_of_the_prompt(plan_of, fields, asked):
    assert (await plan_of(**fields)).generate.prompt_logprobs == asked


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "no", "prompt": [10**6]}, ModelNotFound),
        ({"prompt": [10**6] * 100}, InvalidRequest),
        ({"logit_bias": {"1000000": 1}, "prompt": [5] * 100}, InvalidRequest),
        ({"prompt": [5] * 300, "prompt_logprobs": -1}, InvalidRequest),
        ({"prompt": [5] * 100}, ContextLengthExceeded),
    ],
)
async def test_the_first_of_several_faults_is_raised(plan_of, fields, error):
    with pytest.raises(error) as caught:
        await plan_of(**fields)
    assert type(caught.value) is error
