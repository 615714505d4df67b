import numpy as np
import pytest

from acs.platform.harvests.rows import bits_of, kept
from acs.platform.inference.contract import Captured

STREAM = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
BFLOAT16 = (STREAM.view(np.uint32) >> 16).astype(np.uint16)  # small whole numbers lose nothing


@pytest.mark.parametrize("stream", [STREAM, BFLOAT16])
def test_rows_that_are_only_chosen_stay_as_they_are(stream):
    assert kept(stream, "all", None) is stream
    np.testing.assert_array_equal(kept(stream, "last", None), stream[:, 2:])


@pytest.mark.parametrize("stream", [STREAM, BFLOAT16])
def test_a_mean_is_one_row_of_all_positions(stream):
    np.testing.assert_array_equal(kept(stream, "mean", None), STREAM.mean(axis=1, keepdims=True))


@pytest.mark.parametrize("stream", [STREAM, BFLOAT16])
def test_projections_are_products_with_each_direction(stream):
    directions = np.array([[1, 0, 0, 0], [0, 0.5, 0.5, 0]], np.float32)
    projected = kept(stream, "all", directions)
    np.testing.assert_array_equal(projected, STREAM @ directions.T)
    np.testing.assert_array_equal(kept(stream, "last", directions), projected[:, 2:])
    assert projected.dtype == np.float32


def test_a_mean_is_rounded_once():
    rows = np.float32([[[1e8], [1], [1], [1]]])
    assert kept(rows, "mean", None)[0, 0, 0] == np.float32((1e8 + 3) / 4)


def test_the_last_position_does_not_keep_the_others_in_memory():
    assert kept(STREAM, "last", None).base is None


def test_what_the_engine_sends_is_read_in_its_own_dtype():
    assert bits_of(Captured(0, (2, 3, 4), "float32", STREAM.tobytes())).dtype == np.float32
    np.testing.assert_array_equal(bits_of(Captured(0, (2, 3, 4), "bfloat16", BFLOAT16.tobytes())), BFLOAT16)
