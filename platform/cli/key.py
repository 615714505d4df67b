"""`acs key`: who may ask. A key is printed once, when it is made."""

from __future__ import annotations

import argparse

from acs.platform.cli.account import ID as ACCOUNT_ID
from acs.platform.cli.client import ask
from acs.platform.cli.output import add_json, example, print_json, print_rows

COLUMNS = ("id", "name", "prefix", "state", "created_at")
ID = "key_019aceed3c4f7a0e92d15c6b7a8f9e0d"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = commands.add_parser("key", help="create, list, rename, disable, enable and revoke API keys")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")

    create = verbs.add_parser(
        "create",
        help="make a key; prints it, this once",
        **example(f"acs key create --account {ACCOUNT_ID} --name laptop"),
    )
    create.add_argument("--account", required=True, metavar="ID", help="acct_…")
    create.add_argument("--name", required=True, help="1 to 64 characters")
    create.set_defaults(handler=_create)

    listing = verbs.add_parser(
        "list", help="the keys of an account", **example(f"acs key list --account {ACCOUNT_ID} --json")
    )
    listing.add_argument("--account", required=True, metavar="ID", help="acct_…")
    listing.set_defaults(handler=_list)

    rename = verbs.add_parser("rename", help="give a key another name", **example(f"acs key rename {ID} --name desk"))
    rename.add_argument("--name", required=True, help="1 to 64 characters")
    disable = verbs.add_parser("disable", help="refuse a key until it is enabled", **example(f"acs key disable {ID}"))
    enable = verbs.add_parser("enable", help="accept a disabled key again", **example(f"acs key enable {ID}"))
    revoke = verbs.add_parser("revoke", help="refuse a key for good", **example(f"acs key revoke {ID}"))
    for name, verb in {"rename": rename, "disable": disable, "enable": enable, "revoke": revoke}.items():
        verb.add_argument("id", metavar="ID", help="key_…")
        verb.set_defaults(handler=_change, change=f"key.{name}")
    for verb in (create, listing, rename, disable, enable, revoke):
        add_json(verb)


def _create(args: argparse.Namespace) -> int:
    key = ask("key.create", account=args.account, name=args.name)
    print_json({"id": key["id"], "key": key["key"]})
    return 0


def _list(args: argparse.Namespace) -> int:
    print_rows(COLUMNS, ask("key.list", account=args.account), as_json=args.json)
    return 0


def _change(args: argparse.Namespace) -> int:
    fields = {"name": args.name} if "name" in args else {}
    print_rows(COLUMNS, [ask(args.change, id=args.id, **fields)], as_json=args.json)
    return 0
