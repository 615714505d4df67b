"""The Loom: what its events make of it, in any order that its commands allow."""

from datetime import UTC, datetime

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acs.events.ids import uuid7
from acs.events.job import JobStatus
from acs.events.loom import Loom
from acs.events.loom_tree import Content

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def loom_of():
    return Loom.create(
        uuid7(),
        NOW,
        account_id="acct_a",
        key_id="key_a",
        model="toy",
        tokenizer_sha256="t" * 64,
        title_sha256=None,
        root_id="root",
        content_sha256="root-text",
        content_bytes=10,
        tokens=3,
        created_at=int(NOW.timestamp()),
    )


def ask(loom, branch_id, parent_id, node_ids, parent_token=None):
    loom.ask_branch(
        parent_id,
        NOW,
        branch_id=branch_id,
        key_id="key_a",
        model="toy",
        hold_id=f"hold-{branch_id}",
        request_id="req",
        parent_token=parent_token,
        node_ids=node_ids,
        path_tokens=3,
        path_logprob=None,
        request_sha256=f"request-{branch_id}",
        asked_sha256=f"asked-{branch_id}",
        asked_bytes=2,
        created_at=int(NOW.timestamp()),
    )


def content(node_id):
    return Content(node_id, f"text-{node_id}", 20, 4, "length", -1.5)


def grown(loom, branch_id, parent_id, node_ids, **fields):
    ask(loom, branch_id, parent_id, node_ids, **fields)
    loom.start(branch_id, "runner_1", NOW)
    loom.grow(branch_id, [content(node_id) for node_id in node_ids], NOW)


def test_a_branchs_nodes_are_pending_then_running_then_done():
    loom = loom_of()
    ask(loom, "b", "root", ["n1", "n2"])
    node = loom.record.nodes["n1"]
    assert loom.record.status_of(node) == "pending"
    loom.start("b", "runner_1", NOW)
    assert loom.record.status_of(node) == "running"
    loom.grow("b", [content("n1"), content("n2")], NOW)
    assert loom.record.status_of(node) == "done"
    assert (node.content_sha256, node.content_bytes) == ("text-n1", 20)
    assert loom.record.unfinished == []


def test_a_failed_branchs_nodes_have_failed_and_a_failed_try_waits_again():
    loom = loom_of()
    ask(loom, "b", "root", ["n"])
    loom.start("b", "runner_1", NOW)
    loom.note_failed_try("b", "vllm_oom", 502, NOW)
    assert loom.record.branches["b"].status is JobStatus.QUEUED
    loom.start("b", "runner_1", NOW)
    loom.fail("b", 502, "vllm_oom", "error-b", NOW)
    assert loom.record.status_of(loom.record.nodes["n"]) == "failed"
    assert (loom.record.branches["b"].runs, loom.record.branches["b"].failed_tries) == (2, 1)


def test_a_path_leads_from_the_root_and_its_length_is_in_the_event():
    loom = loom_of()
    grown(loom, "b1", "root", ["n1"])
    grown(loom, "b2", "n1", ["n2"], parent_token=2)
    assert loom.record.path_to("n2") == ["root", "n1", "n2"]
    assert [e.depth for e in loom.collect_events() if isinstance(e, Loom.BranchAsked)] == [1, 2]


def test_what_a_branch_grew_in_a_deleted_node_is_given_back():
    loom = loom_of()
    ask(loom, "b", "root", ["n1", "n2"])
    loom.start("b", "runner_1", NOW)
    loom.delete_nodes(loom.record.subtrees(["n1"]), NOW)
    assert loom.grow("b", [content("n1"), content("n2")], NOW) == [content("n1")]
    assert loom.collect_events()[-1].node_ids == ["n2"]


def test_a_deleted_loom_has_no_nodes_and_its_branches_still_end():
    loom = loom_of()
    ask(loom, "b", "root", ["n"])
    loom.start("b", "runner_1", NOW)
    loom.delete(NOW)
    assert loom.record.nodes == {}
    loom.cancel("b", "asked", NOW)
    assert loom.record.unfinished == []


