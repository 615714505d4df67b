"""The ledger's memory of Looms: a fold of the log. Those that were deleted stay until their Branches have ended.

A Loom is its record, some 350 bytes a Node; the aggregate is made of it when a command needs it. To `job_runs` Branches
are like Jobs, by the same methods.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from acs.events.ids import LOOM, parse, show
from acs.events.job import JobStatus
from acs.events.loom import Loom
from acs.events.loom_tree import BranchRecord, Content, LoomRecord
from acs.events.refused import Refused
from acs.platform.ledger.job_contract import Finish
from acs.platform.ledger.loom_contract import Imported
from acs.storage.event_store import Event

EVER = 10  # times the Nodes that a Loom may have: so many may be made in its life, so that it stays quick to read


class Looms:
    """Ids are those people see (`loom_…`, `node_…`, `branch_…`)."""

    def __init__(self) -> None:
        self._records: dict[str, LoomRecord] = {}
        self._versions: dict[str, int] = {}
        self._of_account: dict[str, list[str]] = {}  # ids, which sort by the time they were made
        self._of_branch: dict[str, str] = {}  # Branch → Loom
        self._unfinished: set[str] = set()  # Branches
        self.on_change: Callable[[str], None] = _nobody_watches  # is told the Loom, within the turn that changes it

    def apply(self, event: Any) -> None:
        """One event of a Loom, as the log has it."""
        loom_id = show(LOOM, event.originator_id)
        loom = event.mutate(self._loom(loom_id) if loom_id in self._records else None)
        self.keep(loom_id, loom.version, loom.record, getattr(event, "branch_id", None))

    def everything(self) -> Iterator[tuple[str, int, LoomRecord]]:
        """(id, version, record), for a checkpoint."""
        return ((loom_id, self._versions[loom_id], record) for loom_id, record in self._records.items())

    def restore(self, loom_id: str, version: int, record: LoomRecord) -> None:
        """From a checkpoint."""
        self.keep(loom_id, version, record)
        for branch_id in record.branches:
            self.keep(loom_id, version, record, branch_id)

    def keep(self, loom_id: str, version: int, record: LoomRecord, branch_id: str | None = None) -> None:
        """As its events up to `version` made it, the last of them perhaps about this Branch."""
        self._versions[loom_id] = version
        if loom_id not in self._records:
            self._records[loom_id] = record
            insort(self._of_account.setdefault(record.account_id, []), loom_id)
        if branch_id is not None:
            self._of_branch[branch_id] = loom_id
            if record.branches[branch_id].status.ended:
                self._unfinished.discard(branch_id)
            else:
                self._unfinished.add(branch_id)
        if record.deleted and not record.unfinished:
            self._forget(loom_id, record)

    # Looms

    def records(self) -> list[LoomRecord]:
        """Deleted ones too, as long as they are here."""
        return list(self._records.values())

    def find(self, account_id: str, loom_id: str) -> LoomRecord | None:
        """None: the account has no such Loom."""
        record = self._records.get(loom_id)
        return None if record is None or record.account_id != account_id or record.deleted else record

    def version(self, loom_id: str) -> int:
        return self._versions[loom_id]

    def newest_first(self, account_id: str, after: str | None) -> Iterator[tuple[str, LoomRecord]]:
        """Those of the account; `after`: only those made before this one, which need not be there any more."""
        ids = self._of_account.get(account_id, [])
        end = len(ids) if after is None else bisect_left(ids, after)
        found = ((ids[i], self._records[ids[i]]) for i in range(end - 1, -1, -1))
        return ((loom_id, record) for loom_id, record in found if not record.deleted)

    def judge_more(self, account_id: str, allowed: int) -> None:
        """Raises LoomQuotaReached when the account may have no more."""
        count = sum(1 for _ in self.newest_first(account_id, None))
        if count >= allowed:
            raise LoomQuotaReached(f"The account has {count} Looms; {allowed} are allowed. Delete one first.")

    def judge_branch(self, account_id: str, loom_id: str, parent_id: str, more: int, allowed: int) -> None:
        """Raises NoSuchNode, NodeNotDone, and LoomQuotaReached when the Loom may not have `more` Nodes."""
        record = self.find(account_id, loom_id)
        if record is None or parent_id not in record.nodes:
            raise NoSuchNode(f"The Loom has no Node {parent_id!r}, or has it no more.")
        status = record.status_of(record.nodes[parent_id])
        if status != "done":
            raise NodeNotDone(f"The Node is {status}; only one that is done can be continued.")
        count = len(record.nodes)
        if count + more > allowed:
            raise LoomQuotaReached(f"The Loom has {count} Nodes, with {more} more {count + more}; at most {allowed}.")
        if (ever := count + len(record.gone)) + more > EVER * allowed:
            raise LoomQuotaReached(f"The Loom has had {ever} Nodes, deleted ones included; at most {EVER * allowed}.")

    def addresses(self) -> set[str]:
        """Of all blobs that somebody still needs."""
        found: set[str | None] = set()
        for record in self._records.values():
            found |= addresses_of(record)
        return {address for address in found if address}

    # What Branches are to `job_runs`

    def unfinished(self) -> list[str]:
        """In the order in which they were asked for."""
        return sorted(self._unfinished)

    def running(self) -> list[tuple[str, BranchRecord]]:
        branches = [(branch_id, self[branch_id]) for branch_id in self.unfinished()]
        return [(branch_id, branch) for branch_id, branch in branches if branch.status is JobStatus.RUNNING]

    def __getitem__(self, branch_id: str) -> BranchRecord:
        return self._records[self._of_branch[branch_id]].branches[branch_id]

    def get(self, branch_id: str) -> BranchRecord | None:
        """None: its Loom has been deleted, and it has ended."""
        return self[branch_id] if branch_id in self._of_branch else None

    def start(self, branch_id: str, runner: str, now: datetime) -> Sequence[Event]:
        return self._changed(branch_id, lambda loom: loom.start(branch_id, runner, now))

    def note_failed_try(self, branch_id: str, code: str, http_status: int, now: datetime) -> Sequence[Event]:
        return self._changed(branch_id, lambda loom: loom.note_failed_try(branch_id, code, http_status, now))

    def interrupt(self, branch_id: str, now: datetime) -> Sequence[Event]:
        return self._changed(branch_id, lambda loom: loom.interrupt(branch_id, now))

    def end(self, told: Finish, now: datetime) -> Sequence[Event]:
        """By the status that a Completion would have had."""
        branch_id = told.job_id
        if told.http_status == 200:
            contents = [Content(*_fields(grown)) for grown in told.grown]
            return self._changed(branch_id, lambda loom: loom.grow(branch_id, contents, now))
        assert told.http_status is not None
        fault = told.http_status, told.code, told.result_sha256
        return self._changed(branch_id, lambda loom: loom.fail(branch_id, *fault, now))

    def unwanted(self, told: Finish) -> list[str]:
        """Of the blobs that came with the end of a run, those that no Node has, perhaps because it was deleted."""
        loom_id = self._of_branch.get(told.job_id)
        if loom_id is None:
            return told.addresses
        nodes = [node for id in self[told.job_id].node_ids if (node := self._records[loom_id].nodes.get(id))]
        wanted = {node.content_sha256 for node in nodes} | {self[told.job_id].error_sha256 if nodes else None}
        return [sha256 for sha256 in told.addresses if sha256 not in wanted]

    def cancel(self, branch_id: str, reason: str, now: datetime) -> Sequence[Event]:
        return self._changed(branch_id, lambda loom: loom.cancel(branch_id, reason, now))

    # Commands: each returns the events it appended

    def create(self, loom_id: str, now: datetime, **fields: object) -> Sequence[Event]:
        """`fields`: those of Loom.Created."""
        return self._appended(Loom.create(_uuid(loom_id), now, **fields))

    def import_nodes(self, loom_id: str, nodes: Sequence[Imported], now: datetime) -> Sequence[Event]:
        columns = {
            "node_ids": [node.content.node_id for node in nodes],
            "parent_ids": [node.parent_id for node in nodes],
            "parent_tokens": [node.parent_token for node in nodes],
            "depths": [node.depth for node in nodes],
            "path_tokens": [node.path_tokens for node in nodes],
            "path_logprobs": [node.path_logprob for node in nodes],
            "models": [node.model for node in nodes],
            "content_sha256s": [node.content.sha256 for node in nodes],
            "content_bytes": [node.content.size for node in nodes],
            "tokens": [node.content.tokens for node in nodes],
            "finish_reasons": [node.finish_reason for node in nodes],
            "logprobs": [node.logprob for node in nodes],
        }
        return self.change(loom_id, lambda loom: loom.import_nodes(now, **columns))

    def change(self, loom_id: str, change: Callable[[Loom], object]) -> Sequence[Event]:
        loom = self._loom(loom_id)
        change(loom)
        return self._appended(loom)

    # Inside

    def _changed(self, branch_id: str, change: Callable[[Loom], object]) -> Sequence[Event]:
        return self.change(self._of_branch[branch_id], change)

    def _appended(self, loom: Loom) -> Sequence[Event]:
        events: Sequence[Any] = loom.collect_events()
        loom_id = show(LOOM, loom.id)
        for event in events:
            self.keep(loom_id, loom.version, loom.record, getattr(event, "branch_id", None))
        self.on_change(loom_id)
        return events

    def _loom(self, loom_id: str) -> Loom:
        return Loom.restored(_uuid(loom_id), self._versions[loom_id], self._records[loom_id])

    def _forget(self, loom_id: str, record: LoomRecord) -> None:
        del self._records[loom_id], self._versions[loom_id]
        for branch_id in record.branches:
            del self._of_branch[branch_id]
        ids = self._of_account[record.account_id]
        del ids[bisect_left(ids, loom_id)]


def addresses_of(record: LoomRecord) -> set[str | None]:
    """Of all blobs that a Loom needs."""
    shown = [record.branches[id] for id in {node.branch_id for node in record.nodes.values()} if id is not None]
    return {
        record.title_sha256,
        *(node.content_sha256 for node in record.nodes.values()),
        *(branch.asked_sha256 for branch in shown),
        *(branch.error_sha256 for branch in shown),
        *(record.branches[branch_id].request_sha256 for branch_id in record.unfinished),
    }


def _fields(grown: Any) -> Iterable[Any]:
    return (getattr(grown, name) for name in Content.__dataclass_fields__)


def _uuid(loom_id: str) -> UUID:
    id = parse(LOOM, loom_id)
    assert id is not None, "the ingress made it"
    return id


def _nobody_watches(loom_id: str) -> None:
    """Until there is a desk."""


class NoSuchNode(Refused):
    pass


class RootStays(Refused):
    pass


class NodeNotDone(Refused):
    pass


class LoomQuotaReached(Refused):
    pass
