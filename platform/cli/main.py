"""`acs`: the operator's command. Each word is a module with `register(subparsers)`; none imports anything heavy there,
so that an answer takes well under a second. A command is a `handler(args)` that returns the exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from acs.platform.cli import (
    account,
    budget,
    events,
    export,
    harvest,
    job,
    key,
    limits,
    loom,
    model,
    query,
    serve,
    usage,
    verify,
)
from acs.platform.cli.errors import CommandFailed
from acs.platform.settings import SettingsError

WORDS = (serve, account, key, budget, usage, job, harvest, loom, events, query, export, verify, model, limits)


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return int(args.handler(args))
    except (CommandFailed, SettingsError) as error:
        print(f"acs: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `acs key list | head`
        sys.stderr.close()
        return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acs", description="Serve base language models for research, and say who may ask."
    )
    words = parser.add_subparsers(required=True, metavar="COMMAND")
    for word in WORDS:
        word.register(words)
    return parser


if __name__ == "__main__":
    sys.exit(main())
