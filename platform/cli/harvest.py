"""`acs harvest`: read the residual stream of many prompts into Parquet files, fetch them, and check them."""

from __future__ import annotations

import argparse
from pathlib import Path

from acs.platform.cli.output import add_json, example

ID = "hrv_019aceed3c4f7f0bb1e6a1d2c3b4a5f6"
BODY = '\'{"model": "smollm2-135m", "prompts": ["The sky is", "Water is"], "layers": [10, 20]}\''


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = commands.add_parser("harvest", help="read the residual stream of many prompts into files")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")

    submit = verbs.add_parser(
        "submit",
        help="a request, or a file of prompts",
        **example(
            f"acs harvest submit {BODY}\n  acs harvest submit --model toy --prompts texts.txt --layers all --wait"
        ),
    )
    submit.add_argument("body", nargs="?", metavar="BODY", help="a harvest request in JSON; - reads it from stdin")
    submit.add_argument("--model", metavar="ID", help="with --prompts")
    submit.add_argument(
        "--prompts", type=Path, metavar="PATH", help="a text in each line; of a .jsonl a text or a list of ids in JSON"
    )
    submit.add_argument("--layers", metavar="LIST", help='with --prompts: as 8,16,24, or "all"')
    submit.add_argument("--dry-run", action="store_true", help="only what it would cost")
    submit.add_argument("--wait", action="store_true", help="until it has ended")

    listing = verbs.add_parser("list", help="your account's harvests", **example("acs harvest list --limit 5"))
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="1 to 100")
    show = verbs.add_parser("show", help="a harvest's state", **example(f"acs harvest show {ID}"))
    wait = verbs.add_parser("wait", help="until it has ended", **example(f"acs harvest wait {ID}"))
    cancel = verbs.add_parser("cancel", help="end it now", **example(f"acs harvest cancel {ID}"))

    download = verbs.add_parser(
        "download", help="its files, checked; again: the rest", **example(f"acs harvest download {ID} --out harvest")
    )
    download.add_argument("--out", type=Path, metavar="PATH", help="a folder; the harvest's id unless given")
    verify = verbs.add_parser(
        "verify",
        help="some rows, read again by Completions and compared",
        **example("acs harvest verify harvest --sample 8"),
    )
    verify.add_argument("folder", type=Path, metavar="PATH", help="where it was downloaded to")
    verify.add_argument("--sample", type=int, default=8, metavar="N", help="prompts, drawn by chance")
    for verb in (show, wait, cancel, download):
        verb.add_argument("id", metavar="ID", help="hrv_…")
    parsers = {"submit": submit, "list": listing, "show": show, "wait": wait, "cancel": cancel}
    for name, verb in {**parsers, "download": download, "verify": verify}.items():
        add_json(verb)
        verb.set_defaults(handler=_do, verb=name)


def _do(args: argparse.Namespace) -> int:
    from acs.platform.cli import harvest_commands  # it brings httpx, which takes a while

    return harvest_commands.VERBS[args.verb](args)
