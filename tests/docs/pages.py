"""Reading our own pages: their blocks of code, their tables, and the shape of what they print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n(\s*)(?:^```(json|text)\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
# Objects whose keys are data: token texts, token ids.
_MAPS = ("top_logprobs", "prompt_logprobs")


@dataclass(frozen=True)
class Example:
    """A block that runs, and what the page says it prints (None: nothing said)."""

    page: Path
    line: int
    language: str  # bash or python
    code: str
    kind: str | None  # json or text
    printed: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def examples(page: Path) -> list[Example]:
    """The `bash` and `python` blocks of a page; a `json` or `text` block right after one is what it prints."""
    text = page.read_text(encoding="utf-8")
    return [
        Example(page, text.count("\n", 0, found.start()) + 1, found[1], found[2], found[4], found[5])
        for found in _BLOCK.finditer(text)
        if found[1] in ("bash", "python")
    ]


def table(page: Path, first_column: str) -> list[list[str]]:
    """The cells of the one table of a page that begins with this column, without its head."""
    lines = page.read_text(encoding="utf-8").splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    rows = []
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line[1:-1].split("|")])
    return rows


def shape(value: Any, name: str = "") -> Any:
    """What stays the same when only sampled texts, numbers and counts differ: keys in their order, types of leaves,
    and which kinds of items a list has.
    """
    if isinstance(value, dict):
        return [(key, shape(item, key)) for key, item in value.items()]
    if isinstance(value, list):
        in_maps = name in _MAPS
        return ["list", *_kinds(_map_shape(item) if in_maps and item else shape(item) for item in value)]
    if isinstance(value, bool) or value is None:
        return str(type(value).__name__)
    return "text" if isinstance(value, str) else "number"


def _map_shape(value: dict[str, Any]) -> Any:
    return ["map", *_kinds(map(shape, value.values()))]


def _kinds(items: Iterable[Any]) -> list[Any]:
    """The shapes of `items`, each once, in order of appearance."""
    kinds: list[Any] = []
    for item in items:
        if item not in kinds:
            kinds.append(item)
    return kinds


def events(text: str) -> list[Any]:
    """The data of a stream's events, parsed; `[DONE]` stays a text."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]
