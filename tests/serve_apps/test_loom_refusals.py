"""What Looms refuse, and with which words: each row of the contract."""

import asyncio
import dataclasses
import json

import pytest
from api_client import until
from loom_client import PROMPT, RESOLVED, looms_api

from acs.events.ids import parse
from acs.events.ledger import Ledger
from acs.platform.inference.contract import Failed
from acs.platform.ledger.contract import Standing
from acs.platform.tokenizer import ModelTokenizer

NOWHERE = f"node_{'0' * 32}"


@pytest.fixture
async def looms(toy_checkpoint):
    async with looms_api(toy_checkpoint) as looms:
        yield looms


def error_of(answer):
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def theirs(looms):
    """The key of another account, known to the ingress."""
    _, secret = looms.api.ledger.key(looms.api.ledger.account("Bob"))
    await looms.api.complete_with(secret)
    return {"Authorization": f"Bearer {secret}"}


# -- the Node


async def test_a_branch_from_an_unknown_node_or_loom_is_not_found(looms):
    loom_id, _ = await looms.plant()
    _, other_root = await looms.plant()
    for loom, node in ((loom_id, NOWHERE), (loom_id, "nothing"), (loom_id, other_root), ("nothing", other_root)):
        assert error_of(await looms.ask(loom, node)) == (404, None, None)


async def test_a_branch_from_a_deleted_node_is_not_found(looms):
    loom_id, root = await looms.plant()
    (node,) = await looms.grow(loom_id, root)
    (child,) = await looms.grow(loom_id, node["id"])
    await looms.delete(loom_id, node["id"])
    for id in (node["id"], child["id"]):
        assert error_of(await looms.ask(loom_id, id)) == (404, None, None)


async def test_another_accounts_loom_is_not_found_by_any_route(looms):
    loom_id, root = await looms.plant()
    (node,) = await looms.grow(loom_id, root)
    path, headers = f"/v1/looms/{loom_id}", await theirs(looms)
    for method, where, body in (
        ("GET", path, None),
        ("GET", f"{path}?format=text&node={root}", None),
        ("GET", f"{path}?since=1&wait=1", None),
        ("PATCH", path, {"title": "Mine"}),
        ("DELETE", path, None),
        ("DELETE", f"{path}/nodes/{node['id']}", None),
        ("POST", f"{path}/nodes/{root}/branch", {"model": "toy", "max_tokens": 1}),
    ):
        answer = await looms.http.request(method, where, json=body, headers=headers)
        assert error_of(answer) == (404, None, None), (method, where)
    assert (await looms.http.get("/v1/looms", headers=headers)).json()["data"] == []
    assert len(await looms.nodes(loom_id)) == 2


async def test_a_branch_from_a_node_that_is_not_done_is_a_conflict(looms):
    looms.engine.step_s = 0.01
    loom_id, root = await looms.plant()
    (running,) = await looms.branch(loom_id, root, max_tokens=1000)
    await looms.running_in_engine(1)
    looms.runner.lose_link()  # what is asked now stays pending
    (pending,) = await looms.branch(loom_id, root)
    for node in (running, pending):
        answer = await looms.ask(loom_id, node)
        assert error_of(answer) == (409, None, None)
        assert answer.headers["x-should-retry"] == "false"
        text = await looms.http.get(f"/v1/looms/{loom_id}", params={"format": "text", "node": node})
        assert error_of(text) == (409, None, None)
    await looms.delete(loom_id)
    looms.new_runner()
    await until(lambda: len(looms.events(RESOLVED)) == 2)


async def test_a_branch_from_a_failed_node_is_a_conflict(looms):
    loom_id, root = await looms.plant()
    looms.engine.fail_next = Failed("upstream_server_error", "No.")
    (failed,) = await looms.grow(loom_id, root)
    answer = await looms.ask(loom_id, failed["id"])
    assert error_of(answer) == (409, None, None)
    assert "failed" in answer.json()["error"]["message"]


async def test_the_root_is_deleted_with_its_loom_only(looms):
    loom_id, root = await looms.plant()
    assert error_of(await looms.delete(loom_id, root)) == (400, "invalid_request", None)
    assert list(await looms.nodes(loom_id)) == [root]


# -- quotas


