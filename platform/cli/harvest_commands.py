"""What the verbs of `acs harvest` do."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acs.platform.cli.api import Api, once, run
from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.harvest_files import download_all
from acs.platform.cli.harvest_verify import verify_sample
from acs.platform.cli.input import parsed, request
from acs.platform.cli.output import print_json, print_one, print_rows
from acs.platform.cli.progress import Progress

COLUMNS = ("job_id", "status", "model", "n_prompts", "n_tokens", "created_at")
LOOK_S = 1.0
GOING_ON = ("pending", "running")
CLOSE = 0.999  # cosine below which a row is not what a Completion reads


def submit(args: argparse.Namespace) -> int:
    body = _body(args)

    async def ask(api: Api) -> int:
        if args.dry_run:
            print_json(await _asked(api, "POST", "?dry_run=true", json=body))
            return 0
        harvest = await _asked(api, "POST", "", json=body, headers=once())
        if args.wait:
            harvest = await _until_ended(api, harvest["job_id"])
        return _show(harvest, args)

    return run(ask)


def list_(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        page = await _asked(api, "GET", f"?limit={args.limit}")
        print_rows(COLUMNS, page["data"], as_json=args.json)
        return 0

    return run(ask)


def show(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        return _show(await _asked(api, "GET", f"/{args.id}"), args, judge=False)

    return run(ask)


def wait(args: argparse.Namespace) -> int:
    """Exit status 0 when it is done."""

    async def ask(api: Api) -> int:
        return _show(await _until_ended(api, args.id), args)

    return run(ask)


def cancel(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        return _show(await _asked(api, "DELETE", f"/{args.id}"), args, judge=False)

    return run(ask)


def download(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        harvest = await _asked(api, "GET", f"/{args.id}")
        if harvest["status"] != "done" or harvest.get("urls_expired"):
            raise CommandFailed(f"The harvest is {harvest['status']}; only a done one that has not expired has files.")
        folder = args.out or Path(args.id)
        print_json({"folder": str(folder), **await download_all(harvest["result"], folder)})
        return 0

    return run(ask)


def verify(args: argparse.Namespace) -> int:
    """Exit status 1 when a row is not what a Completion reads."""

    async def ask(api: Api) -> int:
        found = await verify_sample(api, args.folder, args.sample)
        print_json(found)
        return 0 if found["least_cosine"] >= CLOSE else 1

    return run(ask)


async def _asked(api: Api, method: str, path: str, **fields: Any) -> Any:
    return await api.asked(method, f"/harvest{path}", **fields)


async def _until_ended(api: Api, job_id: str) -> Any:
    began, first = time.monotonic(), None
    with Progress() as progress:
        while (harvest := await _asked(api, "GET", f"/{job_id}"))["status"] in GOING_ON:
            done = harvest.get("progress", {}).get("tokens_done", 0)
            if done and first is None:
                began, first = time.monotonic(), done
            rate = (done - (first or 0)) / (time.monotonic() - began) if done else 0.0
            progress.say(_state(harvest, rate))
            await asyncio.sleep(LOOK_S)
    return harvest


def _state(harvest: Any, rate: float) -> str:
    if harvest["status"] == "pending":
        return f"{harvest['job_id']} pending"
    progress = harvest["progress"]
    share = progress["tokens_done"] / harvest["n_tokens"]
    left = f", {(harvest['n_tokens'] - progress['tokens_done']) / rate:.0f} s left" if rate else ""
    bar = "█" * round(20 * share) + "░" * (20 - round(20 * share))
    prompts = f"{progress['prompts_done']:,} of {harvest['n_prompts']:,} prompts"
    return f"{bar} {prompts}, {rate:,.0f} tokens/s, {progress['bytes_done'] / 1e6:,.1f} MB{left}"


def _show(harvest: dict[str, Any], args: argparse.Namespace, *, judge: bool = True) -> int:
    print_one(COLUMNS, harvest, as_json=args.json)
    if harvest["status"] == "failed":
        print(f"acs: {harvest['error']['code']}: {harvest['error']['message']}", file=sys.stderr)
    return 1 if judge and harvest["status"] in ("failed", "cancelled") else 0


def _body(args: argparse.Namespace) -> Any:
    if (args.body is None) == (args.prompts is None):
        raise CommandFailed("Give a request, or --prompts with one in each line.")
    if args.body is not None:
        return request(args.body)
    if args.model is None:
        raise CommandFailed("--prompts needs --model.")
    body = {"model": args.model, "prompts": _prompts(args.prompts)}
    if args.layers is not None:
        body["layers"] = "all" if args.layers == "all" else parsed(f"[{args.layers}]", "--layers")
    return body


def _prompts(path: Path) -> list[Any]:
    try:
        # splitlines() would split at whatever Unicode calls a line's end, within a prompt too.
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is not UTF-8: at byte {error.start}.") from None
    if path.suffix != ".jsonl":
        return [line for line in lines if line.strip()]
    return [parsed(line, f"{path}, line {number},") for number, line in enumerate(lines, start=1) if line.strip()]


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "submit": submit,
    "list": list_,
    "show": show,
    "wait": wait,
    "cancel": cancel,
    "download": download,
    "verify": verify,
}
