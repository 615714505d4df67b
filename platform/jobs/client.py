"""Jobs as an ingress asks the ledger for them."""

from __future__ import annotations

from acs.platform.errors import JobEnded, JobNotFound
from acs.platform.idempotency import Replayed
from acs.platform.ledger.asks import Asks
from acs.platform.ledger.client import error_of
from acs.platform.ledger.contract import IdempotencyKey, Kept, Open
from acs.platform.ledger.job_contract import (
    Browse,
    Cancel,
    JobsTold,
    JobTold,
    JobView,
    LookAt,
    Repeated,
    Submit,
    SubmitRefused,
)

PATIENCE_S = 3.0  # Ray has a killed ledger back in less
STOP_PATIENCE_S = 10.0  # the engine has 5 s for its last word on an aborted request


class JobClient:
    """Ids are those people see. Every question raises PartUnavailable when the ledger does not answer in time."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks

    async def submit(
        self, job_id: str, order: Open, request_sha256: str, created_at: int, answer: Kept | None
    ) -> JobView:
        """Raises an AdmissionError, a 401 error, one of 409, or Replayed. A Job that its client was told nothing of is
        taken back, unless it can be asked for again under its Idempotency-Key.
        """
        command = Submit(self._asks.number(), job_id, order, request_sha256, created_at, answer)
        try:
            reply = await self._asks.ask(command, PATIENCE_S)
        except BaseException:
            taken_back = Cancel(self._asks.number(), order.account_id, job_id)
            self._asks.insist(taken_back if order.key is None else command)
            raise
        if isinstance(reply, SubmitRefused):
            raise error_of(reply.refusal)
        if isinstance(reply, Repeated):
            raise Replayed(reply.kept)
        assert isinstance(reply, JobTold)
        return _found(reply, job_id)

    async def get(self, account_id: str, job_id: str) -> JobView:
        """Raises JobNotFound."""
        reply = await self._asks.ask(LookAt(self._asks.number(), account_id, job_id), PATIENCE_S)
        assert isinstance(reply, JobTold)
        return _found(reply, job_id)

    async def cancel(self, account_id: str, job_id: str, key: IdempotencyKey | None) -> tuple[JobView, bool]:
        """The Job, once it has ended as cancelled, and whether that was asked for before under the same key. Raises
        JobNotFound, and JobEnded when it had ended before.
        """
        links = self._asks.links
        reply = await self._asks.ask(Cancel(self._asks.number(), account_id, job_id, key), STOP_PATIENCE_S)
        assert isinstance(reply, JobTold)
        job = _found(reply, job_id)
        by_us = job.status == "cancelled" and self._asks.links != links  # asked twice, and the first was done
        if reply.was_ended and not reply.repeated and not by_us:
            raise JobEnded(f"The Job has {job.status} already; it cannot be cancelled.")
        return job, reply.repeated

    async def browse(self, account_id: str, limit: int, after: str | None, status: str | None) -> JobsTold:
        """Newest first."""
        reply = await self._asks.ask(Browse(self._asks.number(), account_id, limit, after, status), PATIENCE_S)
        assert isinstance(reply, JobsTold)
        return reply


def _found(told: JobTold, job_id: str) -> JobView:
    if told.job is None:
        raise JobNotFound(f"There is no Job {job_id[:40]!r}. Results are kept for a while only.")
    return told.job
