"""The operator's door: a Unix socket that only the server's user can open. One JSON line asks, one answers.

Asked `{"do": "key.revoke", "id": "key_…"}`, it answers `{"ok": …}` or `{"error": "one sentence"}`. Nothing that is
asked or answered is logged: a new key travels here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acs.events.ids import ACCOUNT, KEY, show
from acs.events.refused import Refused
from acs.platform.ledger.accounts import Accounts, NewKey
from acs.platform.ledger.key_table import AccountRow, KeyRow
from acs.platform.ledger.local_key import EnvFileUnavailable
from acs.platform.ledger.service import LedgerService
from acs.platform.ledger.watchers import ChangeNotSeen
from acs.platform.unix_socket import short_address
from acs.storage.event_store import EventStoreConflict, EventStoreUnavailable

LINE_BYTES = 16_384  # of a request
READ_TIMEOUT_S = 10  # for the one line of a request
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


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 600 from its first moment; replaces what lay there. Raises OSError."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with tempfile.TemporaryDirectory(prefix=".door-", dir=path.parent) as folder:  # mode 700
        made = Path(folder) / path.name
        with short_address(made) as address:
            door.bind(address)
        made.chmod(0o600)
        door.listen()
        os.replace(made, path)
    door.setblocking(False)
    return door


async def serve(door: socket.socket, service: LedgerService) -> asyncio.Server:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                line = await reader.readline()
            writer.write(json.dumps(await answer(service, line)).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # whoever asked hung up, or sent no line of a bearable length
        finally:
            writer.close()

    return await asyncio.start_unix_server(converse, sock=door, limit=LINE_BYTES)


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
