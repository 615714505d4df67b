"""Where Looms are made, looked at, continued and deleted, beside the desks for requests and for Jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from acs.events.loom import Loom
from acs.events.loom_tree import LoomRecord
from acs.events.refused import Refused
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import IdempotencyKey, Kept, Open, Refusal
from acs.platform.ledger.desk import Desk, refusal_of
from acs.platform.ledger.job_contract import Repeated, SubmitRefused
from acs.platform.ledger.job_runs import Erase, JobRuns
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
    LoomReply,
    LoomsTold,
    LoomTold,
    LoomView,
    Retitle,
)
from acs.platform.ledger.loom_views import view
from acs.platform.ledger.looms import RootStays, addresses_of
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.traffic import Traffic
from acs.platform.ledger.waits import Waits
from acs.platform.limits import Limits
from acs.storage.event_store import Event

Answer = Callable[[LoomReply], None]


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
        self._waits = waits
        self._limits = limits
        self._now = now
        self._erase = erase
        self._looms.on_change = waits.changed
        for record in memory.looms.records():  # what was deleted just before the ledger's last end
            self._cancel_unwanted(record)

    def handle(self, owner: str, command: LoomCommand, answer: Answer) -> None:
        """`owner` sent it. A command that comes again is answered as before and applied once."""
        match command:
            case LookAtLoom():
                return self._look(owner, command, answer)
            case EndLoomWait():
                return self._waits.end((owner, command.ask))
            case LookAtPath():
                return self._look_at_path(command, answer)
            case ListLooms():
                return self._tell_page(command, answer)
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
        self._waits.look_after()

    # Reads: what they tell is told once it is on disk

    def _look(self, owner: str, command: LookAtLoom, answer: Answer, *, again: bool = False) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        nothing_new = record is not None and command.since == self._looms.version(command.loom_id)
        declined = False
        if nothing_new and command.wait_s and not again:

            def once_more() -> None:
                self._look(owner, command, answer, again=True)

            asker = owner, command.ask
            if self._waits.add(asker, command.loom_id, command.key_id, command.wait_s, once_more):
                return
            declined = True
        shown = None if record is None else self._view(command.loom_id, record, command.since)
        self._tell(LoomTold(command.ask, shown, declined), answer)

    def _look_at_path(self, command: LookAtPath, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        node = record.nodes.get(command.node_id) if record is not None else None
        if record is None or node is None or record.status_of(node) != "done":
            try:
                if (kept := self._repeats.judge(command.key, None, self._now())) is not None:
                    return self._tell(Repeated(command.ask, kept), answer)
            except Refused as refused:
                return answer(SubmitRefused(command.ask, _refusal(refused)))
        shown = None
        if record is not None and node is not None:
            shown = self._view(command.loom_id, record, only=record.path_to(command.node_id))
        self._tell(LoomTold(command.ask, shown), answer)

    def _tell_page(self, command: ListLooms, answer: Answer) -> None:
        listed = list(self._looms.newest_first(command.account_id, command.after))
        page = [self._view(loom_id, record, only=()) for loom_id, record in listed[: command.limit]]
        self._tell(LoomsTold(command.ask, page, len(listed) > command.limit), answer)

    # Commands

    def _create(self, command: CreateLoom, answer: Answer) -> None:
        if self._looms.find(command.account_id, command.loom_id) is None:
            try:
                if (kept := self._repeats.judge(command.key, None, self._now())) is not None:
                    return self._tell(Repeated(command.ask, kept), answer)
                self._looms.judge_more(command.account_id, self._limits.account_looms)
            except Refused as refused:
                return answer(SubmitRefused(command.ask, _refusal(refused)))
            self._commits.add(self._created(command))
        record = self._looms.find(command.account_id, command.loom_id)
        assert record is not None
        self._tell(LoomTold(command.ask, self._view(command.loom_id, record)), answer)

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
        return [*made, *imported, *self._remembered(command.key, command.loom_id, command.answer)]

    def _retitle(self, command: Retitle, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        if record is not None and record.title_sha256 != command.title_sha256:
            former = record.title_sha256
            changed = self._looms.change(command.loom_id, lambda loom: loom.retitle(command.title_sha256, self._now()))
            self._commits.add(changed, self._erasing([former]))
        shown = None if record is None else self._view(command.loom_id, record, only=())
        self._tell(LoomTold(command.ask, shown), answer)

    def _branch(self, command: AskBranch, answer: Answer) -> None:
        order = command.order
        if self._looms.get(command.branch_id) is None:
            try:
                if (kept := self._judged(command)) is not None:
                    return self._tell(Repeated(command.ask, kept), answer)
            except Refused as refused:
                return answer(SubmitRefused(command.ask, refusal_of(order, refused)))
            self._commits.add(self._asked(command))
            self._traffic.count(order.key_id)
            self._runs.queue(command.branch_id)
        record = self._looms.find(order.account_id, command.loom_id)
        shown = None if record is None else self._view(command.loom_id, record, only=command.node_ids)
        self._tell(LoomTold(command.ask, shown), answer)

    def _judged(self, command: AskBranch) -> Kept | None:
        """None: it may be grown. Otherwise the answer of an earlier request that was the same. Raises Refused."""
        order = command.order
        self._desk.judge_key(order)
        if (kept := self._repeats.judge(order.key, None, self._now())) is not None:
            return kept
        self._traffic.judge_rate(order.key_id)
        self._books.judge(order, self._now())
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
        return [*placed, *asked, *self._remembered(order.key, order.hold_id, command.answer)]

    def _delete_nodes(self, command: DeleteNodes, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        doomed = record.subtrees(command.node_ids) if record is not None else []
        if record is None or not doomed:
            return self._tell(LoomTold(command.ask, None), answer)
        if record.root_id in doomed:
            stays = RootStays("The root cannot be deleted by itself: delete the Loom.")
            return answer(SubmitRefused(command.ask, _refusal(stays)))
        before = addresses_of(record)
        since = self._looms.version(command.loom_id)
        deleted = self._looms.change(command.loom_id, lambda loom: loom.delete_nodes(doomed, self._now()))
        told = LoomTold(command.ask, self._view(command.loom_id, record, since))
        self._commits.add(deleted, self._erasing(before - addresses_of(record)))
        self._cancel_unwanted(record)
        self._tell(told, answer)

    def _delete(self, command: DeleteLoom, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        if record is None:
            return self._tell(LoomTold(command.ask, None), answer)
        told = LoomTold(command.ask, self._view(command.loom_id, record, only=()))
        needed = {record.branches[branch_id].request_sha256 for branch_id in record.unfinished}  # each until it ends
        doomed = addresses_of(record) - needed
        deleted = self._looms.change(command.loom_id, lambda loom: loom.delete(self._now()))
        self._commits.add(deleted, self._erasing(doomed))
        self._cancel_unwanted(record)
        self._tell(told, answer)

    # Inside

    def _cancel_unwanted(self, record: LoomRecord) -> None:
        """Branches whose Nodes are all gone: nobody will read what they would cost."""
        for branch_id in record.unfinished:
            if not any(node_id in record.nodes for node_id in record.branches[branch_id].node_ids):
                self._runs.cancel(branch_id, lambda cancelled: None)

    def _view(self, loom_id: str, record: LoomRecord, since: int = 0, only: Iterable[str] | None = None) -> LoomView:
        return view(loom_id, self._looms.version(loom_id), record, since, only)

    def _tell(self, reply: LoomReply, answer: Answer) -> None:
        """Once all that it says is on disk."""
        self._commits.add((), lambda: answer(reply))

    def _remembered(self, key: IdempotencyKey | None, id: str, answer: Kept | None) -> Sequence[Event]:
        """Of a request that is answered at once."""
        return [*self._repeats.begin(key, id, self._now()), *self._repeats.end(id, self._now(), answer)]

    def _erasing(self, addresses: Iterable[str | None]) -> Callable[[], None]:
        def erase() -> None:
            for sha256 in filter(None, addresses):
                self._erase(sha256)

        return erase


def _refusal(refused: Refused) -> Refusal:
    """Of a command without an order."""
    order = Open("", "", "", "", "", "branch", None, 0, 0, 0, 0, False)
    return refusal_of(order, refused)
