"""What of a Loom is told, and to whom it is told when it changes: each answer once all that it says is on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from acs.events.loom_tree import LoomRecord
from acs.events.refused import Refused
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.job_contract import Repeated, SubmitRefused
from acs.platform.ledger.loom_contract import (
    EndLoomWait,
    ListLooms,
    LookAtLoom,
    LookAtPath,
    LoomReply,
    LoomsTold,
    LoomTold,
    LoomView,
)
from acs.platform.ledger.loom_views import view
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.refusals import refusal_of
from acs.platform.ledger.waits import Waits

Answer = Callable[[LoomReply], None]


class LoomReads:
    def __init__(self, memory: Memory, commits: Commits, waits: Waits, now: Callable[[], datetime]) -> None:
        self._looms, self._repeats = memory.looms, memory.repeats
        self._commits = commits
        self._waits = waits
        self._now = now
        self._looms.on_change = waits.changed

    def look_after(self) -> None:
        """To be called every second or so."""
        self._waits.look_after()

    def wait_no_more(self, owner: str, command: EndLoomWait) -> None:
        self._waits.end((owner, command.ask))

    def look(self, owner: str, command: LookAtLoom, answer: Answer, *, again: bool = False) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        nothing_new = record is not None and command.since == self._looms.version(command.loom_id)
        declined = False
        if nothing_new and command.wait_s and not again:

            def once_more() -> None:
                self.look(owner, command, answer, again=True)

            asker = owner, command.ask
            if self._waits.add(asker, command.loom_id, command.key_id, command.wait_s, once_more):
                return
            declined = True
        shown = None if record is None else self.view(command.loom_id, record, command.since)
        self.tell(LoomTold(command.ask, shown, declined), answer)

    def look_at_path(self, command: LookAtPath, answer: Answer) -> None:
        record = self._looms.find(command.account_id, command.loom_id)
        node = record.nodes.get(command.node_id) if record is not None else None
        if record is None or node is None or record.status_of(node) != "done":
            try:
                if (kept := self._repeats.judge(command.key, None, self._now())) is not None:
                    return self.tell(Repeated(command.ask, kept), answer)
            except Refused as refused:
                return answer(SubmitRefused(command.ask, refusal_of(None, refused)))
        shown = None
        if record is not None and node is not None:
            shown = self.view(command.loom_id, record, only=record.path_to(command.node_id))
        self.tell(LoomTold(command.ask, shown), answer)

    def tell_page(self, command: ListLooms, answer: Answer) -> None:
        listed = list(self._looms.newest_first(command.account_id, command.after))
        page = [self.view(loom_id, record, only=()) for loom_id, record in listed[: command.limit]]
        self.tell(LoomsTold(command.ask, page, len(listed) > command.limit), answer)

    def view(self, loom_id: str, record: LoomRecord, since: int = 0, only: Iterable[str] | None = None) -> LoomView:
        return view(loom_id, self._looms.version(loom_id), record, since, only)

    def tell(self, reply: LoomReply, answer: Answer) -> None:
        """Once all that it says is on disk."""
        self._commits.add((), lambda: answer(reply))
