"""`acs budget` and `acs spend-limit`: what accounts and keys may use. In force from the next request on."""

from __future__ import annotations

import argparse

from acs.platform.cli.account import COLUMNS as ACCOUNT_COLUMNS
from acs.platform.cli.account import ID as ACCOUNT_ID
from acs.platform.cli.client import ask
from acs.platform.cli.key import COLUMNS as KEY_COLUMNS
from acs.platform.cli.output import add_json, example, print_rows


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = commands.add_parser("budget", help="how many tokens an account, or a key of it, may use in a month")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")
    budget = verbs.add_parser(
        "set",
        help="tokens of a calendar month (UTC), until changed",
        **example(f"acs budget set --account {ACCOUNT_ID} --tokens 5000000"),
    )
    budget.add_argument("--account", required=True, metavar="ID", help="acct_…")
    budget.add_argument("--key", metavar="ID", help="key_…: a smaller budget of this key alone")
    budget.add_argument("--tokens", required=True, metavar="N", type=_limit, help="a whole number, or none: no limit")
    budget.set_defaults(handler=_set_budget)

    words = commands.add_parser("spend-limit", help="what an account, or all together, may spend in a day")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")
    spend = verbs.add_parser(
        "set",
        help="micro-dollars of a UTC day, until changed",
        **example("acs spend-limit set --platform --micro-usd 20000000"),
    )
    whose = spend.add_mutually_exclusive_group(required=True)
    whose.add_argument("--account", metavar="ID", help="acct_…")
    whose.add_argument("--platform", action="store_true", help="all accounts together")
    spend.add_argument("--micro-usd", required=True, metavar="N", type=_limit, help="a whole number, or none: no limit")
    spend.set_defaults(handler=_set_spend_limit)
    for verb in (budget, spend):
        add_json(verb)


def _limit(text: str) -> str:
    if text != "none" and not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor none")
    return text


def _set_budget(args: argparse.Namespace) -> int:
    if args.key:
        key = ask("budget.set_of_key", account=args.account, id=args.key, limit=args.tokens)
        print_rows((*KEY_COLUMNS, "budget_tokens"), [key], as_json=args.json)
    else:
        account = ask("budget.set", account=args.account, limit=args.tokens)
        print_rows((*ACCOUNT_COLUMNS, "budget_tokens"), [account], as_json=args.json)
    return 0


def _set_spend_limit(args: argparse.Namespace) -> int:
    if args.platform:
        ask("spend_limit.set_of_platform", limit=args.micro_usd)
        row = {"id": "all together", "spend_limit_micro_usd": args.micro_usd}
    else:
        row = ask("spend_limit.set", account=args.account, limit=args.micro_usd)
    print_rows(("id", "spend_limit_micro_usd"), [row], as_json=args.json)
    return 0
