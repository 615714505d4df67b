"""Where Looms are made, looked at, continued and deleted, beside the desks for requests and for Jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from acs.events.loom import Loom
from acs.events.loom_tree import LoomRecord
from acs.events.refused import Refused
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import Kept
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.erasing import Erase, erasing
from acs.platform.ledger.job_contract import Repeated, SubmitRefused
from acs.platform.ledger.job_runs import JobRuns
from acs.platform.ledger.loom_contract import (
    AskBranch,
    CreateLoom,
    DeleteLoom,
    DeleteNodes,
    EndLoomWait,
    ListLooms,
    LookAtLoom,
    LookAtPath,
    LoomCommand,
    LoomTold,
    Retitle,
)
from acs.platform.ledger.loom_reads import Answer, LoomReads
from acs.platform.ledger.looms import RootStays, addresses_of
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.refusals import refusal_of
from acs.platform.ledger.traffic import Traffic
from acs.platform.ledger.waits import Waits
from acs.platform.limits import Limits
from acs.storage.event_store import Event


class LoomDesk:
    def __init__(
        self,
        desk: Desk,
        runs: JobRuns,
        memory: Memory,
        traffic: Traffic,
        commits: Commits,
        waits: Waits,
        limits: Limits,
        now: Callable[[], datetime],
        erase: Erase,
    ) -> None:
        self._desk = desk
        self._runs = runs
        self._looms, self._books, self._repeats = memory.looms, memory.books, memory.repeats
        self._traffic = traffic
        self._commits = commits
        self._reads = LoomReads(memory, commits, waits, now)
        self._limits = limits
        self._now = now
        self._erase = erase
        for record in memory.looms.records():  # what was deleted just before the ledger's last end
            self._cancel_unwanted(record)

    def handle(self, owner: str, command: LoomCommand, answer: Answer) -> None:
        """`owner` sent it. A command that comes again is answered as before and applied once."""
        match command:
            case LookAtLoom():
                return self._reads.look(owner, command, answer)
            case EndLoomWait():
                return self._reads.wait_no_more(owner, command)
            case LookAtPath():
                return self._reads.look_at_path(command, answer)
            case ListLooms():
                return self._reads.tell_page(command, answer)
            case CreateLoom():
                self._create(command, answer)
            case Retitle():
                self._retitle(command, answer)
            case AskBranch():
                self._branch(command, answer)
            case DeleteNodes():
                self._delete_nodes(command, answer)
            case DeleteLoom():
                self._delete(command, answer)
        self._desk.call_next()

    def look_after(self) -> None:
        """To be called every second or so."""
        self._reads.look_after()

    # Commands

    def _create(self, command: CreateLoom, answer: Answer) -> None:
        if self._looms.find(command.account_id, command.loom_id) is None:
            try:
                if (kept := self._repeats.judge(command.key, None, self._now())) is not None:
                    return self._reads.tell(Repeated(command.ask, kept), answer)
                self._looms.judge_more(command.account_id, self._limits.account_looms)
            except Refused as refused:
                return answer(SubmitRefused(command.ask, refusal_of(None, refused)))
            self._commits.add(self._created(command))
        record = self._looms.find(command.account_id, command.loom_id)
        assert record is not None
        self._reads.tell(LoomTold(command.ask, self._reads.view(command.loom_id, record)), answer)

    def _created(self, command: CreateLoom) -> Sequence[Event]:
        root = command.root
        made = self._looms.create(
            command.loom_id,
            self._now(),
            account_id=command.account_id,
            key_id=command.key_id,
            model=command.model,
            tokenizer_sha256=command.tokenizer_sha256,
            title_sha256=command.title_sha256,
            root_id=root.node_id,
            content_sha256=root.sha256,
            content_bytes=root.size,
            tokens=root.tokens,
            created_at=command.created_at,
        )
        imported = self._looms.import_nodes(command.loom_id, command.imported, self._now()) if command.imported else ()
        return [*made, *imported, *self._repeats.answered(command.key, command.loom_id, self._now(), command.answer)]

    def _retitle(self, command: Retitle, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        given = command.title_sha256
        # Each giving has a blob of its own. One that was replaced and comes again would name what is erased.
        if record is not None and record.title_sha256 != given and given not in record.replaced_titles:
            former = record.title_sha256
            changed = self._looms.change(command.loom_id, lambda loom: loom.retitle(given, self._now()))
            self._commits.add(changed, erasing(self._erase, former))
        shown = None if record is None else self._reads.view(command.loom_id, record, only=())
        self._reads.tell(LoomTold(command.ask, shown), answer)

    def _branch(self, command: AskBranch, answer: Answer) -> None:
        order = command.order
        if self._looms.get(command.branch_id) is None:
            try:
                if (kept := self._judged(command)) is not None:
                    return self._reads.tell(Repeated(command.ask, kept), answer)
            except Refused as refused:
                return answer(SubmitRefused(command.ask, refusal_of(order, refused)))
            self._commits.add(self._asked(command))
            self._traffic.count(order.key_id)
            self._runs.queue(command.branch_id)
        record = self._looms.find(order.account_id, command.loom_id)
        shown = None if record is None else self._reads.view(command.loom_id, record, only=command.node_ids)
        self._reads.tell(LoomTold(command.ask, shown), answer)

    def _judged(self, command: AskBranch) -> Kept | None:
        """None: it may be grown. Otherwise the answer of an earlier request that was the same. Raises Refused."""
        order = command.order
        if (kept := self._desk.judge_later_work(order)) is not None:
            return kept
        more, allowed = len(command.node_ids), self._limits.loom_nodes
        self._looms.judge_branch(order.account_id, command.loom_id, command.parent_id, more, allowed)
        return None

    def _asked(self, command: AskBranch) -> Sequence[Event]:
        order, now = command.order, self._now()
        _, placed = self._books.place(order, command.branch_id, now)

        def ask(loom: Loom) -> None:
            loom.ask_branch(
                command.parent_id,
                now,
                branch_id=command.branch_id,
                key_id=order.key_id,
                model=order.model,
                hold_id=order.hold_id,
                request_id=order.request_id,
                parent_token=command.parent_token,
                node_ids=command.node_ids,
                path_tokens=order.prompt_tokens,
                path_logprob=command.path_logprob,
                request_sha256=command.request_sha256,
                asked_sha256=command.asked_sha256,
                asked_bytes=command.asked_bytes,
                created_at=command.created_at,
            )

        asked = self._looms.change(command.loom_id, ask)
        return [*placed, *asked, *self._repeats.answered(order.key, order.hold_id, now, command.answer)]

    def _delete_nodes(self, command: DeleteNodes, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        doomed = record.subtrees(command.node_ids) if record is not None else []
        if record is None or not doomed:
            return self._reads.tell(LoomTold(command.ask, None), answer)
        if record.root_id in doomed:
            stays = RootStays("The root cannot be deleted by itself: delete the Loom.")
            return answer(SubmitRefused(command.ask, refusal_of(None, stays)))
        before = addresses_of(record)
        since = self._looms.version(command.loom_id)
        deleted = self._looms.change(command.loom_id, lambda loom: loom.delete_nodes(doomed, self._now()))
        told = LoomTold(command.ask, self._reads.view(command.loom_id, record, since))
        self._commits.add(deleted, erasing(self._erase, *(before - addresses_of(record))))
        self._cancel_unwanted(record)
        self._reads.tell(told, answer)

    def _delete(self, command: DeleteLoom, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        if record is None:
            return self._reads.tell(LoomTold(command.ask, None), answer)
        told = LoomTold(command.ask, self._reads.view(command.loom_id, record, only=()))
        needed = {record.branches[branch_id].request_sha256 for branch_id in record.unfinished}  # each until it ends
        doomed = addresses_of(record) - needed
        deleted = self._looms.change(command.loom_id, lambda loom: loom.delete(self._now()))
        self._commits.add(deleted, erasing(self._erase, *doomed))
        self._cancel_unwanted(record)
        self._reads.tell(told, answer)

    # Inside

    def _cancel_unwanted(self, record: LoomRecord) -> None:
        """Branches whose Nodes are all gone: nobody will read what they would cost."""
        for branch_id in record.unfinished:
            if not any(node_id in record.nodes for node_id in record.branches[branch_id].node_ids):
                self._runs.cancel(branch_id, lambda cancelled: None)
