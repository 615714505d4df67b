"""The ledger's memory of requests sent under an Idempotency-Key: a fold of the log, of the last day."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from acs.events.idempotency import IdempotencyStatus, IdempotentRequest
from acs.events.refused import Refused
from acs.platform.ledger.contract import IdempotencyKey, Kept, Open
from acs.storage.event_store import Event

DIFFERS = "Another request was sent with this Idempotency-Key within 24 hours."


class Repeats:
    def __init__(self) -> None:
        self.requests: dict[str, IdempotentRequest] = {}  # by key digest, oldest first
        self._of_hold: dict[str, IdempotentRequest] = {}  # those that run
        self._running: dict[UUID, IdempotentRequest] = {}  # the same, by their own id

    def apply(self, event: Any) -> None:
        """One event of an IdempotentRequest, as the log has it."""
        if isinstance(event, IdempotentRequest.Created):
            request = event.mutate(None)
            assert request is not None
        else:
            request = self._running[event.originator_id]
            event.mutate(request)
        self._remember(request)

    def judge(self, key: IdempotencyKey | None, waiting: Open | None, now: datetime) -> Kept | None:
        """None: the request may run. Otherwise the answer of an earlier one that was the same. `waiting`: the request
        that waits for its turn under the same key.

        Raises RequestRuns, RequestDiffers or NoAnswerLeft.
        """
        if key is None:
            return None
        if waiting is not None:
            if waiting.key != key:
                raise RequestDiffers(DIFFERS)
            raise RequestRuns("The first request with this Idempotency-Key waits for its turn.")
        known = self.requests.get(key.digest)
        if known is None or known.forgotten(now):
            return None
        attempt = known.attempt
        if attempt.request_sha256 != key.request_sha256:
            raise RequestDiffers(DIFFERS)
        if attempt.status is IdempotencyStatus.RUNNING:
            raise RequestRuns("The first request with this Idempotency-Key is still running.")
        if (answer := attempt.answer) is None:
            raise NoAnswerLeft("The first request with this Idempotency-Key ran and left no answer to give again.")
        return Kept(answer.http_status, answer.body_sha256, answer.body_bytes, answer.location, answer.clamped)

    def begin(self, key: IdempotencyKey | None, hold_id: str, now: datetime) -> Sequence[Event]:
        """The request's Hold has been placed. Of one that `judge` let pass. `hold_id`: of a request that takes no Hold,
        the id of what it changes.
        """
        if key is None:
            return ()
        self._forget(now)
        request = IdempotentRequest.begin(key.digest, key.request_sha256, hold_id, now)
        self._remember(request)
        return request.collect_events()

    def end(self, hold_id: str, now: datetime, kept: Kept | None, *, free: bool = False) -> Sequence[Event]:
        """Its Hold has been resolved: an answer was kept, the key is free again, or nothing was left."""
        request = self._of_hold.get(hold_id)
        if request is None:
            return ()
        if kept is not None:
            request.end(
                now,
                IdempotentRequest.Answered,
                http_status=kept.http_status,
                body_sha256=kept.body_sha256,
                body_bytes=kept.body_bytes,
                location=kept.location,
                clamped=kept.clamped,
            )
        else:
            request.end(now, IdempotentRequest.Freed if free else IdempotentRequest.LeftNoAnswer)
        self._remember(request)
        return request.collect_events()

    def answered(self, key: IdempotencyKey | None, id: str, now: datetime, kept: Kept | None) -> Sequence[Event]:
        """`begin` and `end` of a request that is answered at once."""
        return [*self.begin(key, id, now), *self.end(id, now, kept)]

    def keep(self, request: IdempotentRequest) -> None:
        """One that a checkpoint remembers."""
        self._remember(request)

    def _remember(self, request: IdempotentRequest) -> None:
        attempt = request.attempt
        self.requests.pop(attempt.key_digest, None)  # a dict keeps the order of insertion: in again at the end
        self.requests[attempt.key_digest] = request
        if attempt.status is IdempotencyStatus.RUNNING:
            self._of_hold[attempt.hold_id] = self._running[request.id] = request
        else:
            self._of_hold.pop(attempt.hold_id, None)
            self._running.pop(request.id, None)

    def _forget(self, now: datetime) -> None:
        """A few of the oldest at each new one: a day's requests stay, and no more."""
        for digest in list(itertools.islice(self.requests, 3)):
            if self.requests[digest].forgotten(now):
                del self.requests[digest]


class RequestRuns(Refused):
    pass


class RequestDiffers(Refused):
    pass


class NoAnswerLeft(Refused):
    pass
