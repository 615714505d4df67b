"""What `acs harvest` makes of files: prompts to be read, and rows to be verified."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acs import tensors
from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.harvest_commands import CLOSE, _prompts
from acs.platform.cli.harvest_verify import verify_sample
from acs.platform.cli.input import request

ROWS = np.float32([[[1, 2], [3, 4], [5, 6]]])  # [layers, positions, hidden]


def test_a_prompt_ends_at_a_newline_and_at_no_other_character(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("one\u2028still one\x0b\x85\r\n\ntwo".encode())
    assert _prompts(file) == ["one\u2028still one\x0b\x85", "two"]
    file = tmp_path / "prompts.jsonl"
    file.write_text('"one\u2028still one"\n[1, 2]\n', encoding="utf-8")
    assert _prompts(file) == ["one\u2028still one", [1, 2]]


def test_a_file_that_is_not_utf_8_is_refused_with_a_sentence(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"caf\xe9")
    with pytest.raises(CommandFailed, match="not UTF-8: at byte 3"):
        _prompts(file)


def test_a_file_in_the_place_of_a_request_is_answered_with_how_to_give_it(tmp_path):
    (tmp_path / "texts.txt").write_text("The sky is")
    with pytest.raises(CommandFailed, match=r"texts\.txt is a file: give it as `- < "):
        request(str(tmp_path / "texts.txt"))
    with pytest.raises(CommandFailed, match="The request is not JSON"):
        request("texts.tx")


class ReadingAgain:
    """Answers a Completion with these rows."""

    def __init__(self, rows):
        self._rows = rows

    async def asked(self, method, path, **fields):
        return {"activations": {"residual_stream": tensors.encode(self._rows)}}


@pytest.fixture
def downloaded(tmp_path):
    def write(rows):
        columns = {"prompt_index": [0, 0, 0], "position": [0, 1, 2], "token_id": [7, 8, 9]}
        columns["layer_0"] = pa.FixedSizeListArray.from_arrays(pa.array(rows[0].ravel()), 2)
        pq.write_table(pa.table(columns), tmp_path / "shard.parquet")
        facts = {"contents": "residual_stream", "positions": "all", "n_prompts": 1, "model": "toy", "layers": [0]}
        (tmp_path / "manifest.json").write_text(json.dumps({**facts, "shards": [{"file": "shard.parquet"}]}))
        return tmp_path

    return write


async def test_rows_that_a_completion_reads_again_are_verified(downloaded):
    found = await verify_sample(ReadingAgain(ROWS), downloaded(ROWS), 8)
    assert (found["prompts"], found["rows"], found["largest_difference"]) == (1, 3, 0)
    assert found["least_cosine"] >= CLOSE


@pytest.mark.parametrize("wrong", [0.0, -1.0])
async def test_a_row_of_zeros_or_of_other_numbers_is_found(downloaded, wrong):
    rows = ROWS.copy()
    rows[0, 1] = wrong
    assert (await verify_sample(ReadingAgain(ROWS), downloaded(rows), 8))["least_cosine"] < CLOSE


async def test_a_row_that_is_not_finite_is_a_fault(downloaded):
    rows = ROWS.copy()
    rows[0, 1, 0] = np.nan
    with pytest.raises(CommandFailed, match="not finite"):
        await verify_sample(ReadingAgain(ROWS), downloaded(rows), 8)


async def test_a_sample_of_nothing_is_refused(downloaded):
    with pytest.raises(CommandFailed, match="--sample"):
        await verify_sample(ReadingAgain(ROWS), downloaded(ROWS), 0)
