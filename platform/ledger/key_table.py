"""The ledger's memory of accounts, keys and what they may use: a fold of the log, and what changed since a version."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from acs.events.account import Account
from acs.events.api_key import ApiKey
from acs.events.ids import ACCOUNT, KEY, parse, show
from acs.events.platform_settings import PlatformSettings
from acs.platform.ledger.contract import Caller, KeyStanding, Standing


@dataclass(frozen=True, slots=True)
class AccountRow:
    id: UUID
    name: str
    email: str
    created_at: datetime
    suspended: bool = False
    budget_tokens: int | None = None  # a calendar month
    spend_limit_micro_usd: int | None = None  # a UTC day


@dataclass(frozen=True, slots=True)
class KeyRow:
    id: UUID
    account_id: UUID
    name: str
    prefix: str
    digest: str
    created_at: datetime
    disabled: bool = False
    revoked: bool = False
    budget_tokens: int | None = None  # a calendar month

    @property
    def state(self) -> str:
        return "revoked" if self.revoked else "disabled" if self.disabled else "active"


class KeyTable:
    """Rows keep the order of creation. Safe for one writing thread beside reading ones; no lock is held over I/O."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._accounts: dict[UUID, AccountRow] = {}
        self._keys: dict[UUID, KeyRow] = {}
        self._keys_of: dict[UUID, list[UUID]] = {}
        self.knows_platform_settings = False  # whether their aggregate exists
        self.spend_limit_micro_usd: int | None = None  # a UTC day, of all accounts together
        self._changed_at: dict[UUID, int] = {}  # key id → version of its last change, oldest change first

    @property
    def version(self) -> int:
        """Position of the last event applied; 0 before the first."""
        return self._version

    def apply(self, position: int, event: Any) -> None:
        """Events of other kinds only move the version; one applied before does nothing."""
        with self._lock:
            if position > self._version:
                self._fold(position, event)
                self._version = position

    def restore(self, version: int, accounts: Iterable[AccountRow], keys: Iterable[KeyRow]) -> None:
        """Into an empty table, rows as another gave them, in their order."""
        with self._lock:
            self._version = version
            self._accounts = {row.id: row for row in accounts}
            self._keys_of = {id: [] for id in self._accounts}
            for row in keys:
                self._keys_of[row.account_id].append(row.id)
                self._put_key(row, version)

    def account(self, id: UUID) -> AccountRow | None:
        return self._accounts.get(id)

    def account_is_suspended(self, account_id: str) -> bool:
        """Also of one that nobody knows."""
        id = parse(ACCOUNT, account_id)
        account = self._accounts.get(id) if id else None
        return account is None or account.suspended

    def key(self, id: UUID) -> KeyRow | None:
        return self._keys.get(id)

    def accounts(self) -> list[AccountRow]:
        with self._lock:
            return list(self._accounts.values())

    def keys_of(self, account_id: UUID) -> list[KeyRow]:
        with self._lock:
            return [self._keys[id] for id in self._keys_of.get(account_id, ())]

    def everything(self) -> tuple[int, tuple[KeyStanding, ...]]:
        """(version, the standing of every key)."""
        with self._lock:
            return self._version, self._standings(self._keys)

    def changes_since(self, version: int) -> tuple[int, tuple[KeyStanding, ...]]:
        """(version, the standing of every key that changed after `version`). Costs what it returns."""
        with self._lock:
            changed = []
            for id in reversed(self._changed_at):
                if self._changed_at[id] <= version:
                    break
                changed.append(id)
            return self._version, self._standings(reversed(changed))

    def _fold(self, position: int, event: Any) -> None:
        id = event.originator_id
        match event:
            case Account.Created():
                self._accounts[id] = AccountRow(id, event.name, event.email, event.timestamp)
                self._keys_of[id] = []
            case Account.Suspended() | Account.Restored():
                suspended = isinstance(event, Account.Suspended)
                self._accounts[id] = replace(self._accounts[id], suspended=suspended)
                for key_id in self._keys_of[id]:
                    self._mark_changed(key_id, position)
            case Account.BudgetSet():
                self._accounts[id] = replace(self._accounts[id], budget_tokens=event.budget_tokens)
            case Account.SpendLimitSet():
                self._accounts[id] = replace(self._accounts[id], spend_limit_micro_usd=event.limit_micro_usd)
            case PlatformSettings.Created():
                self.knows_platform_settings = True
            case PlatformSettings.SpendLimitSet():
                self.spend_limit_micro_usd = event.limit_micro_usd
            case ApiKey.BudgetSet():
                self._keys[id] = replace(self._keys[id], budget_tokens=event.budget_tokens)
            case ApiKey.Created():
                row = KeyRow(id, event.account_id, event.name, event.prefix, event.digest, event.timestamp)
                self._keys_of[event.account_id].append(id)
                self._put_key(row, position)
            case ApiKey.Renamed():
                self._put_key(replace(self._keys[id], name=event.name), position)
            case ApiKey.Disabled():
                self._put_key(replace(self._keys[id], disabled=True), position)
            case ApiKey.Enabled():
                self._put_key(replace(self._keys[id], disabled=False), position)
            case ApiKey.Revoked():
                self._put_key(replace(self._keys[id], revoked=True), position)

    def _put_key(self, row: KeyRow, position: int) -> None:
        self._keys[row.id] = row
        self._mark_changed(row.id, position)

    def _mark_changed(self, key_id: UUID, position: int) -> None:
        self._changed_at.pop(key_id, None)  # a dict keeps the order of insertion: out, and in again at the end
        self._changed_at[key_id] = position

    def standing_of(self, row: KeyRow) -> Standing:
        if row.revoked:
            return Standing.REVOKED
        if row.disabled:
            return Standing.DISABLED
        return Standing.SUSPENDED if self._accounts[row.account_id].suspended else Standing.ACCEPTED

    def _standings(self, key_ids: Iterable[UUID]) -> tuple[KeyStanding, ...]:
        rows = [self._keys[id] for id in key_ids]
        return tuple(KeyStanding(row.digest, _caller(row), self.standing_of(row)) for row in rows)


def _caller(row: KeyRow) -> Caller:
    return Caller(account_id=show(ACCOUNT, row.account_id), key_id=show(KEY, row.id), key_name=row.name)
