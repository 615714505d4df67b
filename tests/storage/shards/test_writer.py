import hashlib
import stat

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_shards import PROVENANCE, as_float32, layout, prompt, prompts

from acs.storage.shards.layout import SHARD
from acs.storage.shards.store import Store
from acs.storage.shards.writer import PromptRows, write_shard


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    layers=st.integers(1, 3),
    width=st.integers(1, 9),
    group_bytes=st.integers(1, 2000),
)
@settings(max_examples=60, deadline=None)
def test_any_prompts_come_back_row_for_row_bit_for_bit(tmp_path_factory, lengths, layers, width, group_bytes):
    store = Store.at(str(tmp_path_factory.mktemp("harvest")))
    given = prompts(lengths, layers, width)
    shard = write_shard(store, layout(range(layers), width), 0, given, group_bytes)
    table = pq.read_table(store.open(shard.name))
    assert shard.rows == table.num_rows == sum(lengths)
    assert table["prompt_index"].to_pylist() == [i for i, length in enumerate(lengths) for _ in range(length)]
    assert table["position"].to_pylist() == [position for length in lengths for position in range(length)]
    assert table["token_id"].to_pylist() == [int(id) for one in given for id in one.token_ids]
    assert table["token"].to_pylist() == [token for one in given for token in one.tokens]
    for layer in range(layers):
        column = table[f"layer_{layer}"].combine_chunks()
        wanted = as_float32(np.concatenate([one.values[layer] for one in given]))
        assert column.values.to_numpy().tobytes() == wanted.tobytes()


def test_float32_comes_back_as_it_was_infinity_and_nan_included(store):
    values = np.array([[[1 / 3, np.inf, -np.inf, np.nan, 1e-45]]], np.float32)
    shard = write_shard(store, layout([7]), 0, [prompt(0, values)])
    column = pq.read_table(store.open(shard.name))["layer_7"].combine_chunks()
    assert column.values.to_numpy().tobytes() == values.tobytes()


def test_plain_duckdb_computes_on_the_columns_with_no_help(store, tmp_path):
    values = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    write_shard(store, layout(), 0, [prompt(0, values)])
    rows = duckdb.sql(
        f"select prompt_index, position, token, typeof(layer_2), list_dot_product(layer_0, layer_2) "
        f"from '{tmp_path}/hrv_1/*.parquet' order by position"
    ).fetchall()
    dots = (values[0] * values[1]).sum(axis=1)
    assert rows == [(0, position, f"t{position}", "FLOAT[]", dots[position]) for position in range(3)]


def test_a_prompt_that_is_kept_as_one_row_has_no_position_and_no_token(store):
    mean = PromptRows(4, np.ones((2, 1, 5), np.float32), None, None, None)
    shard = write_shard(store, layout(), 0, [mean])
    (row,) = pq.read_table(store.open(shard.name)).to_pylist()
    assert (row["prompt_index"], row["position"], row["token_id"], row["token"]) == (4, None, None, None)


def test_row_groups_are_cut_by_bytes_and_by_rows(store):
    narrow = write_shard(store, layout(), 0, prompts([100, 100]), group_bytes=50 * 2 * 5 * 4)
    assert group_rows(store, narrow) == [50, 50, 50, 50]
    long = write_shard(store, layout([0], 1), 1, prompts([20_000], 1, 1))
    assert group_rows(store, long) == [8192, 8192, 3616]


def group_rows(store, shard):
    found = pq.read_metadata(store.open(shard.name))
    return [found.row_group(i).num_rows for i in range(found.num_row_groups)]


def test_layer_columns_are_split_by_bytes_and_every_column_is_compressed(store):
    shard = write_shard(store, layout(), 0, prompts([300]))
    group = pq.read_metadata(store.open(shard.name)).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns["layer_2.list.element"].encodings
    assert columns["position"].statistics.max == 299


def test_a_shard_says_where_it_comes_from(store):
    shard = write_shard(store, layout(), 0, prompts([2]))
    metadata = pq.read_schema(store.open(shard.name)).metadata
    assert {name: metadata[f"acs.{name}".encode()].decode() for name in PROVENANCE} == PROVENANCE


def test_a_shard_is_named_by_its_number_and_its_bytes_and_is_for_its_owner_only(store, tmp_path):
    shard = write_shard(store, layout(), 12, prompts([2]))
    data = store.read(shard.name)
    assert (shard.sha256, shard.bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert shard.name == f"shard-00012-{shard.sha256[:8]}.parquet"
    assert SHARD.fullmatch(shard.name)
    assert stat.S_IMODE((tmp_path / "hrv_1").stat().st_mode) == 0o700


def test_the_same_rows_make_the_same_file(store):
    first, second = (write_shard(store, layout(), 3, prompts([5, 6])) for _ in range(2))
    assert first == second
    assert list(store.sizes()) == [first.name]


def test_a_writer_that_fails_leaves_nothing(store):
    def failing():
        yield from prompts([5])
        raise RuntimeError("the replica is gone")

    with pytest.raises(RuntimeError):
        write_shard(store, layout(), 0, failing())
    assert store.sizes() == {}


def test_nothing_of_a_shard_is_seen_while_it_is_written(store, tmp_path):
    seen = []

    def watching():
        yield from prompts([5])
        seen.extend([list((tmp_path / "hrv_1").glob("*.parquet")), len(store.sizes())])

    write_shard(store, layout(), 0, watching(), group_bytes=1)
    assert seen == [[], 1]
