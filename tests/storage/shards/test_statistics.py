import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_shards import layout, prompt

from acs.storage.shards.statistics import Statistics, decode, encode
from acs.storage.shards.writer import PromptRows, read_statistics, write_shard

ROWS = np.random.default_rng(0).normal(5, 2, (3000, 4)).astype(np.float32)


def close(found, rows):
    exact = rows.astype(np.longdouble)
    assert found.rows == len(rows)
    np.testing.assert_allclose(found.norm, float(np.sqrt((exact**2).sum(axis=1)).mean()), rtol=1e-12)
    np.testing.assert_allclose(found.mean, exact.mean(axis=0).astype(float), rtol=1e-12)
    np.testing.assert_allclose(found.summary()["std"], exact.std(axis=0).astype(float), rtol=1e-10)


@given(cuts=st.lists(st.integers(0, 3000), max_size=6))
@settings(deadline=None, max_examples=40)
def test_however_the_rows_are_divided_the_statistics_are_those_of_all(cuts):
    found = Statistics.empty(4)
    for part in np.split(ROWS, sorted(cuts)):
        found = found.merged(Statistics.of(part))
    close(found, ROWS)


def test_a_small_spread_around_a_large_mean_is_not_lost():
    rows = (1e6 + np.random.default_rng(1).normal(0, 1, (50_000, 3))).astype(np.float32)
    close(Statistics.of(rows), rows)


def test_statistics_pass_through_text_exactly():
    one = Statistics.of(ROWS)
    (back,) = decode(encode([one]))
    assert (back.rows, back.norm) == (one.rows, one.norm)
    assert back.mean.tobytes() == one.mean.tobytes()
    assert back.squares.tobytes() == one.squares.tobytes()


def test_a_shard_carries_the_statistics_of_its_rows_without_the_first_tokens(store):
    values = [np.random.default_rng(i).normal(0, 1, (2, 7, 5)).astype(np.float32) for i in range(3)]
    for one in values:
        one[:, 0] = 3000
    shard = write_shard(store, layout(), 0, [prompt(i, one) for i, one in enumerate(values)], group_bytes=200)
    found = read_statistics(store, shard.name)
    for layer in range(2):
        close(found[layer], np.concatenate([one[layer, 1:] for one in values]))


def test_rows_that_stand_for_whole_prompts_all_count(store):
    means = [PromptRows(i, np.full((2, 1, 5), i, np.float32), None, None, None) for i in range(3)]
    shard = write_shard(store, layout(), 0, means)
    assert [one.summary()["mean"] for one in read_statistics(store, shard.name)] == [[1.0] * 5] * 2


@pytest.mark.parametrize("worst", [math.inf, math.nan])
def test_what_is_no_number_is_null_and_spoils_nothing_beside_it(worst):
    rows = np.array([[1, worst], [3, 2]], np.float32)
    found = Statistics.of(rows).merged(Statistics.of(rows)).summary()
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "rows": 4,
        "mean_norm": None,
        "mean": [2.0, None],
        "std": [1.0, None],
    }


def test_no_rows_have_no_statistics():
    assert Statistics.empty(2).summary() == {"rows": 0, "mean_norm": None, "mean": None, "std": None}
