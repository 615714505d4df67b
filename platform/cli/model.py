"""`acs model`: which models the catalogue names, and whether their checkpoints lie on this machine's disk."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.output import add_json, example, print_rows
from acs.platform.settings import Settings

COLUMNS = ("id", "checkpoint", "prepared", "source")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = commands.add_parser("model", help="list the catalogue's models, prepare their checkpoints")
    verbs = words.add_subparsers(required=True, metavar="COMMAND")

    listing = verbs.add_parser("list", help="the models of the catalogue", **example("acs model list --json"))
    listing.set_defaults(handler=_list)

    prepare = verbs.add_parser(
        "prepare",
        help="fetch what is not on the disk yet",
        **example("acs model prepare smollm2-135m --verify"),
    )
    prepare.add_argument("ids", nargs="*", metavar="ID", help="models; all of the catalogue when left out")
    prepare.add_argument("--verify", action="store_true", help="check the SHA-256 of every file, and mend what differs")
    prepare.set_defaults(handler=_prepare)
    for verb in (listing, prepare):
        add_json(verb)


def _list(args: argparse.Namespace) -> int:
    from acs.platform.models import faults_of

    settings, catalogue = _settings_and_catalogue()
    rows = [_row(model, not faults_of(model, settings.models_dir)) for model in catalogue.values()]
    _print(rows, args)
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from acs.platform.models import ModelError, prepare

    settings, catalogue = _settings_and_catalogue()
    unknown = [model_id for model_id in args.ids if model_id not in catalogue]
    if unknown:
        known = ", ".join(catalogue)
        raise CommandFailed(f"The catalogue {settings.catalogue} has no model {unknown[0]}; it has {known}.")
    rows = []
    for model_id in args.ids or catalogue:
        try:
            prepare(catalogue[model_id], settings.models_dir, _say, verify=args.verify)
        except ModelError as error:
            raise CommandFailed(str(error)) from None
        rows.append(_row(catalogue[model_id], True))
    _print(rows, args)
    return 0


def _settings_and_catalogue() -> tuple[Settings, Any]:
    from acs.platform.catalogue import Catalogue, CatalogueError

    settings = Settings.from_environ()
    try:
        return settings, Catalogue.load(settings.catalogue)
    except CatalogueError as error:
        raise CommandFailed(str(error)) from None


def _row(model: Any, prepared: bool) -> dict[str, Any]:
    return {
        "id": model.id,
        "checkpoint": model.served_model_name,
        "prepared": prepared,
        "source": model.source,
    }


def _print(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    if not args.json:
        rows = [{**row, "prepared": "yes" if row["prepared"] else "no"} for row in rows]
    print_rows(COLUMNS, rows, as_json=args.json)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # standard output is the answer's
