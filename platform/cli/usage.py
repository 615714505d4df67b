"""`acs usage`: tokens and money of a month, of one account or of all."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from acs.platform.cli.account import ID
from acs.platform.cli.client import ask_views, server_runs
from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.moments import moment, month
from acs.platform.cli.output import add_json, example, print_json, print_table
from acs.platform.settings import Settings

TOKENS = ("budget_tokens", "held_tokens", "charged_tokens", "left_tokens")
ACCOUNT_COLUMNS = ("account_id", "name", *TOKENS, "spend_micro_usd")
KEY_COLUMNS = ("key_id", "name", *TOKENS, "requests", "spend_micro_usd")
MODEL_COLUMNS = ("model", "requests", "prompt_tokens", "completion_tokens", "charged_tokens", "spend_micro_usd")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "usage",
        help="tokens and money of a month; with or without a server",
        **example(f"acs usage --account {ID} --at 2026-11-03T12:00Z"),
    )
    parser.add_argument("--account", metavar="ID", help="acct_…: by key and by model; all accounts when left out")
    parser.add_argument("--month", metavar="M", type=month, help="as 2026-11, UTC; the present one when left out")
    parser.add_argument("--at", metavar="TIME", type=moment, help="as the events were then; 2026-11-03T12:00Z")
    add_json(parser)
    parser.set_defaults(handler=_usage)


def _usage(args: argparse.Namespace) -> int:
    settings = Settings.from_environ()
    asked = args.month or f"{args.at or datetime.now(UTC):%Y-%m}"
    if args.at is None and server_runs(settings):
        whose = {"account": args.account} if args.account else {}
        usage = ask_views("usage", month=asked, **whose)
    else:
        usage = _from_events(settings, args.account, asked, args.at)
    if args.json:
        print_json(usage)
    elif args.account:
        _print_account(usage)
    else:
        _print(ACCOUNT_COLUMNS, usage)
    return 0


def _from_events(settings: Settings, account: str | None, month: str, at: datetime | None) -> Any:
    from acs.platform.cli.private_views import private_views
    from acs.storage.views.usage import usage_of, usage_of_all

    with private_views(settings, until=at) as private:
        if account is None:
            return usage_of_all(private.views, month)
        usage = usage_of(private.views, account, month)
    if usage is None:
        raise CommandFailed(f"There is no account {account!r}{' then' if at else ''}.")
    return usage


def _print_account(usage: dict[str, Any]) -> None:
    _print(("month", *TOKENS, "spend_micro_usd"), [usage])
    for columns, rows in ((KEY_COLUMNS, usage["by_key"]), (MODEL_COLUMNS, usage["by_model"])):
        if rows:
            print()
            _print(columns, rows)


def _print(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """No budget is no limit."""
    print_table(columns, [["unlimited" if row[column] is None else row[column] for column in columns] for row in rows])
