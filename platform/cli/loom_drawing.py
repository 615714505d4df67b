"""A Loom as lines for a terminal: a Node a line, under its parent, each token the greener the likelier it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

# From dark red to green of a terminal's 256 colours, for a probability from 0 to 1.
SCALE = (88, 124, 160, 166, 172, 178, 148, 112, 76, 40)
RESET = "\x1b[0m"
UNKNOWN = "\x1b[2m"
PENDING = {"pending": "… pending", "running": "… running", "failed": "✗ failed"}


def drawn(nodes: Sequence[dict[str, Any]], *, colour: bool) -> Iterator[str]:
    """`nodes`: of GET /v1/looms/{loom_id}."""
    children: dict[str | None, list[dict[str, Any]]] = {}
    for node in nodes:
        children.setdefault(node["parent_id"], []).append(node)
    waiting = [(node, "", "") for node in children.get(None, [])]
    while waiting:
        node, branch, below = waiting.pop()
        yield branch + _line(node, colour=colour)
        own = children.get(node["id"], [])
        for number in range(len(own) - 1, -1, -1):  # the first one is taken first
            last = number == len(own) - 1
            waiting.append((own[number], below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))


def _line(node: dict[str, Any], *, colour: bool) -> str:
    at = f"@{node['parent_token']} " if node["parent_token"] is not None else ""
    if node["status"] != "done":
        error = f": {node['error']['message']}" if node["error"] else ""
        return f"{at}{PENDING[node['status']]}{error}  {node['id']}"
    known = node["logprobs"]
    if known is None:
        return f"{at}{_escaped(node['text'])}  {_dim(node['id'], colour)}"
    total = math.fsum(known["token_logprobs"])
    pieces = zip(known["tokens"], known["token_logprobs"], strict=True)
    text = "".join(_tinted(token, logprob) if colour else _escaped(token) for token, logprob in pieces)
    return f"{at}{text}  {_dim(f'{total:.2f}', colour)} {_dim(node['id'], colour)}"


def _tinted(token: str, logprob: float) -> str:
    step = min(len(SCALE) - 1, int(math.exp(logprob) * len(SCALE)))
    return f"\x1b[38;5;{SCALE[step]}m{_escaped(token)}{RESET}"


def _dim(text: str, colour: bool) -> str:
    return f"{UNKNOWN}{text}{RESET}" if colour else text


def _escaped(text: str) -> str:
    """On one line, and nothing in it that a terminal would obey."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
