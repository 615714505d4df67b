"""`acs account`: whose keys there are."""

from __future__ import annotations

import argparse

from acs.platform.cli.client import ask
from acs.platform.cli.output import add_json, example, print_json, print_rows

COLUMNS = ("id", "name", "email", "state", "created_at")
ID = "acct_019aceed3c4f7f0bb1e6a1d2c3b4a5f6"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = commands.add_parser("account", help="create, list, suspend and restore accounts")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")

    create = verbs.add_parser(
        "create", help="make an account; prints its id", **example("acs account create --name Ada --email ada@lab.org")
    )
    create.add_argument("--name", required=True, help="1 to 64 characters")
    create.add_argument("--email", required=True)
    create.set_defaults(handler=_create)

    listing = verbs.add_parser("list", help="every account", **example("acs account list --json"))
    listing.set_defaults(handler=_list)

    suspend = verbs.add_parser("suspend", help="refuse all keys of an account", **example(f"acs account suspend {ID}"))
    restore = verbs.add_parser("restore", help="end a suspension", **example(f"acs account restore {ID}"))
    for name, verb in {"suspend": suspend, "restore": restore}.items():
        verb.add_argument("id", metavar="ID", help="acct_…")
        verb.set_defaults(handler=_change, change=f"account.{name}")
    for verb in (create, listing, suspend, restore):
        add_json(verb)


def _create(args: argparse.Namespace) -> int:
    account = ask("account.create", name=args.name, email=args.email)
    print_json({"id": account["id"]})
    return 0


def _list(args: argparse.Namespace) -> int:
    print_rows(COLUMNS, ask("account.list"), as_json=args.json)
    return 0


def _change(args: argparse.Namespace) -> int:
    print_rows(COLUMNS, [ask(args.change, id=args.id)], as_json=args.json)
    return 0
