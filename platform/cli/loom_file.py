"""Files that hold a Loom: our own export, and the trees of socketteer's loom, which many tools read and write.

That one is {"root": Node}, a Node {"text", "children": [Node, …], …}; the rest of it is about how it looks there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from acs.platform.cli.errors import CommandFailed

Nodes = list[dict[str, Any]]


def read_file(path: Path, root: str | None) -> tuple[str | None, Nodes]:
    """Its title, and Nodes as POST /v1/looms takes them. `root`: a text for a tree whose root has none. Raises
    CommandFailed.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
        raise CommandFailed(f"{path} cannot be read: {reason}.") from None
    match found:
        case {"object": "loom", "nodes": list(nodes)}:
            return found.get("title"), _done(nodes)
        case {"root": {"children": list()}}:
            return path.stem, _flattened(found["root"], root)
    raise CommandFailed(f"{path} is neither an export of `acs loom export` nor a tree of socketteer's loom.")


def _done(nodes: Nodes) -> Nodes:
    """What has not grown, and what has failed, has nothing that could be taken along."""
    return [node for node in nodes if node["status"] == "done"]


def _flattened(root: dict[str, Any], root_text: str | None) -> Nodes:
    """Parents before their children. Nodes without text are left out: what continues them continues their parent."""
    if root_text is not None:
        root = {"text": root_text, "children": [root]}
    while not root.get("text"):
        children = root.get("children", [])
        if len(children) != 1:
            raise CommandFailed("The tree's root has no text and not one child: give it one with --root TEXT.")
        root = children[0]
    nodes: Nodes = []
    waiting: list[tuple[dict[str, Any], str | None]] = [(root, None)]
    for node, parent_id in waiting:  # grows meanwhile
        own_id = parent_id
        if text := node.get("text"):
            own_id = str(len(nodes))
            nodes.append({"id": own_id, "parent_id": parent_id, "text": text})
        waiting += [(child, own_id) for child in node.get("children", [])]
    return nodes