class Life(RuleBasedStateMachine):
    """Beside a plain tree, and beside a copy that is made of the events alone."""

    def __init__(self):
        super().__init__()
        self.loom = loom_of()
        self.parents = {"root": None}
        self.status = {"root": "done"}
        self.branches = {}
        self.seen = {}  # as a follower has it, by `since`
        self.followed = 0

    def any_node(self, data, *statuses):
        return data.draw(st.sampled_from([id for id, status in self.status.items() if status in statuses]))

    def any_branch(self, data, status):
        found = [id for id, branch in self.loom.record.branches.items() if branch.status is status]
        return data.draw(st.sampled_from(found)) if found else None

    def set(self, branch_id, status):
        for node_id in self.branches[branch_id]:
            if node_id in self.status:
                self.status[node_id] = status

    @rule(data=st.data(), n=st.integers(1, 4))
    def ask(self, data, n):
        parent = self.any_node(data, "done")
        branch_id = f"b{len(self.branches)}"
        ids = [f"{branch_id}n{number}" for number in range(n)]
        ask(self.loom, branch_id, parent, ids)
        self.branches[branch_id] = ids
        self.parents |= dict.fromkeys(ids, parent)
        self.status |= dict.fromkeys(ids, "pending")

    @rule(data=st.data())
    def start(self, data):
        if branch_id := self.any_branch(data, JobStatus.QUEUED):
            self.loom.start(branch_id, "runner_1", NOW)
            self.set(branch_id, "running")

    @rule(data=st.data(), how=st.sampled_from(["grow", "fail", "cancel", "interrupt", "try"]))
    def end(self, data, how):
        branch_id = self.any_branch(data, JobStatus.RUNNING)
        if branch_id is None:
            return
        match how:
            case "grow":
                self.loom.grow(branch_id, [content(node_id) for node_id in self.branches[branch_id]], NOW)
                self.set(branch_id, "done")
            case "fail":
                self.loom.fail(branch_id, 500, None, "error", NOW)
                self.set(branch_id, "failed")
            case "cancel":
                self.loom.cancel(branch_id, "asked", NOW)
                self.set(branch_id, "failed")
            case "interrupt":
                self.loom.interrupt(branch_id, NOW)
                self.set(branch_id, "pending")
            case "try":
                self.loom.note_failed_try(branch_id, "vllm_oom", 502, NOW)
                self.set(branch_id, "pending")

    @precondition(lambda self: len(self.status) > 1)
    @rule(data=st.data())
    def delete(self, data):
        node_id = data.draw(st.sampled_from([id for id in self.status if id != "root"]))
        doomed = {node_id}
        while more := {id for id in self.status if self.parents[id] in doomed} - doomed:
            doomed |= more
        assert set(self.loom.record.subtrees([node_id])) == doomed
        self.loom.delete_nodes(self.loom.record.subtrees([node_id]), NOW)
        for id in doomed:
            del self.status[id]

    @rule()
    def follow(self):
        """What `since` gives, taken over, is the whole."""
        record = self.loom.record
        for id, at in record.gone.items():
            if at > self.followed:
                self.seen.pop(id, None)
        for id, node in record.nodes.items():
            if node.version > self.followed:
                assert self.seen.get(id) != record.status_of(node) or id == "root" or self.branch_ran_between(id)
                self.seen[id] = record.status_of(node)
        self.followed = self.loom.version
        assert self.seen == self.status

    def branch_ran_between(self, node_id):
        """It may be pending, run, and be pending again between two looks."""
        branch = self.loom.record.branches[self.loom.record.nodes[node_id].branch_id]
        return branch.runs > 0

    @invariant()
    def the_tree_is_as_it_was_made(self):
        record = self.loom.record
        assert {id: record.status_of(node) for id, node in record.nodes.items()} == self.status
        assert all(node.parent_id == self.parents[id] for id, node in record.nodes.items())
        assert all(node.parent_id is None or node.parent_id in record.nodes for node in record.nodes.values())
        done = {id for id, node in record.nodes.items() if node.content_sha256}
        assert done == {id for id, status in self.status.items() if status == "done"}

    def teardown(self):
        copy = None
        for event in self.loom.pending_events:
            copy = event.mutate(copy)
        assert copy.record == self.loom.record
        assert copy.version == self.loom.version


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_loom_of_a_thousand_nodes_is_read_back_as_it_was():
    loom = loom_of()
    last = "root"
    for number in range(125):
        ids = [f"{number}-{choice}" for choice in range(8)]
        grown(loom, f"b{number}", last, ids)
        last = ids[number % 8]
    copy = None
    for event in loom.collect_events():
        copy = event.mutate(copy)
    assert copy.record == loom.record
    assert len(copy.record.nodes) == 1001
    assert len(copy.record.path_to(last)) == 126
