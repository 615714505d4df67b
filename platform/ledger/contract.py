"""What an ingress and the ledger say to each other.

Keys travel from the ledger to every ingress, by `watch`. About Holds they speak in frames: an ingress sends commands,
the ledger answers each by its Hold's id, once what it says is on disk (but see `Open.at_once`). Ids are those people
see. A Hold's is made by the ingress, so that a command sent again is applied once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

INGRESS, RUNNER = "ingress_", "runner_"  # begin the names of the links' owners; Jobs, harvests and Looms have no link


class Standing(StrEnum):
    """What a key is worth. The key's own state wins over its account's: a revoked key of a suspended account is
    REVOKED."""

    ACCEPTED = "accepted"
    SUSPENDED = "suspended"  # the account, not the key
    DISABLED = "disabled"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. Ids as people see them: `acct_…`, `key_…`."""

    account_id: str
    key_id: str
    key_name: str


@dataclass(frozen=True, slots=True)
class KeyStanding:
    digest: str  # SHA-256 of the secret, 64 hex digits
    caller: Caller
    standing: Standing


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """The answer to `watch`. `version` is a position in the event log; `epoch` names one run of the ledger."""

    epoch: str
    version: int
    whole: bool  # True: `keys` replaces the whole copy; False: it holds what changed since the version asked with
    keys: tuple[KeyStanding, ...]


class IdempotencyKey(msgspec.Struct, array_like=True, frozen=True):
    """A request that may be sent again. Made by `acs.platform.idempotency`."""

    digest: str  # of account, method, path and key together
    request_sha256: str


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """An answer that can be given again: its body is a blob."""

    http_status: int
    body_sha256: str
    body_bytes: int
    location: str | None = None
    clamped: str | None = None


class Open(msgspec.Struct, array_like=True, tag="open", frozen=True):
    """May this request run? Judged in one visit: key, rate, spend, budget; then a Hold is placed and a slot taken, or
    the request waits for one. Answered by Granted, by Waiting and later another, or by Refusal.

    `at_once`: Granted may come before the Hold is on disk, so that the engine begins while it is being written. Only
    for an answer of which nothing leaves before its Settle is answered: that is never on disk before the Hold. A ledger
    that dies in between may have forgotten the Hold, so the ingress sends the order to the next one, before the Settle.
    """

    hold_id: str
    account_id: str
    key_id: str
    request_id: str
    model: str
    kind: str  # completion, job, harvest, branch
    user: str | None
    prompt_tokens: int
    choices: int
    max_tokens: int
    min_tokens: int
    clamp: bool  # whether `max_tokens` may be lowered to what the budget leaves
    key: IdempotencyKey | None = None
    at_once: bool = False


class Settle(msgspec.Struct, array_like=True, tag="settle", frozen=True):
    """The request has ended; charge what it used. Answered by Resolved. Under an Idempotency-Key, `kept` is its answer;
    None: it left none.
    """

    hold_id: str
    account_id: str
    prompt_tokens: int
    completion_tokens: int
    http_status: int | None  # None: the client had gone
    kept: Kept | None = None


class Release(msgspec.Struct, array_like=True, tag="release", frozen=True):
    """The request used nothing, or its client left while it waited. Answered by Resolved. Under an Idempotency-Key,
    `kept` is its answer; None: the key is free again.
    """

    hold_id: str
    account_id: str
    reason: str
    http_status: int | None
    kept: Kept | None = None


Command = Open | Settle | Release


class Granted(msgspec.Struct, array_like=True, tag="granted", frozen=True):
    hold_id: str
    max_tokens: int


class Waiting(msgspec.Struct, array_like=True, tag="waiting", frozen=True):
    hold_id: str


class Refusal(msgspec.Struct, array_like=True, tag="refusal", frozen=True):
    """`code` is one of `acs.platform.errors.ADMISSION_ERRORS`, or a Standing that is not ACCEPTED."""

    hold_id: str
    code: str
    message: str
    retry_after_s: float | None = None


class Stored(msgspec.Struct, array_like=True, tag="stored", frozen=True):
    """The same request has been answered before, under the same Idempotency-Key; nothing is held for this one."""

    hold_id: str
    kept: Kept


class Resolved(msgspec.Struct, array_like=True, tag="resolved", frozen=True):
    """How the Hold stands now: `settled`, `released`, `expired`; `unknown` when there is no such Hold."""

    hold_id: str
    status: str


Reply = Granted | Waiting | Refusal | Stored | Resolved
