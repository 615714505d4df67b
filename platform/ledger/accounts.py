"""The operator's commands on accounts, keys and limits: each judges, appends in one transaction, answers when on disk.

Its table moves by stored events only. A save that failed may have been stored all the same (the disk died between the
two): the next command then reads the log first. Calls block on the disk and must come one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from acs.events.account import Account
from acs.events.api_key import ApiKey, new_secret
from acs.events.ids import ACCOUNT, KEY, parse, show
from acs.events.platform_settings import ID as PLATFORM_ID
from acs.events.platform_settings import PlatformSettings
from acs.events.refused import Refused
from acs.platform.ledger.key_table import AccountRow, KeyRow, KeyTable
from acs.storage.event_store import EventStore

KEYS_PER_ACCOUNT = 20  # unrevoked ones


@dataclass(frozen=True, slots=True)
class NewKey:
    row: KeyRow
    secret: str = field(repr=False)  # shown to whoever asked for the key, this once


class Accounts:
    """Ids are those people see (`acct_…`, `key_…`). Every command raises EventStoreUnavailable when it could not be
    stored, and a subclass of Refused when it may not be done; then nothing was appended.
    """

    def __init__(self, store: EventStore, table: KeyTable) -> None:
        """`table` is as the store's log makes it."""
        self._store = store
        self.table = table
        self._unsure = False  # whether the table has all that is stored

    @property
    def version(self) -> int:
        return self.table.version

    # Accounts

    def create_account(self, name: str, email: str) -> AccountRow:
        """Raises InvalidName or InvalidEmail."""
        account = Account.create(name=name, email=email)
        self._save(account)
        return self._account(show(ACCOUNT, account.id))

    def suspend_account(self, account_id: str) -> AccountRow:
        """Raises AccountNotFound."""
        return self._change_account(account_id, Account.suspend)

    def restore_account(self, account_id: str) -> AccountRow:
        """Raises AccountNotFound."""
        return self._change_account(account_id, Account.restore)

    def set_account_budget(self, account_id: str, tokens: int | None) -> AccountRow:
        """Tokens a calendar month; None: unlimited. Raises AccountNotFound."""
        return self._change_account(account_id, lambda account: account.set_budget(tokens))

    def set_account_spend_limit(self, account_id: str, micro_usd: int | None) -> AccountRow:
        """A UTC day; None: none. Raises AccountNotFound."""
        return self._change_account(account_id, lambda account: account.set_spend_limit(micro_usd))

    def set_platform_spend_limit(self, micro_usd: int | None) -> None:
        """A UTC day, of all accounts together; None: none."""
        self._catch_up()
        known = self.table.knows_platform_settings
        settings = self._store.load(PlatformSettings, PLATFORM_ID) if known else PlatformSettings()
        settings.set_spend_limit(micro_usd)
        self._save(settings)

    def list_accounts(self) -> list[AccountRow]:
        return self.table.accounts()

    # Keys

    def create_key(self, account_id: str, name: str) -> NewKey:
        """Raises AccountNotFound, TooManyKeys or InvalidName."""
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

    def set_key_budget(self, account_id: str, key_id: str, tokens: int | None) -> KeyRow:
        """Raises AccountNotFound, KeyNotFound (also for another account's), KeyIsRevoked."""
        if self._key(key_id).account_id != self._account(account_id).id:
            raise KeyNotFound(f"The account {account_id} has no key {key_id!r}.")
        return self._change_key(key_id, lambda key: key.set_budget(tokens))

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
        self._catch_up()
        id = parse(ACCOUNT, account_id)
        row = self.table.account(id) if id else None
        if row is None:
            raise AccountNotFound(f"There is no account {account_id!r}.")
        return row

    def _key(self, key_id: str) -> KeyRow:
        self._catch_up()
        id = parse(KEY, key_id)
        row = self.table.key(id) if id else None
        if row is None:
            raise KeyNotFound(f"There is no key {key_id!r}.")
        return row

    def _save(self, aggregate: Account | ApiKey | PlatformSettings) -> None:
        events = aggregate.collect_events()
        self._unsure = True
        positions = self._store.append(events)
        self._unsure = False
        for position, event in zip(positions, events, strict=True):
            self.table.apply(position, event)

    def _catch_up(self) -> None:
        if self._unsure:
            for position, event in self._store.read_log(after=self.version):
                self.table.apply(position, event)
            self._unsure = False


class AccountNotFound(Refused):
    pass


class KeyNotFound(Refused):
    pass


class TooManyKeys(Refused):
    pass
