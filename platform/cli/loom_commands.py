"""What the verbs of `acs loom` do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from acs.platform.cli.api import Api, checked, once, run
from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.loom import SAMPLING
from acs.platform.cli.loom_drawing import drawn
from acs.platform.cli.loom_file import read_file
from acs.platform.cli.output import print_json, print_rows
from acs.platform.cli.progress import Progress

HEAD = ("id", "title", "version", "created_at")
WAIT_S = 30


def new(args: argparse.Namespace) -> int:
    body = {"prompt": args.prompt, "title": args.title, "model": args.model}
    return run(lambda api: _planted(api, body, args))


def list_(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        page = await api.asked("GET", f"/looms?limit={args.limit}")
        print_rows(HEAD, page["data"], as_json=args.json)
        return 0

    return run(ask)


def branch(args: argparse.Namespace) -> int:
    """Exit status 0 when all its Nodes are done."""

    async def ask(api: Api) -> int:
        loom = await _loom(api, args.id)
        root = loom["nodes"][0]
        names = ("at_token", "n", "max_tokens", *SAMPLING, "seed", "logprobs")
        body = {"model": args.model or root["model"], **{name: getattr(args, name) for name in names}}
        path = f"/looms/{args.id}/nodes/{args.node or root['id']}/branch"
        asked = await api.asked("POST", path, json=body, headers=once())
        nodes = await _until_ended(api, loom, [node["id"] for node in asked["nodes"]])
        if args.json:
            print_json(nodes)
        else:
            print_rows(
                ("id", "status", "text"), [{**node, "text": repr(node["text"])} for node in nodes], as_json=False
            )
        return 0 if all(node["status"] == "done" for node in nodes) else 1

    return run(ask)


def show(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        if args.node is not None:
            answer = await api.ask("GET", f"/looms/{args.id}?format=text&node={args.node}")
            if answer.status_code >= 400:
                checked(answer)
            print(answer.text)
            return 0
        loom = await _loom(api, args.id)
        if args.json:
            print_json(loom)
        else:
            colour = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
            print("\n".join(drawn(loom["nodes"], colour=colour)))
        return 0

    return run(ask)


def export(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        print(json.dumps(await _loom(api, args.id), ensure_ascii=False, indent=1))
        return 0

    return run(ask)


def import_(args: argparse.Namespace) -> int:
    title, nodes = read_file(args.file, args.root)
    body = {"title": args.title or title, "model": args.model or nodes[0].get("model"), "nodes": nodes}
    return run(lambda api: _planted(api, body, args))


async def _planted(api: Api, body: dict[str, Any], args: argparse.Namespace) -> int:
    loom = await api.asked("POST", "/looms", json=body, headers=once())
    if args.json:
        print_json(loom)
    else:
        print_rows((*HEAD, "nodes"), [{**loom, "nodes": len(loom["nodes"])}], as_json=False)
    return 0


async def _loom(api: Api, loom_id: str) -> Any:
    return await api.asked("GET", f"/looms/{loom_id}")


async def _until_ended(api: Api, loom: dict[str, Any], node_ids: list[str]) -> list[dict[str, Any]]:
    """The Nodes, by following the Loom."""
    nodes: dict[str, dict[str, Any]] = {}
    since = loom["version"]
    with Progress() as progress:
        while True:
            ended = [id for id in node_ids if nodes.get(id, {}).get("status") in ("done", "failed")]
            progress.say(f"{len(ended)} of {len(node_ids)} Nodes")
            if len(ended) == len(node_ids):
                return [nodes[id] for id in node_ids]
            changed = await api.asked("GET", f"/looms/{loom['id']}?since={since}&wait={WAIT_S}")
            since = changed["version"]
            nodes |= {node["id"]: node for node in changed["nodes"]}
            if gone := set(node_ids) & set(changed["deleted"]):
                raise CommandFailed(f"{min(gone)} was deleted before it had ended.")


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "new": new,
    "list": list_,
    "branch": branch,
    "show": show,
    "export": export,
    "import": import_,
}