async def test_the_1001st_node_is_refused_and_nothing_is_held_for_it(looms):
    loom_id, root = await looms.plant()
    for n in (*[64] * 15, 39):  # and the root: 1,000
        await looms.branch(loom_id, root, n=n, max_tokens=1)
    await looms.ended(loom_id)
    held = len(looms.events(Ledger.HoldPlaced))
    answer = await looms.ask(loom_id, root, max_tokens=1)
    assert error_of(answer) == (400, "invalid_request", None)
    assert "1000" in answer.json()["error"]["message"]
    assert len(looms.events(Ledger.HoldPlaced)) == held
    nodes = await looms.nodes(loom_id)
    assert len(nodes) == 1000
    await looms.delete(loom_id, list(nodes)[-1])
    assert len(await looms.branch(loom_id, root, max_tokens=1)) == 1


async def test_a_branch_that_would_go_beyond_the_quota_is_refused_whole(toy_checkpoint):
    async with looms_api(toy_checkpoint, loom_nodes=4) as looms:
        loom_id, root = await looms.plant()
        assert error_of(await looms.ask(loom_id, root, n=4)) == (400, "invalid_request", None)
        assert len(await looms.branch(loom_id, root, n=3)) == 3


async def test_the_101st_loom_is_refused_until_one_is_deleted(looms):
    made = [await looms.plant() for _ in range(100)]
    blobs = looms.blobs()
    answer = await looms.http.post("/v1/looms", json={"prompt": PROMPT, "title": "More"})
    assert error_of(answer) == (400, "invalid_request", None)
    assert "100" in answer.json()["error"]["message"]
    assert looms.blobs() == blobs
    await looms.delete(made[0][0])
    await looms.plant()


async def test_a_nodes_come_and_go_so_often_only(toy_checkpoint):
    async with looms_api(toy_checkpoint, loom_nodes=2) as looms:
        loom_id, root = await looms.plant()
        for _ in range(19):
            (node,) = await looms.grow(loom_id, root, max_tokens=1)
            await looms.delete(loom_id, node["id"])
        assert error_of(await looms.ask(loom_id, root)) == (400, "invalid_request", None)


# -- the context


async def test_a_path_at_the_contexts_end_is_refused_and_one_token_before_it_is_not(toy_checkpoint):
    async with looms_api(toy_checkpoint, max_model_len=16) as looms:
        loom_id, root = await looms.plant([5] * 10)
        (node,) = await looms.grow(loom_id, root, max_tokens=5)
        assert error_of(await looms.ask(loom_id, node["id"], max_tokens=2)) == (
            *(400, "context_length_exceeded"),
            "max_tokens",
        )
        (last,) = await looms.grow(loom_id, node["id"], max_tokens=None)
        assert len(last["token_ids"]) == 1
        for max_tokens in (1, None):
            answer = await looms.ask(loom_id, last["id"], max_tokens=max_tokens)
            assert error_of(answer) == (400, "context_length_exceeded", "prompt")
        inside = await looms.grow(loom_id, node["id"], at_token=1, max_tokens=5)
        assert len(inside[0]["token_ids"]) == 5


async def test_a_root_that_fills_the_context_is_refused(toy_checkpoint):
    async with looms_api(toy_checkpoint, max_model_len=16) as looms:
        answer = await looms.http.post("/v1/looms", json={"prompt": [5] * 16})
        assert error_of(answer) == (400, "context_length_exceeded", "prompt")
        await looms.plant([5] * 15)


# -- the body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"at_token": 0}, "at_token"),
        ({"at_token": 7}, "at_token"),  # the root has 6
        ({"at_token": "1"}, "at_token"),
        ({"at_token": 1.5}, "at_token"),
        ({"n": 65}, "n"),
        ({"n": 0}, "n"),
        ({"n": 2, "max_tokens": None}, "max_tokens"),
        ({"prompt": "More"}, "prompt"),
        ({"stream": False}, "stream"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"output_residual_stream": True}, "output_residual_stream"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"best_of": 2}, "best_of"),
        ({"temperature": 101}, "temperature"),
        ({"logprobs": 101}, "logprobs"),
        ({"min_tokens": 4}, "min_tokens"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"apply_steering_vectors": [{"activations": [[1.0, 2.0]], "layer_indices": [0]}]},
         "apply_steering_vectors[0].activations"),
        ({"apply_steering_vectors": []}, "apply_steering_vectors"),
    ],
    ids=repr,
)  # fmt: skip
async def test_a_branch_of_a_wrong_shape_is_refused(looms, fields, param):
    loom_id, root = await looms.plant()
    answer = await looms.ask(loom_id, root, **fields)
    assert error_of(answer) == (400, "invalid_request", param)
    assert looms.events(Ledger.HoldPlaced) == []
    assert looms.blobs() == 1


