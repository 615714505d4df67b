"""What the verbs of `acs job` do."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any

from acs.platform.cli.api import Api, checked, once, run
from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.input import request
from acs.platform.cli.job_file import submit_file
from acs.platform.cli.output import print_one, print_rows
from acs.platform.cli.progress import Progress

COLUMNS = ("id", "status", "model", "created_at", "http_status")
LOOK_S = 0.5
ENDED = ("succeeded", "failed", "cancelled")


def submit(args: argparse.Namespace) -> int:
    if (args.body is None) == (args.file is None):
        raise CommandFailed("Give a request, or --file with one in each line.")
    if args.file is not None:
        if args.out is not None and not args.wait:
            raise CommandFailed("--out needs --wait.")
        return submit_file(args.file, args.out, wait=args.wait)
    if args.out is not None:
        raise CommandFailed("--out needs --file.")
    body = request(args.body)

    async def ask(api: Api) -> int:
        job = await _asked(api, "POST", "", json=body, headers=once())
        if args.wait:
            job = await _until_ended(api, job["id"])
        return _show_job(job, args)

    return run(ask)


def list_(args: argparse.Namespace) -> int:
    terms = {"limit": args.limit, "after": args.after, "status": args.status}
    query = "&".join(f"{name}={value}" for name, value in terms.items() if value is not None)

    async def ask(api: Api) -> int:
        page = await _asked(api, "GET", f"?{query}")
        print_rows(COLUMNS, page["data"], as_json=args.json)
        return 0

    return run(ask)


def show(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        return _show_job(await _asked(api, "GET", f"/{args.id}"), args, judge=False)

    return run(ask)


def wait(args: argparse.Namespace) -> int:
    """Exit status 0 when it has succeeded."""

    async def ask(api: Api) -> int:
        return _show_job(await _until_ended(api, args.id), args)

    return run(ask)


def result(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        answer = await api.ask("GET", f"/completion-jobs/{args.id}/result", final=True)
        if answer.status_code == 202:
            raise CommandFailed(f"The Job has not ended; `acs job wait {args.id}` returns when it has.")
        checked(answer)
        print(answer.text)
        return 0

    return run(ask)


def cancel(args: argparse.Namespace) -> int:
    async def ask(api: Api) -> int:
        return _show_job(await _asked(api, "POST", f"/{args.id}/cancel"), args, judge=False)

    return run(ask)


async def _asked(api: Api, method: str, path: str, **fields: Any) -> Any:
    return await api.asked(method, f"/completion-jobs{path}", **fields)


async def _until_ended(api: Api, job_id: str) -> Any:
    began = time.monotonic()
    with Progress() as progress:
        while (job := await _asked(api, "GET", f"/{job_id}"))["status"] not in ENDED:
            progress.say(f"{job_id} {job['status']}, {time.monotonic() - began:.0f} s")
            await asyncio.sleep(LOOK_S)
    return job


def _show_job(job: dict[str, Any], args: argparse.Namespace, *, judge: bool = True) -> int:
    print_one(COLUMNS, job, as_json=args.json)
    return 1 if judge and job["status"] in ("failed", "cancelled") else 0


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "submit": submit,
    "list": list_,
    "show": show,
    "wait": wait,
    "result": result,
    "cancel": cancel,
}
