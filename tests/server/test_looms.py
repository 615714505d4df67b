"""Looms: exact on the real engine, and whole through `kill -9` of everything that has a part in them."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from server.killing import INGRESS, LEDGER, RECOVERY_S, REPLICA, RUNNER, SERVER, Killed
from server.running import Server
from server.waiting import within

from acs.events.ledger import Ledger
from acs.events.loom import Loom

pytestmark = pytest.mark.server

RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)
ENDS = (Loom.BranchGrown, Loom.BranchFailed, Loom.BranchCancelled)
SIXTEEN = {"temperature": 0, "ignore_eos": True, "max_tokens": 16}


# -- exactness, one request at a time


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


# -- deaths


class World(Killed):
    """One Loom that many clients branch, and one that follows it by its versions."""

    def __init__(self, folder: Path, models_dir: Path) -> None:
        super().__init__(folder, models_dir, ACS_LIMIT_LOOM_NODES="100000", ACS_LIMIT_KEY_LOOM_WAITS="1000")
        planted = self.ask("POST", "/looms", json={"prompt": "The sky is"}).json()
        self.path = f"/looms/{planted['id']}"
        self.root: str = planted["nodes"][0]["id"]

    def loom(self) -> dict[str, Any]:
        answer = self.ask("GET", self.path)
        assert answer.status_code == 200, answer.text
        loom: dict[str, Any] = answer.json()
        return loom

    def finished(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = self.ask("GET", self.path)
            nodes = answer.json()["nodes"] if answer.status_code == 200 else [{"status": "pending"}]
            return all(node["status"] in ("done", "failed") for node in nodes)
        return False


class Work:
    """Runs until its context is left; what fails in a thread is raised there."""

    def __init__(self, world: World, clients: int) -> None:
        self.world = world
        self.asked: list[str] = []  # Nodes that a client was told of
        self.deleted: set[str] = set()
        self.seen: dict[str, dict[str, Any]] = {}
        self.version = 0
        self._over, self._settled = threading.Event(), threading.Event()
        self._faults: list[BaseException] = []
        self._branching = [threading.Thread(target=self._kept, args=(self._branch, n)) for n in range(clients)]
        self._following = threading.Thread(target=self._kept, args=(self._follow, 0))

    def __enter__(self) -> Work:
        for thread in (*self._branching, self._following):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._branching:
            thread.join()

    def settle(self) -> None:
        """Returns when all has ended, and the follower has seen it."""
        within(RECOVERY_S, self.world.finished)
        self._settled.set()
        self._following.join()
        assert not self._faults, self._faults

    def _kept(self, work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as fault:
            self._faults.append(fault)

    def _branch(self, client: int) -> None:
        rng = random.Random(client)
        number = 0
        while not self._over.is_set() and not self._faults:
            number += 1
            done = [id for id, node in list(self.seen.items()) if node["status"] == "done"]
            parent = self.world.root if rng.random() < 0.3 or not done else rng.choice(done)
            key = f"{self.world.server.process.pid}-{client}-{number}"
            body = {"model": "fake", "n": rng.randint(1, 4), "max_tokens": rng.randint(1, 10), "seed": number}
            self._sent(parent, body, key)
            if number % 9 == 0 and parent != self.world.root:
                with contextlib.suppress(httpx.TransportError):
                    self.world.ask("DELETE", f"{self.world.path}/nodes/{parent}")

    def _sent(self, parent: str, body: dict[str, Any], key: str) -> None:
        while not self._over.is_set():
            with contextlib.suppress(httpx.TransportError):
                path = f"{self.world.path}/nodes/{parent}/branch"
                answer = self.world.ask("POST", path, json=body, headers={"Idempotency-Key": key})
                if answer.status_code == 202:
                    self.asked += [node["id"] for node in answer.json()["nodes"]]
                if answer.status_code in (202, 400, 404):  # 400: the context's end; 404: somebody deleted it
                    return
                assert answer.status_code in (409, 429, 502, 503), answer.text
            time.sleep(0.1)

    def _follow(self, _: int) -> None:
        """Takes over what `since` gives: a change comes once, and what was done or deleted never comes again."""
        while not (self._settled.is_set() and self._whole()):
            with contextlib.suppress(httpx.TransportError):
                terms = {"since": self.version, "wait": 0 if self._settled.is_set() else 2}
                answer = self.world.ask("GET", self.world.path, params=terms)
                if answer.status_code != 200:
                    assert answer.status_code in (502, 503), answer.text
                    time.sleep(0.1)
                    continue
                self._take(answer.json())

    def _take(self, changed: dict[str, Any]) -> None:
        assert changed["version"] >= self.version
        deleted = changed.get("deleted", [])  # none at the first look
        if changed["version"] == self.version:
            assert changed["nodes"] == deleted == []
        for node in changed["nodes"]:
            assert node["id"] not in self.deleted
            before = self.seen.get(node["id"], {"status": "unknown"})
            assert before["status"] not in ("done", "failed"), (before, node)
            self.seen[node["id"]] = node
        for node_id in deleted:
            assert node_id not in self.deleted
            self.deleted.add(node_id)
            self.seen.pop(node_id, None)
        self.version = changed["version"]

    def _whole(self) -> bool:
        return self.version == self.world.loom()["version"]


@pytest.fixture
def world(tmp_path: Path, models_dir: Path) -> Iterator[World]:
    world = World(tmp_path, models_dir)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: world.server.stop())
        yield world


def story(world: World, clients: int, kills: list[str], pause_s: float) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    with Work(world, clients) as work:
        within(RECOVERY_S, lambda: len(work.seen) > 10)
        for what in kills:
            before = len(work.asked)
            time.sleep(rng.random() * pause_s)  # the moment is the point
            world.kill(what)
            within(RECOVERY_S, lambda: len(work.asked) > before + 20 or work._faults)  # noqa: B023
    work.settle()
    loom = world.loom()
    assert {node["id"]: node for node in loom["nodes"]} == work.seen, "a follower has the whole"
    judge(world.events(), loom, work)
    statuses = Counter(node["status"] for node in loom["nodes"])
    print(f"{len(work.asked)} Nodes asked for, {len(kills)} kills: {dict(statuses)}, {len(work.deleted)} deleted")


def judge(events: list[Any], loom: dict[str, Any], work: Work) -> None:
    """By the events: the tree is consistent, every paid Node is there, every Hold is resolved once."""
    nodes = {node["id"]: node for node in loom["nodes"]}
    assert set(work.asked) <= set(nodes) | work.deleted, "none that was answered with 202 is lost"
    assert all(node["parent_id"] in nodes for node in nodes.values() if node["parent_id"] is not None)
    asked = {event.branch_id: event for event in events if isinstance(event, Loom.BranchAsked)}
    ends = [event for event in events if isinstance(event, ENDS)]
    resolved = {event.hold_id: event for event in events if isinstance(event, RESOLVED)}
    assert len(ends) == len({event.branch_id for event in ends}) == len(asked), "each Branch ends once"
    assert sum(isinstance(event, RESOLVED) for event in events) == len(resolved) == len(asked), "each Hold once"
    for end in ends:
        hold = resolved[asked[end.branch_id].hold_id]
        grown = isinstance(end, Loom.BranchGrown)
        assert grown == (isinstance(hold, Ledger.HoldSettled) and hold.http_status == 200)
        if grown:
            there = [node_id for node_id in asked[end.branch_id].node_ids if node_id not in work.deleted]
            assert set(there) <= set(end.node_ids), "every Node that was paid for, unless it was deleted"
            assert all(nodes[node_id]["status"] == "done" for node_id in there)
            if len(end.node_ids) == len(asked[end.branch_id].node_ids):
                assert hold.completion_tokens == sum(end.tokens)


def test_a_loom_lives_through_the_death_of_every_part_of_the_server(world: World) -> None:
    story(world, 8, [LEDGER, REPLICA, RUNNER, SERVER, INGRESS], 0.5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_clients_branch_one_loom_through_forty_deaths(world: World) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    kills = rng.choices([RUNNER, LEDGER, REPLICA, INGRESS, SERVER], (4, 4, 4, 2, 1), k=40)
    story(world, 50, kills[: int(os.environ.get("ACS_TEST_KILLS", "40"))], 3)
