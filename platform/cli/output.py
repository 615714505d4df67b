"""How answers look on the terminal: tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(answer: Any) -> None:
    print(to_json(answer))


def to_json(answer: Any) -> str:
    return json.dumps(answer, ensure_ascii=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print_cells([[column.upper().replace("_", " ") for column in columns], *rows])


def print_cells(rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; the last one is not padded."""
    cells = [[_shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _shown(cell: Any) -> str:
    return "none" if cell is None else str(cell)


def print_rows(columns: Sequence[str], rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(columns, [[row[column] for column in columns] for row in rows])


def print_one(columns: Sequence[str], row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
    else:
        print_rows(columns, [row], as_json=False)


def example(command: str) -> dict[str, Any]:
    """Keyword arguments of a parser whose help ends with an example."""
    return {"epilog": f"example:\n  {command}", "formatter_class": argparse.RawDescriptionHelpFormatter}
