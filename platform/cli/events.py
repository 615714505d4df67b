"""`acs events`: what happened, as JSON lines, from the store itself."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import Any

from acs.platform.cli.account import ID
from acs.platform.cli.moments import moment
from acs.platform.cli.output import add_json, example, print_json
from acs.platform.settings import Settings

POLL_S = 0.2  # of --follow


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "events",
        help="what happened, one JSON object an event; with or without a server",
        **example(f"acs events --kind HoldPlaced --account {ID} --since 2026-11-03T12:00Z"),
    )
    parser.add_argument("--follow", action="store_true", help="go on with those that happen, until Ctrl-C")
    parser.add_argument("--account", metavar="ID", help="acct_…: only its own, its keys' and its ledgers'")
    parser.add_argument("--kind", help="HoldPlaced, or Account.Created where several have a Created")
    parser.add_argument("--since", metavar="TIME", type=moment, help="not before; 2026-11-03T12:00Z")
    parser.add_argument("--until", metavar="TIME", type=moment, help="before; then the command ends")
    add_json(parser)  # they always are
    parser.set_defaults(handler=_events)


def _events(args: argparse.Namespace) -> int:
    from acs.platform.cli.private_views import events
    from acs.platform.event_lines import EventLines

    lines, read = EventLines(), 0
    with events(Settings.from_environ()) as store:
        while True:
            for position, event in store.read_log(after=read):
                read = position
                line = lines.line(position, event)
                if args.until and datetime.fromisoformat(line["at"]) >= args.until:
                    return 0
                if _wanted(line, args):
                    print_json(line)
            if not args.follow:
                return 0
            while store.head() == read:
                time.sleep(POLL_S)


def _wanted(line: dict[str, Any], args: argparse.Namespace) -> bool:
    return (
        (args.account is None or line.get("account_id") == args.account)
        and (args.kind is None or args.kind in (line["kind"], line["kind"].partition(".")[2]))
        and (args.since is None or datetime.fromisoformat(line["at"]) >= args.since)
    )
