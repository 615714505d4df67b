"""What a Loom remembers: its Nodes, each with its parent, and the Branches that they came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from acs.events.job import JobStatus

NODE_STATUS = {
    JobStatus.QUEUED: "pending",
    JobStatus.RUNNING: "running",
    JobStatus.SUCCEEDED: "done",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "failed",
}


@dataclass(slots=True)
class NodeRecord:
    parent_id: str | None  # None: the root
    parent_token: int | None  # it continues after so many tokens of its parent; None: after all
    branch_id: str | None  # None: the root, or one that was imported
    version: int  # of the Loom, when it changed last
    content_sha256: str | None = None  # the address of a blob, once it is done
    content_bytes: int = 0


@dataclass(slots=True)
class BranchRecord:
    """What is asked for at once, and how it runs: as a Job's record has it."""

    account_id: str
    key_id: str
    model: str
    hold_id: str
    request_id: str
    node_ids: list[str]
    request_sha256: str  # the address of a blob: what the runner is to run
    asked_sha256: str  # the address of a blob: the fields that were sent
    asked_bytes: int
    created_at: int  # Unix seconds
    status: JobStatus = JobStatus.QUEUED
    runs: int = 0  # how often it was started; the number of the last run
    failed_tries: int = 0
    runner: str | None = None  # who runs it, or ran it last
    error_sha256: str | None = None  # the address of a blob


@dataclass(slots=True)
class LoomRecord:
    """All that a Loom remembers."""

    account_id: str
    model: str  # whose tokenizer made the root's tokens
    tokenizer_sha256: str
    title_sha256: str | None  # the address of a blob
    created_at: int  # Unix seconds
    root_id: str
    nodes: dict[str, NodeRecord] = field(default_factory=dict)  # in the order in which they were made
    branches: dict[str, BranchRecord] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)  # deleted Nodes → the version that deleted them
    titled_at: int = 1  # the version that changed the title last
    replaced_titles: dict[str, float] = field(default_factory=dict)  # lately, addresses of blobs → when, Unix seconds
    deleted: bool = False

    @property
    def unfinished(self) -> list[str]:
        """Ids of Branches."""
        return [branch_id for branch_id, branch in self.branches.items() if not branch.status.ended]

    def status_of(self, node: NodeRecord) -> str:
        return "done" if node.branch_id is None else NODE_STATUS[self.branches[node.branch_id].status]

    def path_to(self, node_id: str) -> list[str]:
        """From the root to the Node, both included."""
        path = [node_id]
        while (parent_id := self.nodes[path[-1]].parent_id) is not None:
            path.append(parent_id)
        return path[::-1]

    def subtrees(self, node_ids: Iterable[str]) -> list[str]:
        """Those of the Nodes that are there, and all that continue them, in the order in which they were made."""
        found = {node_id for node_id in node_ids if node_id in self.nodes}
        for node_id, node in self.nodes.items():  # a parent is made before its children
            if node.parent_id in found:
                found.add(node_id)
        return [node_id for node_id in self.nodes if node_id in found]


@dataclass(frozen=True, slots=True)
class Content:
    """What one choice of a Branch became."""

    node_id: str
    sha256: str  # the address of a blob
    size: int  # bytes
    tokens: int
    finish_reason: str
    logprob: float | None
