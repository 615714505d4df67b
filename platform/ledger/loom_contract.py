"""What is said to the ledger about Looms, in the same frames as about Holds and Jobs.

Each question has a number of the asker's, and is asked again with it until it is answered. Ids are those people see;
those of what is made come from the ingress, so that a question asked again is applied once.
"""

from __future__ import annotations

import msgspec

from acs.platform.ledger.contract import IdempotencyKey, Kept, Open
from acs.platform.ledger.job_contract import Repeated, SubmitRefused


class Written(msgspec.Struct, array_like=True, frozen=True):
    """A blob of a Node's content, and how many tokens are in it."""

    node_id: str
    sha256: str
    size: int  # bytes
    tokens: int


class Imported(msgspec.Struct, array_like=True, frozen=True):
    """A Node from elsewhere."""

    content: Written
    parent_id: str
    parent_token: int | None
    depth: int
    path_tokens: int  # in front of it
    path_logprob: float | None
    model: str | None
    finish_reason: str | None
    logprob: float | None


class CreateLoom(msgspec.Struct, array_like=True, tag="create_loom", frozen=True):
    """Answered by LoomTold, SubmitRefused or, when it is a repetition, by Repeated."""

    ask: int
    loom_id: str
    account_id: str
    key_id: str
    model: str
    tokenizer_sha256: str
    title_sha256: str | None  # the blob that holds it
    root: Written
    created_at: int  # Unix seconds
    key: IdempotencyKey | None = None
    answer: Kept | None = None  # what a repetition is given
    imported: list[Imported] = []  # parents before their children


class LookAtLoom(msgspec.Struct, array_like=True, tag="look_at_loom", frozen=True):
    """Answered by LoomTold: what changed since a version, when something has or the waiting time is over."""

    ask: int
    account_id: str
    key_id: str
    loom_id: str
    since: int = 0  # 0: all
    wait_s: float = 0


class LookAtPath(msgspec.Struct, array_like=True, tag="look_at_path", frozen=True):
    """Answered by LoomTold, whose Nodes are those from the root to this one; by Repeated when nothing can continue it
    any more and the same request was answered before.
    """

    ask: int
    account_id: str
    loom_id: str
    node_id: str
    key: IdempotencyKey | None = None


class ListLooms(msgspec.Struct, array_like=True, tag="list_looms", frozen=True):
    """Answered by LoomsTold, newest first."""

    ask: int
    account_id: str
    limit: int
    after: str | None  # a Loom's id: those made before it


class Retitle(msgspec.Struct, array_like=True, tag="retitle_loom", frozen=True):
    """Answered by LoomTold."""

    ask: int
    account_id: str
    loom_id: str
    title_sha256: str | None


class AskBranch(msgspec.Struct, array_like=True, tag="branch", frozen=True):
    """May these Nodes be grown? Judged like a request that is opened, and its Hold placed. Answered by LoomTold with
    them, by SubmitRefused or by Repeated.
    """

    ask: int
    loom_id: str
    branch_id: str
    parent_id: str
    parent_token: int | None
    node_ids: list[str]
    path_logprob: float | None
    order: Open  # its kind is branch, and it is not clamped
    request_sha256: str  # the blob that holds what is to be run
    asked_sha256: str  # the blob that holds what was asked
    asked_bytes: int
    created_at: int  # Unix seconds
    answer: Kept | None = None


class DeleteNodes(msgspec.Struct, array_like=True, tag="delete_nodes", frozen=True):
    """With all that continues them. Answered by LoomTold with what was deleted; None when none of them was there."""

    ask: int
    account_id: str
    loom_id: str
    node_ids: list[str]


class DeleteLoom(msgspec.Struct, array_like=True, tag="delete_loom", frozen=True):
    """Answered by LoomTold: the Loom as it was."""

    ask: int
    account_id: str
    loom_id: str


class EndLoomWait(msgspec.Struct, array_like=True, tag="end_loom_wait", frozen=True):
    """Nobody waits any more for what this question of the asker's asks. Not answered."""

    ask: int


LoomQuestion = CreateLoom | LookAtLoom | LookAtPath | ListLooms | Retitle | AskBranch | DeleteNodes | DeleteLoom
LoomCommand = LoomQuestion | EndLoomWait


class NodeView(msgspec.Struct, array_like=True, frozen=True):
    id: str
    parent_id: str | None
    parent_token: int | None
    status: str  # pending, running, done, failed
    branch_id: str | None  # None: the root, or imported
    number: int  # of the choice in its Branch
    content_sha256: str | None
    content_bytes: int


class BranchView(msgspec.Struct, array_like=True, frozen=True):
    id: str
    model: str
    created_at: int
    asked_sha256: str
    asked_bytes: int
    error_sha256: str | None


class LoomView(msgspec.Struct, array_like=True, frozen=True):
    """A Loom as its account may see it, or what changed of it."""

    id: str
    title_sha256: str | None
    model: str
    tokenizer_sha256: str
    version: int
    created_at: int
    nodes: list[NodeView]  # in the order in which they were made
    branches: list[BranchView]  # that these came from
    deleted: list[str]  # Nodes


class LoomTold(msgspec.Struct, array_like=True, tag="loom", frozen=True):
    ask: int
    loom: LoomView | None  # None: the account has no such Loom, or the Loom no such Node
    declined: bool = False  # too many wait already: it was answered at once


class LoomsTold(msgspec.Struct, array_like=True, tag="looms", frozen=True):
    ask: int
    looms: list[LoomView]  # without their Nodes
    has_more: bool


LoomReply = LoomTold | LoomsTold | SubmitRefused | Repeated
