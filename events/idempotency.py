"""A request sent under an Idempotency-Key: what became of it, for whoever sends it again within a day.

One aggregate for each request that ran. The key itself is nowhere in it: only a digest of it with its account, method
and path.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from eventsourcing.domain import Aggregate

from acs.events.ids import uuid7

REMEMBERED = timedelta(hours=24)  # from the first request


class IdempotencyStatus(StrEnum):
    RUNNING = "running"
    ANSWERED = "answered"
    NO_ANSWER = "no_answer"  # it ran, perhaps it was charged, and left nothing that could be given again
    FREE = "free"  # it failed in a way that may be tried again, and cost nothing


@dataclass(frozen=True, slots=True)
class Answer:
    """What is given again."""

    http_status: int
    body_sha256: str  # the address of a blob
    body_bytes: int
    location: str | None
    clamped: str | None


@dataclass(slots=True)
class Attempt:
    """All that an IdempotentRequest remembers."""

    key_digest: str
    request_sha256: str
    hold_id: str
    began_at: datetime
    status: IdempotencyStatus = IdempotencyStatus.RUNNING
    answer: Answer | None = None


class IdempotentRequest(Aggregate):
    TOPIC = "acs.events.idempotency:IdempotentRequest"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.idempotency:IdempotentRequest.Created"
        key_digest: str  # of account, method, path and key together
        request_sha256: str  # of what was asked, see `acs.platform.idempotency`
        hold_id: str

        def apply(self, request: IdempotentRequest) -> None:
            request.attempt = Attempt(self.key_digest, self.request_sha256, self.hold_id, self.timestamp)

    class Answered(Aggregate.Event):
        TOPIC = "acs.events.idempotency:IdempotentRequest.Answered"
        http_status: int
        body_sha256: str  # the address of a blob
        body_bytes: int
        location: str | None  # the headers that are given again
        clamped: str | None

        def apply(self, request: IdempotentRequest) -> None:
            request.attempt.status = IdempotencyStatus.ANSWERED
            request.attempt.answer = Answer(
                self.http_status, self.body_sha256, self.body_bytes, self.location, self.clamped
            )

    class LeftNoAnswer(Aggregate.Event):
        TOPIC = "acs.events.idempotency:IdempotentRequest.LeftNoAnswer"

        def apply(self, request: IdempotentRequest) -> None:
            request.attempt.status = IdempotencyStatus.NO_ANSWER

    class Freed(Aggregate.Event):
        TOPIC = "acs.events.idempotency:IdempotentRequest.Freed"

        def apply(self, request: IdempotentRequest) -> None:
            request.attempt.status = IdempotencyStatus.FREE

    def __init__(self) -> None:  # made by the first event
        self.attempt: Attempt

    @classmethod
    def begin(cls, key_digest: str, request_sha256: str, hold_id: str, now: datetime) -> IdempotentRequest:
        return cls._create(
            cls.Created,
            id=uuid7(),
            timestamp=now,
            key_digest=key_digest,
            request_sha256=request_sha256,
            hold_id=hold_id,
        )

    @classmethod
    def restored(cls, id: UUID, version: int, attempt: Attempt) -> IdempotentRequest:
        """As its events up to `version` made it: for a checkpoint."""
        request = cls.__new__(cls)
        request.__base_init__(id, version, attempt.began_at)
        request.attempt = attempt
        return request

    def forgotten(self, now: datetime) -> bool:
        """Whether the key may be used for anything again."""
        attempt = self.attempt
        if attempt.status is IdempotencyStatus.RUNNING:
            return False
        return attempt.status is IdempotencyStatus.FREE or now - attempt.began_at > REMEMBERED

    def end(self, now: datetime, event: type[Aggregate.Event], **fields: object) -> None:
        """By Answered, LeftNoAnswer or Freed. One that has ended stays as it is."""
        if self.attempt.status is IdempotencyStatus.RUNNING:
            self.trigger_event(event, timestamp=now, **fields)
