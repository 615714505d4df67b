"""Every refusal of the ledger's desks, by the code that the ingress knows it by."""

from __future__ import annotations

from acs.events.ledger import BudgetExceeded
from acs.events.refused import Refused
from acs.platform.ledger.books import SpendLimitReached
from acs.platform.ledger.contract import Open, Refusal
from acs.platform.ledger.harvest_capacity import (
    HarvestCapacityReached,
    HarvestConcurrencyReached,
    HarvestQuotaReached,
    TooManyBytes,
)
from acs.platform.ledger.jobs import JobCapacityReached
from acs.platform.ledger.looms import LoomQuotaReached, NodeNotDone, NoSuchNode, RootStays
from acs.platform.ledger.repeats import NoAnswerLeft, RequestDiffers, RequestRuns
from acs.platform.ledger.traffic import QueueFull, RateLimited

_CODES: dict[type[Refused], str] = {
    RateLimited: "rate_limited",
    QueueFull: "queue_full",
    SpendLimitReached: "spend_cap",
    BudgetExceeded: "budget_exceeded",
    RequestRuns: "running",
    RequestDiffers: "idempotency_conflict",
    NoAnswerLeft: "no_answer",
    JobCapacityReached: "job_capacity",
    TooManyBytes: "invalid_request",
    HarvestConcurrencyReached: "harvest_concurrency_exceeded",
    HarvestCapacityReached: "harvest_capacity_exceeded",
    HarvestQuotaReached: "harvest_quota_exceeded",
    LoomQuotaReached: "invalid_request",
    RootStays: "invalid_request",
    NodeNotDone: "node_not_done",
    NoSuchNode: "loom_not_found",
}


class KeyNotAccepted(Refused):
    """The message is the key's Standing."""


def refusal_of(order: Open | None, refused: Refused) -> Refusal:
    """`order` None: of a command that would hold nothing."""
    hold_id = order.hold_id if order is not None else ""
    if isinstance(refused, KeyNotAccepted):
        return Refusal(hold_id, str(refused), "")
    return Refusal(hold_id, _CODES[type(refused)], str(refused), getattr(refused, "retry_after_s", None))
