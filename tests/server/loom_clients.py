"""Clients of a server whose parts are killed, which grow one Loom; and what it and the events must say then."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Any

import httpx
from server.killing import RECOVERY_S, RESOLVED, Killed
from server.waiting import within

from acs.events.ledger import Ledger
from acs.events.loom import Loom

ENDS = (Loom.BranchGrown, Loom.BranchFailed, Loom.BranchCancelled)


class Branching:
    """Clients that branch one Loom and delete some of its Nodes until their context is left, and one that follows it by
    its versions.
    """

    def __init__(self, world: Killed, clients: int) -> None:
        self._world = world
        planted = world.ask("POST", "/looms", json={"prompt": "The sky is"}).json()
        self._path = f"/looms/{planted['id']}"
        self._root: str = planted["nodes"][0]["id"]
        self.asked: list[str] = []  # Nodes that a client was told of
        self.deleted: set[str] = set()
        self.seen: dict[str, dict[str, Any]] = {}
        self.version = 0
        self._over, self._settled = threading.Event(), threading.Event()
        self.faults: list[BaseException] = []
        self._branching = [threading.Thread(target=self._kept, args=(self._branch, n)) for n in range(clients)]
        self._following = threading.Thread(target=self._kept, args=(self._follow, 0))

    def __enter__(self) -> Branching:
        for thread in (*self._branching, self._following):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._branching:
            thread.join()

    def settle(self) -> None:
        """Returns when all has ended, and the follower has seen it."""
        within(RECOVERY_S, self._finished)
        self._settled.set()
        self._following.join()
        assert not self.faults, self.faults
        self._nodes = {node["id"]: node for node in self.loom()["nodes"]}
        assert self._nodes == self.seen, "a follower has the whole"

    def loom(self) -> dict[str, Any]:
        answer = self._world.ask("GET", self._path)
        assert answer.status_code == 200, answer.text
        loom: dict[str, Any] = answer.json()
        return loom

    def _finished(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = self._world.ask("GET", self._path)
            nodes = answer.json()["nodes"] if answer.status_code == 200 else [{"status": "pending"}]
            return all(node["status"] in ("done", "failed") for node in nodes)
        return False

    def _kept(self, work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as fault:
            self.faults.append(fault)

    def _branch(self, client: int) -> None:
        rng = random.Random(client)
        number = 0
        while not self._over.is_set() and not self.faults:
            number += 1
            done = [id for id, node in list(self.seen.items()) if node["status"] == "done"]
            parent = self._root if rng.random() < 0.3 or not done else rng.choice(done)
            key = f"{self._world.server.process.pid}-{client}-{number}"
            body = {"model": "fake", "n": rng.randint(1, 4), "max_tokens": rng.randint(1, 10), "seed": number}
            self._sent(parent, body, key)
            if number % 9 == 0 and parent != self._root:
                with contextlib.suppress(httpx.TransportError):
                    self._world.ask("DELETE", f"{self._path}/nodes/{parent}")

    def _sent(self, parent: str, body: dict[str, Any], key: str) -> None:
        while not self._over.is_set():
            with contextlib.suppress(httpx.TransportError):
                path = f"{self._path}/nodes/{parent}/branch"
                answer = self._world.ask("POST", path, json=body, headers={"Idempotency-Key": key})
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
                answer = self._world.ask("GET", self._path, params=terms)
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
        return self.version == self.loom()["version"]

    def judge(self, events: list[Any]) -> set[str]:
        """By the events, after `settle`: the tree is consistent, every paid Node is there, every Hold of a Branch is
        resolved once. Their Holds.
        """
        nodes = self._nodes
        assert set(self.asked) <= set(nodes) | self.deleted, "none that was answered with 202 is lost"
        assert all(node["parent_id"] in nodes for node in nodes.values() if node["parent_id"] is not None)
        asked = {event.branch_id: event for event in events if isinstance(event, Loom.BranchAsked)}
        holds = {event.hold_id for event in asked.values()}
        ends = [event for event in events if isinstance(event, ENDS)]
        found = [event for event in events if isinstance(event, RESOLVED) and event.hold_id in holds]
        resolved = {event.hold_id: event for event in found}
        assert len(ends) == len({event.branch_id for event in ends}) == len(asked), "each Branch ends once"
        assert len(found) == len(resolved) == len(asked), "each Hold once"
        for end in ends:
            self._judge_end(end, asked[end.branch_id], resolved[asked[end.branch_id].hold_id])
        statuses = Counter(node["status"] for node in nodes.values())
        print(f"{len(self.asked)} Nodes asked for: {dict(statuses)}, {len(self.deleted)} deleted")
        return holds

    def _judge_end(self, end: Any, asked: Loom.BranchAsked, hold: Any) -> None:
        grown = isinstance(end, Loom.BranchGrown)
        assert grown == (isinstance(hold, Ledger.HoldSettled) and hold.http_status == 200)
        if grown:
            there = [node_id for node_id in asked.node_ids if node_id not in self.deleted]
            assert set(there) <= set(end.node_ids), "every Node that was paid for, unless it was deleted"
            assert all(self._nodes[node_id]["status"] == "done" for node_id in there)
            if len(end.node_ids) == len(asked.node_ids):
                assert hold.completion_tokens == sum(end.tokens)
