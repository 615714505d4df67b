"""The arithmetic of steering on tensors, in bfloat16 above all."""

import numpy as np
import pytest
import torch

from acs.serve_apps.inference.tap.steering import Addition, SteeredLayer

ROWS, HIDDEN = 6, 64


def addition(rows: list[int], values: torch.Tensor, norm_match: bool = False) -> Addition:
    """`values`: one row for all, or one for each."""
    which = np.zeros(len(rows), np.int64) if len(values) == 1 else np.arange(len(rows))
    return Addition(np.array(rows), values, which, norm_match)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [[0, 1, 2], [1, 4], [5], list(range(ROWS))], ids=str)
def test_every_element_is_the_stream_plus_the_vector_and_other_rows_are_not_touched(dtype, rows):
    first, second, vector = drawn(ROWS, HIDDEN, dtype=dtype), drawn(ROWS, HIDDEN, dtype=dtype, seed=1), drawn(1, HIDDEN)
    before = first.clone(), second.clone()
    SteeredLayer([[addition(rows, vector)]], torch.device("cpu")).apply((first, second))
    stream = before[0] + before[1]
    wanted = stream.clone()
    wanted[rows] = (stream[rows].float() + vector).to(dtype)
    assert torch.equal(first + second, wanted)
    others = [row for row in range(ROWS) if row not in rows]
    assert torch.equal(first[others], before[0][others])
    assert torch.equal(second[others], before[1][others])


def test_a_block_that_returns_one_tensor_is_steered_too():
    stream, vector = drawn(ROWS, HIDDEN, dtype=torch.bfloat16), drawn(1, HIDDEN)
    wanted = (stream.float() + vector).to(torch.bfloat16)
    SteeredLayer([[addition(list(range(ROWS)), vector)]], torch.device("cpu")).apply(stream)
    assert torch.equal(stream, wanted)


def test_requests_with_different_vectors_kinds_and_rows_share_a_step():
    stream = drawn(ROWS, HIDDEN)
    plain, matched, rowed = drawn(1, HIDDEN, seed=1), drawn(1, HIDDEN, seed=2), drawn(2, HIDDEN, seed=3)
    rounds = [
        [addition([0, 1], plain), addition([2], matched, True), addition([3, 5], rowed)],
        [addition([1], matched)],
    ]
    wanted = stream.clone()
    wanted[[0, 1]] += plain
    wanted[2] += matched[0] * stream[2].norm()
    wanted[[3, 5]] += rowed
    wanted[1] += matched[0]
    SteeredLayer(rounds, torch.device("cpu")).apply(stream)
    assert torch.allclose(stream, wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(stream[4], wanted[4])


@pytest.mark.parametrize("size", [1e16, 3e38, float("inf"), float("nan")])
def test_a_row_that_would_be_beyond_range_stays_as_it_was_and_is_named(size):
    stream, vector = drawn(ROWS, HIDDEN), torch.full((1, HIDDEN), size)
    wanted = stream.clone()
    wanted[1] += 1
    layer = SteeredLayer([[addition([1], torch.ones(1, HIDDEN)), addition([2, 4], vector)]], torch.device("cpu"))
    layer.apply(stream)
    assert torch.equal(stream, wanted)
    assert layer.rows_beyond_range() == [2, 4]


def test_the_norm_that_is_matched_is_that_before_any_steering():
    stream, large, unit = drawn(1, HIDDEN), drawn(1, HIDDEN, seed=1) * 100, drawn(1, HIDDEN, seed=2)
    wanted = stream + large + unit * stream.norm()
    SteeredLayer([[addition([0], large)], [addition([0], unit, True)]], torch.device("cpu")).apply(stream)
    assert torch.allclose(stream, wanted, rtol=1e-5)
