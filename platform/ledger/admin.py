"""What the operator may ask of the ledger at its door, the admin socket.

Asked `{"do": "key.revoke", "id": "key_…"}`, it answers `{"ok": …}` or `{"error": "one sentence"}`. Nothing that is
asked or answered is logged: a new key travels here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from acs.events.ids import ACCOUNT, KEY, show
from acs.events.refused import Refused
from acs.platform import door
from acs.platform.door import listen as listen  # asked for here by who opens this door
from acs.platform.ledger.accounts import Accounts, NewKey
from acs.platform.ledger.key_table import AccountRow, KeyRow
from acs.platform.ledger.local_key import EnvFileUnavailable
from acs.platform.ledger.service import LedgerService
from acs.platform.ledger.watchers import ChangeNotSeen
from acs.storage.event_store import EventStoreConflict, EventStoreUnavailable

SAID_TO_THE_OPERATOR = (Refused, EventStoreUnavailable, EventStoreConflict, ChangeNotSeen, EnvFileUnavailable)

_log = logging.getLogger(__name__)

# name → (the ledger's command, the fields it takes in order)
CHANGES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "account.create": (Accounts.create_account, ("name", "email")),
    "account.suspend": (Accounts.suspend_account, ("id",)),
    "account.restore": (Accounts.restore_account, ("id",)),
    "key.create": (Accounts.create_key, ("account", "name")),
    "key.rename": (Accounts.rename_key, ("id", "name")),
    "key.disable": (Accounts.disable_key, ("id",)),
    "key.enable": (Accounts.enable_key, ("id",)),
    "key.revoke": (Accounts.revoke_key, ("id",)),
}
LIMITS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {  # a number, or "none"
    "budget.set": (Accounts.set_account_budget, ("account",)),
    "budget.set_of_key": (Accounts.set_key_budget, ("account", "id")),
    "spend_limit.set": (Accounts.set_account_spend_limit, ("account",)),
    "spend_limit.set_of_platform": (Accounts.set_platform_spend_limit, ()),
}
QUESTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "account.list": (Accounts.list_accounts, ()),
    "key.list": (Accounts.list_keys, ("account",)),
}


async def serve(listening: socket.socket, service: LedgerService) -> asyncio.Server:
    return await door.serve(listening, partial(answer, service))


async def answer(service: LedgerService, line: bytes) -> dict[str, Any]:
    """Never raises: a fault of ours is logged by its kind and answered as one."""
    try:
        asked = json.loads(line)
        name, command, arguments = _understood(asked)
    except (ValueError, RecursionError):
        return {"error": "The request was not understood. Are the `acs` command and the server of one version?"}
    try:
        if name in QUESTIONS:
            return {"ok": shown(command(service.accounts, *arguments))}
        result = await service.change(lambda: command(service.accounts, *arguments))
        if name in ("budget.set", "budget.set_of_key"):
            await service.note_budgets(asked["account"])
        return {"ok": shown(result)}
    except SAID_TO_THE_OPERATOR as error:
        return {"error": str(error)}
    except Exception as error:
        _log.error("%s failed: %s", name, type(error).__name__)
        return {"error": f"The server failed at {name} ({type(error).__name__}); the command may not have been done."}


def _understood(asked: Any) -> tuple[str, Callable[..., Any], list[Any]]:
    """Raises ValueError."""
    name = asked.get("do") if isinstance(asked, dict) else None
    if not isinstance(name, str) or name not in CHANGES | LIMITS | QUESTIONS:
        raise ValueError("no such command")
    command, fields = (CHANGES | LIMITS | QUESTIONS)[name]
    arguments = [asked.get(field) for field in fields]
    if not all(isinstance(argument, str) for argument in arguments):
        raise ValueError("a field is missing")
    if name in LIMITS:
        arguments.append(None if asked.get("limit") == "none" else int(asked.get("limit", "")))
    return name, command, arguments


def shown(result: Any) -> Any:
    """What the operator sees of a row. A digest is of no use to anyone and stays inside."""
    match result:
        case None:
            return None
        case list():
            return [shown(row) for row in result]
        case NewKey():
            return {**shown(result.row), "key": result.secret}
        case AccountRow():
            return {
                "id": show(ACCOUNT, result.id),
                "name": result.name,
                "email": result.email,
                "state": "suspended" if result.suspended else "active",
                "budget_tokens": result.budget_tokens,
                "spend_limit_micro_usd": result.spend_limit_micro_usd,
                "created_at": result.created_at.isoformat(timespec="seconds"),
            }
        case KeyRow():
            return {
                "id": show(KEY, result.id),
                "account": show(ACCOUNT, result.account_id),
                "name": result.name,
                "prefix": result.prefix,
                "state": result.state,
                "budget_tokens": result.budget_tokens,
                "created_at": result.created_at.isoformat(timespec="seconds"),
            }
    raise TypeError(f"nothing is known about showing a {type(result).__name__}")
