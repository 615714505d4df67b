"""`acs verify`: whether the views say what the events say. The exit status is the answer."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.output import add_json, example, print_rows
from acs.platform.settings import Settings

SAME, DIFFERENT, NOT_VERIFIED = 0, 1, 2
COLUMNS = ("table", "row", "column", "in_views", "by_events")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="replay all events, compare every balance and every Hold with the views; with or without a server",
        description="Exit status 0: no difference; 1: differences, which are printed; 2: it could not be told.",
        **example("acs verify --json"),
    )
    add_json(parser)
    parser.set_defaults(handler=_verify)


def _verify(args: argparse.Namespace) -> int:
    from acs.platform.cli.private_views import EventsDoNotAddUp, private_views
    from acs.storage.views.verify import BrokenLog, differences

    try:
        with private_views(Settings.from_environ()) as private:
            found = [asdict(difference) for difference in differences(private.store, private.views)]
            events = private.views.position
    except (BrokenLog, EventsDoNotAddUp) as error:
        print(f"acs: {error}", file=sys.stderr)
        return DIFFERENT
    except CommandFailed as error:
        print(f"acs: {error}", file=sys.stderr)
        return NOT_VERIFIED
    if args.json or found:
        print_rows(COLUMNS, found, as_json=args.json)
    verdict = f"{len(found):,} differences" if found else "no difference"
    print(f"{events:,} events replayed: {verdict}.", file=sys.stderr)
    return DIFFERENT if found else SAME
