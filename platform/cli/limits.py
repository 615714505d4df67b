"""`acs limits`: the numbers of the contract as this environment sets them."""

from __future__ import annotations

import argparse

from acs.platform.cli.output import add_json, example, print_rows
from acs.platform.settings import Settings


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "limits", help="every limit, its value and its meaning", **example("ACS_LIMIT_CHOICES=64 acs limits")
    )
    add_json(parser)
    parser.set_defaults(handler=_limits)


def _limits(args: argparse.Namespace) -> int:
    table = Settings.from_environ().limits.table()
    rows = [{"name": name, "value": value, "meaning": meaning} for name, value, meaning in table]
    print_rows(("name", "value", "meaning"), rows, as_json=args.json)
    return 0
