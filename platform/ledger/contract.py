"""What travels from the ledger to an ingress: which digests are keys, whose they are, and whether they are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
