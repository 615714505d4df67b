"""From a harvest request to what it reads and writes."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acs.events.hold import Price
from acs.platform.catalogue import Catalogue
from acs.platform.completions.breaker import Breaker
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ContextLengthExceeded, HarvestUnsupported, InvalidRequest, ModelNotFound
from acs.platform.harvests import stored
from acs.platform.harvests.estimate import estimate_of
from acs.platform.harvests.plan import cut, plan_harvest
from acs.platform.harvests.request import parse_harvest
from acs.platform.limits import Limits
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.platform.tokenizer import ModelTokenizer

CONTEXT = 64


@pytest.fixture
def model(toy_checkpoint):
    entry = Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"]
    engine = {**entry.engine, "max_model_len": CONTEXT, "dtype": "bfloat16"}
    entry = dataclasses.replace(entry, engine=engine, activations=True, price=Price(7, 1000))
    # A plan asks the engine nothing.
    return ServedModel(entry, ModelTokenizer(toy_checkpoint), engine=None, breaker=Breaker(5, 30))


@pytest.fixture
def plan_of(model):
    async def plan(limits=None, *, served=model, **fields):
        limits = limits or Limits()
        body = {"model": "toy", "prompts": [[5, 6, 7], [8, 9]], **fields}
        return await plan_harvest(parse_harvest(body, limits), {"toy": served}, limits)

    return plan


async def test_without_layers_it_reads_the_blocks_at_a_quarter_a_half_and_three_quarters(plan_of, model):
    assert (await plan_of()).layers == sorted({model.layers // 4, model.layers // 2, model.layers * 3 // 4})
    assert (await plan_of(layers="all")).layers == list(range(model.layers))
    assert (await plan_of(layers=[1, 0])).layers == [0, 1]


@pytest.mark.parametrize("positions", ["all", "last", "mean"])
async def test_a_prompt_whose_activations_are_too_many_to_be_read_at_once_is_refused_by_its_index(
    plan_of, model, positions
):
    limits = Limits(harvest_shard_bytes=2 * model.layers * model.hidden_size * 2)  # two positions, in bfloat16
    with pytest.raises(InvalidRequest, match="fewer Layers") as refused:
        await plan_of(limits, layers="all", prompts=[[5], [5, 6, 7]], positions=positions)
    assert refused.value.param == "prompts[1]"


async def test_texts_are_tokenised_as_the_model_does(plan_of, model):
    plan = await plan_of(prompts=["The sky is"], add_special_tokens=False)
    assert plan.prompts == [model.tokenizer.encode("The sky is", add_special_tokens=False)]


async def test_tokens_rows_and_bytes_are_counted(plan_of, model):
    plan = await plan_of(layers=[0, 1])
    assert (plan.n_tokens, plan.n_rows, plan.max_bytes) == (5, 5, 5 * 2 * model.hidden_size * 4)
    plan = await plan_of(layers=[0], positions="mean", project_onto=[[1.0] * model.hidden_size] * 3)
    assert (plan.n_tokens, plan.n_rows, plan.width, plan.max_bytes) == (5, 2, 3, 2 * 3 * 4)


@pytest.mark.parametrize(
    ("fields", "fault", "param"),
    [
        ({"model": "other"}, ModelNotFound, "model"),
        ({"layers": [0, 99]}, InvalidRequest, "layers"),
        ({"project_onto": [[1.0, 2.0]]}, InvalidRequest, "project_onto"),
        ({"prompts": [[5], [10**9]]}, InvalidRequest, "prompts[1]"),
        ({"prompts": [[5], [5] * CONTEXT]}, ContextLengthExceeded, "prompts[1]"),
    ],
)
async def test_what_the_model_cannot_do_is_refused_by_name(plan_of, fields, fault, param):
    with pytest.raises(fault) as caught:
        await plan_of(**fields)
    assert (caught.type, caught.value.param) == (fault, param)


async def test_a_prompt_may_fill_the_context_but_for_the_one_token_that_the_engine_makes(plan_of):
    assert (await plan_of(prompts=[[5] * (CONTEXT - 1)])).n_tokens == CONTEXT - 1


async def test_a_model_without_activations_cannot_be_harvested(plan_of, model):
    plain = dataclasses.replace(model, entry=dataclasses.replace(model.entry, activations=False))
    with pytest.raises(HarvestUnsupported):
        await plan_of(served=plain, layers=[99])


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        (Limits(harvest_tokens=4), ("5 tokens", "at most 4")),
        (Limits(harvest_bytes=1000), ("bytes of rows", "at most 1,000")),
        (Limits(harvest_shard_bytes=100), ("prompts[0] would have", "at most 100")),
    ],
)
async def test_a_harvest_beyond_a_limit_is_told_both_numbers(plan_of, limits, numbers):
    with pytest.raises(InvalidRequest) as caught:
        await plan_of(limits)
    assert all(number in caught.value.message for number in numbers)


@given(
    sizes=st.lists(st.integers(0, 10), min_size=1, max_size=40),
    most_prompts=st.integers(1, 8),
    most_bytes=st.integers(10, 40),
)
def test_shards_have_every_prompt_once_in_order_and_are_as_full_as_they_may_be(sizes, most_prompts, most_bytes):
    cuts = cut(sizes, most_prompts, most_bytes)
    shards = [sizes[start:end] for start, end in itertools.pairwise(cuts)]
    assert [size for shard in shards for size in shard] == sizes
    assert all(shard and len(shard) <= most_prompts and sum(shard) <= most_bytes for shard in shards)
    for shard, following in itertools.pairwise(shards):
        assert len(shard) == most_prompts or sum(shard) + following[0] > most_bytes


async def test_a_plan_is_kept_whole(plan_of, model):
    plan = await plan_of(
        prompts=[[5, 6], [7], [8, 9, 10]], shard_size=2, project_onto=[[2.0] + [0.0] * (model.hidden_size - 1)]
    )
    kept = stored.decode(stored.encode(plan))
    assert (kept.lengths, kept.cuts) == ([2, 1, 3], [0, 2, 3])
    assert [kept.prompts(first, end) for first, end in plan.shards] == [[[5, 6], [7]], [[8, 9, 10]]]
    np.testing.assert_array_equal(kept.direction_rows, plan.directions)


async def test_the_estimate_says_what_will_be_held_and_what_may_be_written(plan_of):
    plan = await plan_of(layers=[0], shard_size=1)
    estimate = estimate_of(plan, None)
    assert (estimate["hold_tokens"], estimate["cost_pico_usd"], estimate["n_files"]) == (5, 35, 4)
    assert estimate["estimated_bytes"] < estimate["max_bytes"] == plan.max_bytes
    assert estimate["estimated_s"] is None
    assert estimate_of(plan, 10.0)["estimated_s"] == 0.5
