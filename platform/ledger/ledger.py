"""The ledger's commands on accounts and keys: each judges, appends in one transaction, and answers when it is on disk.

Its memory moves in one way only, by reading the log: at the start from the beginning, then after each save. So a save
that failed but was stored all the same (the disk died between the two) is seen by the next command, and a restarted
ledger knows exactly what this one knew. Calls block on the disk and must come one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from acs.events.account import Account
from acs.events.api_key import ApiKey, new_secret
from acs.events.ids import ACCOUNT, KEY, parse, show
from acs.events.refused import Refused
from acs.platform.ledger.key_table import AccountRow, KeyRow, KeyTable
from acs.storage.event_store import EventStore

KEYS_PER_ACCOUNT = 20  # unrevoked ones


@dataclass(frozen=True, slots=True)
class NewKey:
    row: KeyRow
    secret: str = field(repr=False)  # shown to whoever asked for the key, this once


class Ledger:
    """Ids are those people see (`acct_…`, `key_…`). Every command raises EventStoreUnavailable when it could not be
    stored, and a subclass of Refused when it may not be done; then nothing was appended.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store
        store.claim()
        self.table = KeyTable()
        self._catch_up()
        self.began_empty = self.version == 0  # a fresh store: nobody can hold a copy of an earlier state

    @property
    def version(self) -> int:
        return self.table.version

    # Accounts

    def create_account(self, name: str, email: str) -> AccountRow:
        """Raises InvalidName or InvalidEmail."""
        self._catch_up()
        account = Account.create(name=name, email=email)
        self._save(account)
        return self._account(show(ACCOUNT, account.id))

    def suspend_account(self, account_id: str) -> AccountRow:
        """Raises AccountNotFound."""
        return self._change_account(account_id, Account.suspend)

    def restore_account(self, account_id: str) -> AccountRow:
        """Raises AccountNotFound."""
        return self._change_account(account_id, Account.restore)

    def list_accounts(self) -> list[AccountRow]:
        return self.table.accounts()

    # Keys

    def create_key(self, account_id: str, name: str) -> NewKey:
        """Raises AccountNotFound, TooManyKeys or InvalidName."""
        self._catch_up()
        account = self._account(account_id)
        unrevoked = sum(not key.revoked for key in self.table.keys_of(account.id))
        if unrevoked >= KEYS_PER_ACCOUNT:
            raise TooManyKeys(f"The account has {unrevoked} keys; {KEYS_PER_ACCOUNT} are allowed. Revoke one first.")
        secret = new_secret()
        key = ApiKey.create(account_id=account.id, name=name, secret=secret)
        self._save(key)
        return NewKey(self._key(show(KEY, key.id)), secret)

    def rename_key(self, key_id: str, name: str) -> KeyRow:
        """Raises KeyNotFound, KeyIsRevoked or InvalidName."""
        return self._change_key(key_id, lambda key: key.rename(name))

    def disable_key(self, key_id: str) -> KeyRow:
        """Raises KeyNotFound or KeyIsRevoked."""
        return self._change_key(key_id, ApiKey.disable)

    def enable_key(self, key_id: str) -> KeyRow:
        """Raises KeyNotFound or KeyIsRevoked."""
        return self._change_key(key_id, ApiKey.enable)

    def revoke_key(self, key_id: str) -> KeyRow:
        """Raises KeyNotFound."""
        return self._change_key(key_id, ApiKey.revoke)

    def list_keys(self, account_id: str) -> list[KeyRow]:
        """Revoked ones too, oldest first. Raises AccountNotFound."""
        return self.table.keys_of(self._account(account_id).id)

    # Inside

    def _change_account(self, account_id: str, change: Callable[[Account], None]) -> AccountRow:
        account = self._store.load(Account, self._account(account_id).id)
        change(account)
        self._save(account)
        return self._account(account_id)

    def _change_key(self, key_id: str, change: Callable[[ApiKey], None]) -> KeyRow:
        key = self._store.load(ApiKey, self._key(key_id).id)
        change(key)
        self._save(key)
        return self._key(key_id)

    def _account(self, account_id: str) -> AccountRow:
        id = parse(ACCOUNT, account_id)
        row = self.table.account(id) if id else None
        if row is None:
            raise AccountNotFound(f"There is no account {account_id!r}.")
        return row

    def _key(self, key_id: str) -> KeyRow:
        id = parse(KEY, key_id)
        row = self.table.key(id) if id else None
        if row is None:
            raise KeyNotFound(f"There is no key {key_id!r}.")
        return row

    def _save(self, aggregate: Account | ApiKey) -> None:
        self._store.save(aggregate)
        self._catch_up()

    def _catch_up(self) -> None:
        for position, event in self._store.read_log(after=self.version):
            self.table.apply(position, event)


class AccountNotFound(Refused):
    pass


class KeyNotFound(Refused):
    pass


class TooManyKeys(Refused):
    pass
