"""Looms as an ingress asks the ledger for them."""

from __future__ import annotations

from acs.platform.errors import ApiError, LoomNotFound, NodeNotDone
from acs.platform.idempotency import Replayed
from acs.platform.ledger import client as ledger
from acs.platform.ledger.asks import Asks
from acs.platform.ledger.contract import IdempotencyKey, Refusal
from acs.platform.ledger.job_contract import Repeated, SubmitRefused
from acs.platform.ledger.loom_contract import (
    AskBranch,
    CreateLoom,
    DeleteLoom,
    DeleteNodes,
    EndLoomWait,
    ListLooms,
    LookAtLoom,
    LookAtPath,
    LoomQuestion,
    LoomsTold,
    LoomTold,
    LoomView,
    Retitle,
)

PATIENCE_S = 3.0  # Ray has a killed ledger back in less
OF_LOOMS: dict[str, type[ApiError]] = {
    "loom_not_found": LoomNotFound,
    "node_not_done": NodeNotDone,
}


class LoomClient:
    """Ids are those people see. Every question raises PartUnavailable when the ledger does not answer in time, and
    LoomNotFound for what the account does not have.
    """

    def __init__(self, asks: Asks) -> None:
        self._asks = asks

    def number(self) -> int:
        """Of the next question."""
        return self._asks.number()

    async def create(self, command: CreateLoom) -> LoomView:
        """Raises InvalidRequest beyond the account's quota, one of 409, or Replayed."""
        taken_back = DeleteLoom(self.number(), command.account_id, command.loom_id)
        return await self._submit(command, taken_back if command.key is None else command)

    async def branch(self, command: AskBranch) -> LoomView:
        """Its Nodes. Raises an AdmissionError, a 401 error, one of 409, InvalidRequest beyond a quota, or Replayed."""
        order = command.order
        taken_back = DeleteNodes(self.number(), order.account_id, command.loom_id, command.node_ids)
        return await self._submit(command, taken_back if order.key is None else command)

    async def _submit(self, command: CreateLoom | AskBranch, otherwise: LoomQuestion) -> LoomView:
        """What its client was told nothing of is taken back, unless it can be asked for again under its key."""
        try:
            reply = await self._asks.ask(command, PATIENCE_S)
        except BaseException:
            self._asks.insist(otherwise)
            raise
        return _loom(reply)

    async def look(
        self, account_id: str, key_id: str, loom_id: str, since: int, wait_s: float
    ) -> tuple[LoomView, bool]:
        """What changed since a version, and whether waiting for it was declined."""
        question = LookAtLoom(self.number(), account_id, key_id, loom_id, since, wait_s)
        try:
            reply = await self._asks.ask(question, PATIENCE_S + wait_s)
        except BaseException:
            self._asks.say(EndLoomWait(question.ask))
            raise
        return _loom(reply), isinstance(reply, LoomTold) and reply.declined

    async def path(self, account_id: str, loom_id: str, node_id: str, key: IdempotencyKey | None = None) -> LoomView:
        """With the Nodes from the root to this one. Raises Replayed, or one of 409, for a request that was answered
        when the Node could still be continued.
        """
        return _loom(await self._asks.ask(LookAtPath(self.number(), account_id, loom_id, node_id, key), PATIENCE_S))

    async def browse(self, account_id: str, limit: int, after: str | None) -> LoomsTold:
        """Newest first."""
        reply = await self._asks.ask(ListLooms(self.number(), account_id, limit, after), PATIENCE_S)
        assert isinstance(reply, LoomsTold)
        return reply

    async def retitle(self, account_id: str, loom_id: str, title_sha256: str | None) -> LoomView:
        return _loom(await self._asks.ask(Retitle(self.number(), account_id, loom_id, title_sha256), PATIENCE_S))

    async def delete_node(self, account_id: str, loom_id: str, node_id: str) -> LoomView | None:
        """What was deleted. None: an earlier asking of ours did it, and its answer was lost."""
        return await self._delete(DeleteNodes(self.number(), account_id, loom_id, [node_id]))

    async def delete(self, account_id: str, loom_id: str) -> LoomView | None:
        return await self._delete(DeleteLoom(self.number(), account_id, loom_id))

    async def _delete(self, command: DeleteNodes | DeleteLoom) -> LoomView | None:
        links = self._asks.links
        reply = await self._asks.ask(command, PATIENCE_S)
        if isinstance(reply, LoomTold) and reply.loom is None and self._asks.links != links:
            return None
        return _loom(reply)


def _loom(reply: object) -> LoomView:
    if isinstance(reply, SubmitRefused):
        raise _error_of(reply.refusal)
    if isinstance(reply, Repeated):
        raise Replayed(reply.kept)
    assert isinstance(reply, LoomTold)
    if reply.loom is None:
        raise LoomNotFound("There is no such Loom, or no such Node in it.")
    return reply.loom


def _error_of(refusal: Refusal) -> ApiError:
    kind = OF_LOOMS.get(refusal.code)
    return kind(refusal.message) if kind is not None else ledger.error_of(refusal)
