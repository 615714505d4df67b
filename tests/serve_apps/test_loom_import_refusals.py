"""Nodes of another Loom that are refused: paths beyond the context, numbers that nothing can hold."""

import pytest
from loom_client import looms_api

from acs.platform.tokenizer import ModelTokenizer


async def planted(looms, *nodes):
    return await looms.http.post("/v1/looms", json={"nodes": list(nodes)})


@pytest.mark.parametrize(
    ("nodes", "where"),
    [
        ([("a", None, 17, None), ("b", "a", 1, None)], "nodes[0]"),
        ([("a", None, 16, None)], "nodes[0]"),  # a continuation needs one more
        ([("a", None, 10, None), ("b", "a", 7, None)], "nodes[1]"),
        ([("a", None, 10, None), ("b", "a", 6, None), ("c", "b", 1, None)], "nodes[2]"),
        ([("a", None, 10, None), ("b", "a", 6, None), ("c", "b", 6, 1)], "nodes[2]"),
    ],
    ids=repr,
)
async def test_a_path_beyond_the_context_is_refused_before_it_is_decoded(toy_checkpoint, monkeypatch, nodes, where):
    decoded, settled = [], ModelTokenizer.settled
    monkeypatch.setattr(ModelTokenizer, "settled", lambda self, ids: decoded.append(len(ids)) or settled(self, ids))
    async with looms_api(toy_checkpoint, max_model_len=16) as looms:
        answer = await planted(
            looms,
            *(
                {"id": id, "parent_id": parent, "token_ids": [5] * tokens, "parent_token": taken}
                for id, parent, tokens, taken in nodes
            ),
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", where)
        assert max(decoded, default=0) <= 16
        assert looms.blobs() == 0


async def test_a_path_that_fills_the_context_is_imported_and_the_branches_beside_it_count_apart(toy_checkpoint):
    async with looms_api(toy_checkpoint, max_model_len=16) as looms:
        root = {"id": "a", "token_ids": [5] * 10}
        whole = [{"id": name, "parent_id": "a", "token_ids": [6] * 6} for name in "bc"]
        inside = {"id": "d", "parent_id": "c", "parent_token": 1, "token_ids": [7] * 5}
        answer = await planted(looms, root, *whole, inside)
        assert answer.status_code == 201, answer.text
        tokenizer = looms.api.services.models["toy"].tokenizer
        at = answer.json()["nodes"][-1]["id"]
        text = await looms.text(answer.json()["id"], at)
        assert text == tokenizer.settled([5] * 10 + [6] + [7] * 5)


LOGPROBS = {"tokens": ["A"] * 2, "token_logprobs": [-1.0] * 2, "top_logprobs": [{}] * 2, "top_token_ids": [{}] * 2}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sampling": {"seed": 2**64}}, "nodes[1].sampling"),
        ({"sampling": {"stop": [{"deep": -(2**63) - 1}]}}, "nodes[1].sampling"),
        ({"usage": {"total_tokens": 2**64}}, "nodes[1].usage.total_tokens"),
        ({"usage": {"total_tokens": -1}}, "nodes[1].usage.total_tokens"),
        ({"logprobs": {**LOGPROBS, "token_logprobs": [-1e308, -1e308]}}, "nodes[1].logprobs.token_logprobs[0]"),
        ({"logprobs": {**LOGPROBS, "token_logprobs": [-1.0, 10**400]}}, "nodes[1].logprobs.token_logprobs[1]"),
        ({"logprobs": {**LOGPROBS, "top_logprobs": [{"A": 10**400}, {}]}}, "nodes[1].logprobs.top_logprobs[0].A"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_number_that_nothing_can_hold_is_refused(toy_checkpoint, fields, param):
    async with looms_api(toy_checkpoint) as looms:
        child = {"id": "b", "parent_id": "a", "token_ids": [33, 33], **fields}
        answer = await planted(looms, {"id": "a", "token_ids": [33]}, child)
        assert answer.status_code == 400, answer.text
        assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("invalid_request", param)
        assert looms.blobs() == 0


async def test_the_largest_numbers_that_can_be_kept_are_imported_as_they_were(toy_checkpoint):
    async with looms_api(toy_checkpoint) as looms:
        kept = {
            "sampling": {"seed": 2**64 - 1, "other": [-(2**63)]},
            "usage": {"total_tokens": 2**53 - 1},
            "logprobs": {**LOGPROBS, "token_logprobs": [-9999.0, 0.0]},
        }
        child = {"id": "b", "parent_id": "a", "token_ids": [33, 33], **kept}
        answer = await planted(looms, {"id": "a", "token_ids": [33]}, child)
        assert answer.status_code == 201, answer.text
        node = (await looms.loom(answer.json()["id"]))["nodes"][1]
        assert {name: node[name] for name in kept} == kept
