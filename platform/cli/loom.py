"""`acs loom`: plant trees of continuations, grow them, look at them, and take them from place to place."""

from __future__ import annotations

import argparse
from pathlib import Path

from acs.platform.cli.output import add_json, example

LOOM, NODE = "loom_019aceed3c4f7f0bb1e6a1d2c3b4a5f6", "node_019aceed3c507f0bb1e6a1d2c3b4a5f6"
SAMPLING = ("temperature", "top_p", "min_p")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = commands.add_parser("loom", help="grow trees of continuations")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")

    new = verbs.add_parser("new", help="plant one", **example('acs loom new "The sky is" --title Skies'))
    new.add_argument("prompt", metavar="PROMPT", help="the root's text")
    new.add_argument("--title")
    new.add_argument("--model", help="whose tokenizer makes the tokens; default: the first")

    listing = verbs.add_parser("list", help="your account's Looms, newest first", **example("acs loom list"))
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="1 to 100")

    branch = verbs.add_parser("branch", help="grow it", **example(f"acs loom branch {LOOM} --n 4 --max-tokens 16"))
    branch.add_argument("id", metavar="ID", help="loom_…")
    branch.add_argument("--node", metavar="NODE", help="what to continue; default: the root")
    branch.add_argument("--model", help="default: the root's")
    branch.add_argument("--at-token", type=int, metavar="K", help="after the first K tokens of the Node")
    branch.add_argument("--n", type=int, default=1, help="how many continuations, 1 to 64")
    branch.add_argument("--max-tokens", type=int, default=16, metavar="N", help="of each; default 16")
    for name in SAMPLING:
        branch.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X")
    branch.add_argument("--seed", type=int, metavar="N")
    branch.add_argument("--logprobs", type=int, default=1, metavar="K", help="likeliest tokens; default 1")

    show = verbs.add_parser(
        "show", help="draw it, the likelier a token the greener", **example(f"acs loom show {LOOM}")
    )
    show.add_argument("id", metavar="ID", help="loom_…")
    show.add_argument("--node", metavar="NODE", help="the text of the path to this Node alone")
    show.add_argument("--color", choices=("auto", "always", "never"), default="auto")

    export = verbs.add_parser("export", help="as JSON", **example(f"acs loom export {LOOM} > skies.json"))
    export.add_argument("id", metavar="ID", help="loom_…")

    take = verbs.add_parser(
        "import", help="from `export`, or from a file of socketteer's loom", **example("acs loom import skies.json")
    )
    take.add_argument("file", type=Path, metavar="FILE")
    take.add_argument("--title", help="default: the file's")
    take.add_argument("--model", help="whose tokenizer makes the tokens; default: the root's, else the first")
    take.add_argument("--root", metavar="TEXT", help="for a tree whose root has no text")

    for verb, parser in (
        ("new", new),
        ("list", listing),
        ("branch", branch),
        ("show", show),
        ("export", export),
        ("import", take),
    ):
        parser.set_defaults(handler=_do, verb=verb)
        add_json(parser)


def _do(args: argparse.Namespace) -> int:
    from acs.platform.cli import loom_commands  # it brings httpx, which takes a while

    return loom_commands.VERBS[args.verb](args)
