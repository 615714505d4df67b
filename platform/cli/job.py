"""`acs job`: leave Completions to the server, one or a file of them, and fetch the results."""

from __future__ import annotations

import argparse
from pathlib import Path

from acs.platform.cli.output import add_json, example

ID = "job_019aceed3c4f7f0bb1e6a1d2c3b4a5f6"
BODY = '\'{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2}\''
ENDED = ("succeeded", "failed", "cancelled")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = commands.add_parser("job", help="leave Completions to the server and fetch their results")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")

    submit = verbs.add_parser(
        "submit",
        help="one request, or a file of them",
        **example(f"acs job submit {BODY}\n  acs job submit --file requests.jsonl --wait --out results.jsonl"),
    )
    submit.add_argument("body", nargs="?", metavar="BODY", help="a Completion request in JSON; - reads it from stdin")
    submit.add_argument("--file", type=Path, metavar="PATH", help="a Completion request in each line")
    submit.add_argument("--wait", action="store_true", help="until all have ended")
    submit.add_argument("--out", type=Path, metavar="PATH", help="with --file and --wait: a line for each result")
    submit.set_defaults(handler=_do, verb="submit")

    listing = verbs.add_parser("list", help="your account's Jobs, newest first", **example("acs job list --limit 5"))
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="1 to 100")
    listing.add_argument("--after", metavar="ID", help="only those made before this one")
    listing.add_argument("--status", choices=("queued", "running", *ENDED))
    listing.set_defaults(handler=_do, verb="list")

    show = verbs.add_parser("show", help="a Job's status", **example(f"acs job show {ID}"))
    show.set_defaults(handler=_do, verb="show")
    wait = verbs.add_parser("wait", help="until it has ended", **example(f"acs job wait {ID}"))
    wait.set_defaults(handler=_do, verb="wait")
    result = verbs.add_parser("result", help="the Completion, in JSON", **example(f"acs job result {ID}"))
    result.set_defaults(handler=_do, verb="result")
    cancel = verbs.add_parser("cancel", help="end it now", **example(f"acs job cancel {ID}"))
    cancel.set_defaults(handler=_do, verb="cancel")
    for verb in (show, wait, result, cancel):
        verb.add_argument("id", metavar="ID", help="job_…")
    for verb in (submit, listing, show, wait, result, cancel):
        add_json(verb)


def _do(args: argparse.Namespace) -> int:
    from acs.platform.cli import job_commands  # it brings httpx, which takes a while

    return job_commands.VERBS[args.verb](args)
