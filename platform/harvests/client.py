"""Harvests as an ingress asks the ledger for them."""

from __future__ import annotations

from acs.events.harvest import HarvestStatus, Terms
from acs.platform.errors import HarvestNotCancellable, HarvestNotFound
from acs.platform.idempotency import Replayed
from acs.platform.ledger.asks import Asks
from acs.platform.ledger.client import error_of
from acs.platform.ledger.contract import Caller, Kept, Open
from acs.platform.ledger.harvest_contract import (
    AskPace,
    BrowseHarvests,
    CancelHarvest,
    EndWait,
    FileTold,
    HarvestsTold,
    HarvestTold,
    HarvestView,
    LookAtFile,
    LookAtHarvest,
    PaceTold,
    SubmitHarvest,
    WaitForHarvest,
)
from acs.platform.ledger.job_contract import Repeated, SubmitRefused

PATIENCE_S = 3.0  # Ray has a killed ledger back in less
STOP_PATIENCE_S = 10.0  # a run says what it has read at once, unless its process is busy or gone


class HarvestClient:
    """Ids are those people see. Every question raises PartUnavailable when the ledger does not answer in time."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks

    async def submit(self, harvest_id: str, order: Open, terms: Terms, answer: Kept | None) -> None:
        """Raises an AdmissionError, InvalidRequest (more bytes than the account may have), a 401 error, one of 409, or
        Replayed. A Harvest that its client was told nothing of is taken back, unless it can be asked for again under
        its Idempotency-Key.
        """
        command = SubmitHarvest(self._asks.number(), harvest_id, order, terms, answer)
        try:
            reply = await self._asks.ask(command, PATIENCE_S)
        except BaseException:
            taken_back = CancelHarvest(self._asks.number(), order.account_id, harvest_id)
            self._asks.insist(taken_back if order.key is None else command)
            raise
        if isinstance(reply, SubmitRefused):
            raise error_of(reply.refusal)
        if isinstance(reply, Repeated):
            raise Replayed(reply.kept)

    async def get(self, account_id: str, harvest_id: str) -> HarvestView:
        """Raises HarvestNotFound."""
        reply = await self._asks.ask(LookAtHarvest(self._asks.number(), account_id, harvest_id), PATIENCE_S)
        return _found(reply, harvest_id)

    async def wait(self, caller: Caller, harvest_id: str, wait_s: float) -> tuple[HarvestView, bool]:
        """The Harvest when its status has changed, has ended already, or `wait_s` have gone by; and whether waiting was
        declined, since too many wait. Raises HarvestNotFound.
        """
        now = await self.get(caller.account_id, harvest_id)
        if not wait_s or HarvestStatus(now.status).ended:
            return now, False
        whose = caller.account_id, caller.key_id, harvest_id
        command = WaitForHarvest(self._asks.number(), *whose, now.status, wait_s)
        try:
            reply = await self._asks.ask(command, wait_s + PATIENCE_S)
        except BaseException:
            self._asks.say(EndWait(command.ask))
            raise
        assert isinstance(reply, HarvestTold)
        return _found(reply, harvest_id), reply.declined

    async def cancel(self, account_id: str, harvest_id: str) -> HarvestView:
        """The Harvest, once it has ended as cancelled. Raises HarvestNotFound, and HarvestNotCancellable when it had
        ended before.
        """
        links = self._asks.links
        reply = await self._asks.ask(CancelHarvest(self._asks.number(), account_id, harvest_id), STOP_PATIENCE_S)
        assert isinstance(reply, HarvestTold)
        harvest = _found(reply, harvest_id)
        by_us = harvest.status == "cancelled" and self._asks.links != links  # asked twice, and the first was done
        if reply.was_ended and not by_us:
            raise HarvestNotCancellable(f"The harvest is {harvest.status} already; it cannot be cancelled.")
        return harvest

    async def browse(self, account_id: str, limit: int, after: str | None, status: str | None) -> HarvestsTold:
        """Newest first."""
        reply = await self._asks.ask(BrowseHarvests(self._asks.number(), account_id, limit, after, status), PATIENCE_S)
        assert isinstance(reply, HarvestsTold)
        return reply

    async def pace(self, model: str) -> float | None:
        """Tokens a second of the model's last Harvests; None: there was none."""
        reply = await self._asks.ask(AskPace(self._asks.number(), model), PATIENCE_S)
        assert isinstance(reply, PaceTold)
        return reply.tokens_per_s

    async def sha256_of(self, harvest_id: str, file: str) -> str | None:
        """Of a file that a link names, empty when it is not known; None when nobody may have it."""
        reply = await self._asks.ask(LookAtFile(self._asks.number(), harvest_id, file), PATIENCE_S)
        assert isinstance(reply, FileTold)
        return reply.sha256


def _found(told: object, harvest_id: str) -> HarvestView:
    assert isinstance(told, HarvestTold)
    if told.harvest is None:
        raise HarvestNotFound(f"There is no harvest {harvest_id[:40]!r}.")
    return told.harvest
