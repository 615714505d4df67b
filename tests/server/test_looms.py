"""Looms on the real engine: each Branch is, to the token, the Completion of its path."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from server.running import Server

from acs.events.ledger import Ledger
from acs.events.loom import Loom

pytestmark = pytest.mark.server

RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)
ENDS = (Loom.BranchGrown, Loom.BranchFailed, Loom.BranchCancelled)
SIXTEEN = {"temperature": 0, "ignore_eos": True, "max_tokens": 16}


class Real:
    def __init__(self, server: Server, model: str) -> None:
        self._http = httpx.Client(base_url=server.v1, headers=server.headers, timeout=120)
        self.model = model

    @property
    def hidden_size(self) -> int:
        models = self._http.get("/models").json()["data"]
        return next(int(m["capabilities"]["hidden_size"]) for m in models if m["id"] == self.model)

    def complete(self, prompt: str | list[int], **fields: Any) -> dict[str, Any]:
        body = {"model": self.model, "prompt": prompt, "return_token_ids": True, **fields}
        answer = self._http.post("/completions", json=body)
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    def plant(self, prompt: str | list[int]) -> tuple[str, dict[str, Any]]:
        loom = self._http.post("/looms", json={"model": self.model, "prompt": prompt}).json()
        return loom["id"], loom["nodes"][0]

    def grow(self, loom_id: str, node: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        path = f"/looms/{loom_id}/nodes/{node['id']}/branch"
        answer = self._http.post(path, json={"model": self.model, **fields})
        assert answer.status_code == 202, answer.text
        ids = [asked["id"] for asked in answer.json()["nodes"]]
        nodes = self.nodes(loom_id)
        while any(nodes[id]["status"] != "done" for id in ids):
            assert all(nodes[id]["status"] != "failed" for id in ids), nodes
            changed = self._http.get(f"/looms/{loom_id}", params={"since": self.version, "wait": 30}).json()
            self.version = changed["version"]
            nodes |= {changed_node["id"]: changed_node for changed_node in changed["nodes"]}
        return [nodes[id] for id in ids]

    def nodes(self, loom_id: str) -> dict[str, dict[str, Any]]:
        loom = self._http.get(f"/looms/{loom_id}").json()
        self.version = loom["version"]
        return {node["id"]: node for node in loom["nodes"]}

    def text(self, loom_id: str, node: dict[str, Any]) -> str:
        return self._http.get(f"/looms/{loom_id}", params={"format": "text", "node": node["id"]}).text


@pytest.fixture(scope="module", params=["toy", "smollm2-135m"])
def real(request: pytest.FixtureRequest, server: Server) -> Real:
    return Real(server, request.param)


@pytest.mark.engine
def test_a_path_of_greedy_branches_is_one_greedy_completion(real: Real) -> None:
    whole = real.complete("The capital of France is", **SIXTEEN)
    loom_id, node = real.plant("The capital of France is")
    grown: list[int] = []
    for tokens in (1, 7, 8):
        (node,) = real.grow(loom_id, node, temperature=0, ignore_eos=True, max_tokens=tokens)
        grown += node["token_ids"]
    assert grown == whole["token_ids"]
    assert real.text(loom_id, node) == "The capital of France is" + whole["text"]


@pytest.mark.engine
@pytest.mark.parametrize("at_token", [1, 8, 16])
def test_a_branch_inside_a_node_continues_its_first_tokens(real: Real, at_token: int) -> None:
    loom_id, root = real.plant("def fibonacci(n):\n    ")
    (node,) = real.grow(loom_id, root, **SIXTEEN)
    (inside,) = real.grow(loom_id, node, at_token=at_token, temperature=0, ignore_eos=True, max_tokens=5)
    prompt = root["token_ids"] + node["token_ids"][:at_token]
    alone = real.complete(prompt, temperature=0, ignore_eos=True, max_tokens=5)
    assert inside["parent_token"] == at_token
    assert inside["token_ids"] == alone["token_ids"]
    whole = real.complete(root["token_ids"], **{**SIXTEEN, "max_tokens": at_token + 5})
    assert node["token_ids"][:at_token] + inside["token_ids"] == whole["token_ids"]
    assert real.text(loom_id, inside) == "def fibonacci(n):\n    " + whole["text"]


@pytest.mark.engine
def test_a_token_border_inside_a_character_shows_the_character_in_the_child(real: Real) -> None:
    ids = real.complete("Snow: ☃", max_tokens=1)["prompt_token_ids"]
    loom_id, root = real.plant(ids)
    assert root["text"] == "Snow: ☃"
    last = str(ids[-1])  # the snowman's last bytes
    (child,) = real.grow(loom_id, root, at_token=len(ids) - 1, temperature=0, max_tokens=1, logit_bias={last: 100})
    assert child["token_ids"] == ids[-1:]
    assert child["text"] == "☃"
    assert real.text(loom_id, child) == "Snow: ☃"
    alone = real.complete(ids[:-1], temperature=0, max_tokens=1, logit_bias={last: 100})
    assert (child["token_ids"], child["text"]) == (alone["token_ids"], alone["text"])


@pytest.mark.engine
def test_each_sampled_node_is_the_completion_of_its_own_sampling_fields(real: Real) -> None:
    loom_id, root = real.plant("Once upon a time")
    nodes = real.grow(loom_id, root, n=3, seed=11, temperature=0.9, top_p=0.95, max_tokens=8, logprobs=2)
    for node in nodes:
        alone = real.complete(root["token_ids"], **node["sampling"])
        assert node["token_ids"] == alone["token_ids"]
        assert node["logprobs"]["tokens"] == alone["logprobs"]["tokens"]
        ours, theirs = node["logprobs"]["token_logprobs"], alone["logprobs"]["token_logprobs"]
        assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-3  # the others stood beside it in the batch
        likeliest = max(node["logprobs"]["top_token_ids"][0], key=node["logprobs"]["top_token_ids"][0].__getitem__)
        (child,) = real.grow(loom_id, root, temperature=0, max_tokens=1)
        assert child["token_ids"] == [int(likeliest)]


@pytest.mark.engine
def test_a_steered_branch_is_the_steered_completion(real: Real) -> None:
    rng = np.random.default_rng(3)
    vector = {"activations": [rng.normal(size=real.hidden_size).round(3).tolist()], "layer_indices": [1], "scale": 3.0}
    loom_id, root = real.plant("The sky is")
    (node,) = real.grow(loom_id, root, **SIXTEEN)
    (steered,) = real.grow(loom_id, node, at_token=3, apply_steering_vectors=[vector], **SIXTEEN)
    prompt = root["token_ids"] + node["token_ids"][:3]
    alone = real.complete(prompt, apply_steering_vectors=[vector], **SIXTEEN)
    assert steered["token_ids"] == alone["token_ids"]
    assert steered["sampling"]["apply_steering_vectors"] == [vector]
    assert steered["token_ids"][:13] != node["token_ids"][3:]