async def test_a_branch_whose_fields_its_nodes_would_repeat_without_end_is_refused(toy_checkpoint):
    async with looms_api(toy_checkpoint, branch_shown_bytes=10_000) as looms:
        loom_id, root = await looms.plant()
        stop = ["x" * 1000]  # the fields that a Node shows are then 1,030 bytes
        answer = await looms.ask(loom_id, root, n=10, stop=stop)
        assert error_of(answer) == (400, "invalid_request", "n")
        assert "10,000" in answer.json()["error"]["message"]
        assert looms.events(Ledger.HoldPlaced) == []
        assert looms.blobs() == 1
        assert len(await looms.branch(loom_id, root, n=9, stop=stop)) == 9
        assert len(await looms.branch(loom_id, root, stop=["x" * 20_000])) == 1  # what was sent, once
        await looms.ended(loom_id)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [999_999]}, "prompt"),
        ({"prompt": "a", "title": "x" * 201}, "title"),
        ({"prompt": "a", "title": 1}, "title"),
        ({"prompt": "a", "nothing": 1}, "nothing"),
        ([], None),
    ],
    ids=repr,
)
async def test_a_loom_of_a_wrong_shape_is_refused(looms, body, param):
    assert error_of(await looms.http.post("/v1/looms", json=body)) == (400, "invalid_request", param)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"since": "x"}, "since"),
        ({"since": "-1"}, "since"),
        ({"since": "2"}, "since"),  # it is at version 1
        ({"wait": "61"}, "wait"),
        ({"wait": "nan"}, "wait"),
        ({"format": "xml"}, "format"),
        ({"format": "text"}, "node"),
        ({"format": "text", "node": "root"}, "node"),
        ({"since": ["1", "1"]}, "since"),
    ],
    ids=repr,
)
async def test_a_read_that_asks_for_nonsense_is_refused(looms, query, param):
    loom_id, _ = await looms.plant()
    answer = await looms.http.get(f"/v1/looms/{loom_id}", params=query)
    assert error_of(answer) == (400, "invalid_request", param)


async def test_an_unknown_model_is_refused(looms):
    loom_id, root = await looms.plant()
    assert error_of(await looms.ask(loom_id, root, model="no")) == (400, "model_not_found", "model")
    answer = await looms.http.post("/v1/looms", json={"prompt": PROMPT, "model": "no"})
    assert error_of(answer) == (400, "model_not_found", "model")


async def test_a_model_with_another_tokenizer_is_refused_and_one_with_the_same_is_not(looms, toy_checkpoint, tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((toy_checkpoint / name).read_bytes())
    changed = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed, indent=1))
    models = looms.api.services.models
    models["twin"] = models["toy"]
    models["other"] = dataclasses.replace(models["toy"], tokenizer=ModelTokenizer(tmp_path))
    loom_id, root = await looms.plant(model="toy")
    assert error_of(await looms.ask(loom_id, root, model="other")) == (400, "invalid_request", "model")
    other, other_root = await looms.plant(model="other")
    assert error_of(await looms.ask(other, other_root)) == (400, "invalid_request", "model")


# -- what lets requests in


async def test_a_branch_is_never_clamped_to_the_budget(looms):
    caller = looms.api.services.keys.judge(f"Bearer {looms.api.secrets[Standing.ACCEPTED]}")
    looms.api.ledger.accounts.set_account_budget(caller.account_id, 20)
    loom_id, root = await looms.plant()
    assert error_of(await looms.ask(loom_id, root, max_tokens=15)) == (429, "budget_exceeded", None)
    assert len(await looms.branch(loom_id, root, max_tokens=14)) == 1


async def test_branches_count_towards_the_keys_rate_when_they_are_asked_for(toy_checkpoint):
    async with looms_api(toy_checkpoint, key_rate_per_minute=3) as looms:
        loom_id, root = await looms.plant()
        answers = await asyncio.gather(*(looms.ask(loom_id, root) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [202, 202, 202, 429, 429]


async def test_a_suspended_accounts_pending_branches_fail_and_cost_nothing(looms):
    looms.runner.lose_link()
    loom_id, root = await looms.plant()
    (node,) = await looms.branch(loom_id, root)
    caller = looms.api.services.keys.judge(f"Bearer {looms.api.secrets[Standing.ACCEPTED]}")
    assert parse("acct", caller.account_id)
    looms.api.ledger.accounts.suspend_account(caller.account_id)
    looms.new_runner()
    looms.api.ledger.job_desk.look_after()
    await until(lambda: len(looms.events(RESOLVED)) == 1)
    assert (await looms.nodes(loom_id))[node]["error"]["code"] == "account_suspended"
    assert isinstance(looms.events(RESOLVED)[0], Ledger.HoldReleased)
