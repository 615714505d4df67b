"""The key of this machine's own user: an account `local` whose one secret lies in `$ACS_DATA/env`, and nowhere else."""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path

from acs.events.api_key import digest_of
from acs.events.ids import ACCOUNT, KEY, show
from acs.platform.ledger.accounts import KEYS_PER_ACCOUNT, Accounts
from acs.platform.ledger.key_table import AccountRow

NAME = "local"
EMAIL = "local@localhost"
BASE_VARIABLE, KEY_VARIABLE = "ACS_API_BASE", "ACS_API_KEY"


def ensure_local_key(accounts: Accounts, env_file: Path, base_url: str) -> None:
    """Afterwards the file exports `base_url` and an active key of account `local`: the one it held, if that still is
    one, or a new one. Raises EnvFileUnavailable.
    """
    account = _local_account(accounts)
    active = {key.digest for key in accounts.list_keys(show(ACCOUNT, account.id)) if key.state == "active"}
    secret = read_key(env_file)
    if secret is None or digest_of(secret) not in active:
        secret = _new_secret(accounts, account)
    _write(env_file, f"export {BASE_VARIABLE}={shlex.quote(base_url)}\nexport {KEY_VARIABLE}={shlex.quote(secret)}\n")


def read_key(env_file: Path) -> str | None:
    """The key in the file; None when there is no file or no key in it. Raises EnvFileUnavailable."""
    try:
        text = env_file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvFileUnavailable(f"{env_file} cannot be read: {error.strerror}.") from None
    values = [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"export {KEY_VARIABLE}=")]
    return values[-1].strip().strip("'\"") if values else None


def _local_account(accounts: Accounts) -> AccountRow:
    for account in accounts.list_accounts():
        if (account.name, account.email) == (NAME, EMAIL):
            return account
    return accounts.create_account(NAME, EMAIL)


def _new_secret(accounts: Accounts, account: AccountRow) -> str:
    account_id = show(ACCOUNT, account.id)
    unrevoked = [key for key in accounts.list_keys(account_id) if not key.revoked]
    if len(unrevoked) >= KEYS_PER_ACCOUNT:  # a lost file must not keep the server from starting
        oldest = min(unrevoked, key=lambda key: (key.name != NAME, key.created_at))
        accounts.revoke_key(show(KEY, oldest.id))
    return accounts.create_key(account_id, NAME).secret


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise EnvFileUnavailable(f"{path} cannot be written: {error.strerror}.") from None


class EnvFileUnavailable(Exception):
    pass
