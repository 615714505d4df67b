"""A Loom: a tree of continuations. A Branch asks for n of them after the tokens of one path; each becomes a Node.

    a Branch, and with it its Nodes:  pending → running → done | failed
                                         ↑_________|       a try that failed and may be tried again, or a lost runner

A Branch runs like a Job, under one Hold that is placed in the commit that asks for it and resolved in the one that ends
it. A Node never changes once it is done. Deleting one takes its subtree out of sight: a fact, after which its texts are
erased. Texts and tokens are in blobs: the events carry their addresses. The version of a Loom is the number of its
events.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from eventsourcing.domain import Aggregate

from acs.events.job import JobStatus
from acs.events.loom_tree import BranchRecord, Content, LoomRecord, NodeRecord

TITLE_ASKED_AGAIN_S = 60.0  # a giving of a title that comes again comes sooner


class Loom(Aggregate):
    TOPIC = "acs.events.loom:Loom"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.loom:Loom.Created"
        account_id: str
        key_id: str
        model: str
        tokenizer_sha256: str
        title_sha256: str | None
        root_id: str
        content_sha256: str
        content_bytes: int
        tokens: int
        created_at: int

        def apply(self, loom: Loom) -> None:
            loom.record = LoomRecord(
                self.account_id, self.model, self.tokenizer_sha256, self.title_sha256, self.created_at, self.root_id
            )
            loom.record.nodes[self.root_id] = NodeRecord(None, None, None, 1, self.content_sha256, self.content_bytes)

    class Titled(Aggregate.Event):
        TOPIC = "acs.events.loom:Loom.Titled"
        title_sha256: str | None

        def apply(self, loom: Loom) -> None:
            record, now = loom.record, self.timestamp.timestamp()
            lately = {title: then for title, then in record.replaced_titles.items() if now - then < TITLE_ASKED_AGAIN_S}
            record.replaced_titles = lately | ({record.title_sha256: now} if record.title_sha256 else {})
            record.title_sha256, record.titled_at = self.title_sha256, self.originator_version

    class NodesImported(Aggregate.Event):
        """From another Loom, or from another tool, when it was created: done, and charged to nobody. The lists have an
        entry for each, parents before their children.
        """

        TOPIC = "acs.events.loom:Loom.NodesImported"
        node_ids: list[str]
        parent_ids: list[str]
        parent_tokens: list[int | None]
        depths: list[int]
        path_tokens: list[int]  # in front of each
        path_logprobs: list[float | None]  # of the generated tokens in front of it; None: not known of each
        models: list[str | None]
        content_sha256s: list[str]
        content_bytes: list[int]
        tokens: list[int]
        finish_reasons: list[str | None]
        logprobs: list[float | None]  # of its own tokens

        def apply(self, loom: Loom) -> None:
            for number, node_id in enumerate(self.node_ids):
                where = self.parent_ids[number], self.parent_tokens[number]
                content = self.content_sha256s[number], self.content_bytes[number]
                loom.record.nodes[node_id] = NodeRecord(*where, None, self.originator_version, *content)

    class BranchAsked(Aggregate.Event):
        TOPIC = "acs.events.loom:Loom.BranchAsked"
        branch_id: str
        key_id: str
        model: str
        hold_id: str
        request_id: str
        parent_id: str
        parent_token: int | None
        node_ids: list[str]
        depth: int  # of the Nodes; the root's is 0
        path_tokens: int  # in front of them
        path_logprob: float | None  # of the path's generated tokens; None: not known of each
        request_sha256: str
        asked_sha256: str
        asked_bytes: int
        created_at: int

        def apply(self, loom: Loom) -> None:
            record = loom.record
            record.branches[self.branch_id] = BranchRecord(
                record.account_id,
                self.key_id,
                self.model,
                self.hold_id,
                self.request_id,
                list(self.node_ids),
                self.request_sha256,
                self.asked_sha256,
                self.asked_bytes,
                self.created_at,
            )
            for node_id in self.node_ids:
                record.nodes[node_id] = NodeRecord(
                    self.parent_id, self.parent_token, self.branch_id, self.originator_version
                )

    class BranchStarted(Aggregate.Event):
        TOPIC = "acs.events.loom:Loom.BranchStarted"
        branch_id: str
        run: int  # 1, 2, …
        runner: str

        def apply(self, loom: Loom) -> None:
            branch = loom.changed(self, JobStatus.RUNNING)
            branch.runs, branch.runner = self.run, self.runner

    class BranchTryFailed(Aggregate.Event):
        """In a way that is worth another try: it waits for its turn again."""

        TOPIC = "acs.events.loom:Loom.BranchTryFailed"
        branch_id: str
        code: str  # an error's
        http_status: int

        def apply(self, loom: Loom) -> None:
            loom.changed(self, JobStatus.QUEUED).failed_tries += 1

    class BranchInterrupted(Aggregate.Event):
        """Its runner is gone: it waits for its turn again. No try of its own has failed."""

        TOPIC = "acs.events.loom:Loom.BranchInterrupted"
        branch_id: str

        def apply(self, loom: Loom) -> None:
            loom.changed(self, JobStatus.QUEUED)

    class BranchGrown(Aggregate.Event):
        """The lists have an entry for each of the Branch's Nodes that had not been deleted by then."""

        TOPIC = "acs.events.loom:Loom.BranchGrown"
        branch_id: str
        node_ids: list[str]
        content_sha256s: list[str]
        content_bytes: list[int]
        tokens: list[int]
        finish_reasons: list[str]
        logprobs: list[float | None]  # of all its tokens together; None: not asked for

        def apply(self, loom: Loom) -> None:
            loom.changed(self, JobStatus.SUCCEEDED)
            for node_id, sha256, size in zip(self.node_ids, self.content_sha256s, self.content_bytes, strict=True):
                node = loom.record.nodes[node_id]
                node.content_sha256, node.content_bytes = sha256, size

    class BranchFailed(Aggregate.Event):
        TOPIC = "acs.events.loom:Loom.BranchFailed"
        branch_id: str
        http_status: int
        code: str | None  # an error's
        error_sha256: str

        def apply(self, loom: Loom) -> None:
            loom.changed(self, JobStatus.FAILED).error_sha256 = self.error_sha256

    class BranchCancelled(Aggregate.Event):
        TOPIC = "acs.events.loom:Loom.BranchCancelled"
        branch_id: str
        reason: str  # asked: its Nodes were deleted; account_suspended

        def apply(self, loom: Loom) -> None:
            loom.changed(self, JobStatus.CANCELLED)

    class NodesDeleted(Aggregate.Event):
        TOPIC = "acs.events.loom:Loom.NodesDeleted"
        node_ids: list[str]  # with all that continued them

        def apply(self, loom: Loom) -> None:
            for node_id in self.node_ids:
                del loom.record.nodes[node_id]
                loom.record.gone[node_id] = self.originator_version

    class Deleted(Aggregate.Event):
        TOPIC = "acs.events.loom:Loom.Deleted"

        def apply(self, loom: Loom) -> None:
            loom.record.deleted = True
            loom.record.nodes.clear()

    def __init__(self) -> None:  # the record is made by the first event
        self.record: LoomRecord

    @classmethod
    def create(cls, id: UUID, now: datetime, **fields: object) -> Loom:
        """`fields`: those of Created."""
        return cls._create(cls.Created, id=id, timestamp=now, **fields)

    @classmethod
    def restored(cls, id: UUID, version: int, record: LoomRecord) -> Loom:
        """As its events up to `version` made it."""
        loom = cls.__new__(cls)
        loom.__base_init__(id, version, datetime.fromtimestamp(record.created_at, UTC))
        loom.record = record
        return loom

    # Commands. Whether each may be done is seen from `record` by the caller, the ledger's Looms.

    def retitle(self, title_sha256: str | None, now: datetime) -> None:
        self.trigger_event(self.Titled, title_sha256=title_sha256, timestamp=now)

    def import_nodes(self, now: datetime, **fields: object) -> None:
        """Of one that has its root alone. `fields`: those of NodesImported."""
        self.trigger_event(self.NodesImported, **fields, timestamp=now)

    def ask_branch(self, parent_id: str, now: datetime, **fields: object) -> None:
        """After a Node that is done. `fields`: the others of BranchAsked."""
        depth = len(self.record.path_to(parent_id))
        self.trigger_event(self.BranchAsked, parent_id=parent_id, depth=depth, **fields, timestamp=now)

    def start(self, branch_id: str, runner: str, now: datetime) -> None:
        """Of a queued one."""
        run = self.record.branches[branch_id].runs + 1
        self.trigger_event(self.BranchStarted, branch_id=branch_id, run=run, runner=runner, timestamp=now)

    def note_failed_try(self, branch_id: str, code: str, http_status: int, now: datetime) -> None:
        """Of a running one."""
        fault = {"code": code, "http_status": http_status}
        self.trigger_event(self.BranchTryFailed, branch_id=branch_id, **fault, timestamp=now)

    def interrupt(self, branch_id: str, now: datetime) -> None:
        """Of a running one."""
        self.trigger_event(self.BranchInterrupted, branch_id=branch_id, timestamp=now)

    def grow(self, branch_id: str, contents: Sequence[Content], now: datetime) -> list[Content]:
        """Of a running one. `contents`: of each of its Nodes. Returns those of Nodes that were deleted meanwhile."""
        kept = [content for content in contents if content.node_id in self.record.nodes]
        self.trigger_event(
            self.BranchGrown,
            branch_id=branch_id,
            node_ids=[content.node_id for content in kept],
            content_sha256s=[content.sha256 for content in kept],
            content_bytes=[content.size for content in kept],
            tokens=[content.tokens for content in kept],
            finish_reasons=[content.finish_reason for content in kept],
            logprobs=[content.logprob for content in kept],
            timestamp=now,
        )
        return [content for content in contents if content.node_id not in self.record.nodes]

    def fail(self, branch_id: str, http_status: int, code: str | None, error_sha256: str, now: datetime) -> None:
        """Of a running one."""
        fault = {"http_status": http_status, "code": code, "error_sha256": error_sha256}
        self.trigger_event(self.BranchFailed, branch_id=branch_id, **fault, timestamp=now)

    def cancel(self, branch_id: str, reason: str, now: datetime) -> None:
        """Of one that has not ended."""
        self.trigger_event(self.BranchCancelled, branch_id=branch_id, reason=reason, timestamp=now)

    def delete_nodes(self, node_ids: Sequence[str], now: datetime) -> None:
        """A whole subtree or several, as `record.subtrees` gives them; never the root."""
        self.trigger_event(self.NodesDeleted, node_ids=list(node_ids), timestamp=now)

    def delete(self, now: datetime) -> None:
        self.trigger_event(self.Deleted, timestamp=now)

    # Inside events

    def changed(self, event: Any, status: JobStatus) -> BranchRecord:
        """For the events only: the event's Branch, and that all its Nodes changed by it."""
        branch = self.record.branches[event.branch_id]
        branch.status = status
        for node_id in branch.node_ids:
            if (node := self.record.nodes.get(node_id)) is not None:
                node.version = event.originator_version
        return branch
