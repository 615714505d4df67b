"""A file of Completion requests, run as Jobs: as many at a time as the account may have, and no line twice.

Run again with the same files, the command goes on where it stopped: a line whose result is there is left out, and one
that was submitted is found again by its Idempotency-Key, which is made of its number and content.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import httpx

from acs.platform.cli.api import Api, error_of
from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.output import print_json
from acs.platform.cli.progress import Progress

AT_ONCE = 8  # requests to the API
WINDOW = 100  # unfinished Jobs, unless the account may have fewer
LOOK_S = 0.5
PATIENCE_S = 600.0  # a server may start again meanwhile


@dataclass(frozen=True, slots=True)
class Line:
    number: int  # from 1
    body: Any

    @property
    def key(self) -> str:
        """Of the same content, however it is spelled."""
        content = json.dumps(self.body, sort_keys=True)
        return f"acs-line-{hashlib.sha256(f'{self.number} {content}'.encode()).hexdigest()[:48]}"


def submit_file(path: Path, out: Path | None, *, wait: bool) -> int:
    """Exit status 1 when a line was refused, or its Job did not succeed."""
    lines = list(read_lines(path))
    if not wait:
        return asyncio.run(_submit_only(lines))
    done = keys_in(out) if out is not None else set()
    todo = [line for line in lines if line.key not in done]
    if out is None:
        raise CommandFailed("--wait with --file needs --out: where the results go.")
    with out.open("a", encoding="utf-8") as results:
        batch = Batch(todo, results, total=len(lines))
        failed = asyncio.run(_run(batch))
    print_json({"lines": len(lines), "done_before": len(lines) - len(todo), "failed": failed})
    return 1 if failed else 0


def read_lines(path: Path) -> Iterator[Line]:
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}.") from None
    for number, text in enumerate(texts, start=1):
        if text.strip():
            try:
                yield Line(number, json.loads(text))
            except ValueError as error:
                raise CommandFailed(f"{path}, line {number} is not JSON: {error}.") from None


def keys_in(out: Path) -> set[str]:
    """The lines whose results are there. What a killed run left of a last line is cut off."""
    if not out.exists():
        return set()
    whole, _, cut = out.read_bytes().rpartition(b"\n")
    if cut:
        os.truncate(out, len(whole) + 1 if whole else 0)
    return {json.loads(line)["key"] for line in whole.splitlines()}


async def _submit_only(lines: list[Line]) -> int:
    async with Api(PATIENCE_S) as api:
        for line in lines:
            answer = await submit(api, line)
            if answer.status_code != 202:
                raise CommandFailed(f"Line {line.number}: {error_of(answer)}")
            print_json({"line": line.number, "job": answer.json()["id"]})
    return 0


async def _run(batch: Batch) -> int:
    async with Api(PATIENCE_S) as api:
        return await batch.run(api)


async def submit(api: Api, line: Line) -> httpx.Response:
    return await api.ask("POST", "/completion-jobs", json=line.body, headers={"Idempotency-Key": line.key})


class Batch:
    def __init__(self, lines: list[Line], results: TextIO, total: int) -> None:
        self._waiting = lines[::-1]  # the next is the last
        self._results = results
        self._total = total
        self._unfinished: dict[str, Line] = {}  # by Job
        self._window = WINDOW
        self._failed = 0

    async def run(self, api: Api) -> int:
        """How many did not succeed."""
        with Progress() as progress:
            while self._waiting or self._unfinished:
                progress.say(self._state())
                submitted = await self._submit_some(api)
                ended = await self._fetch_ended(api)
                if not submitted and not ended:
                    await asyncio.sleep(LOOK_S)
        return self._failed

    def _state(self) -> str:
        left = len(self._waiting) + len(self._unfinished)
        return f"{self._total - left} of {self._total} done, {len(self._unfinished)} run, {self._failed} failed"

    async def _submit_some(self, api: Api) -> bool:
        """As many as there is room for, a handful at a time. Whether any line has got further."""
        room = min(AT_ONCE, self._window - len(self._unfinished), len(self._waiting))
        lines = [self._waiting.pop() for _ in range(max(0, room))]
        for line, answer in zip(lines, await _all(submit(api, line) for line in lines), strict=True):
            if answer.status_code == 202:
                self._unfinished[answer.json()["id"]] = line
            elif answer.json()["error"]["code"] == "job_capacity":
                self._waiting.append(line)
                self._window = max(1, len(self._unfinished))
            else:
                self._write(line, None, answer)
        return bool(lines) and lines[-1] not in self._waiting

    async def _fetch_ended(self, api: Api) -> bool:
        ended = await self._ended(api) if self._unfinished else []
        for first in range(0, len(ended), AT_ONCE):
            some = ended[first : first + AT_ONCE]
            paths = [f"/completion-jobs/{job_id}/result" for job_id in some]
            answers = await _all(api.ask("GET", path, final=True) for path in paths)
            for job_id, answer in zip(some, answers, strict=True):
                if answer.status_code != 202:
                    self._write(self._unfinished.pop(job_id), job_id, answer)
        return bool(ended)

    async def _ended(self, api: Api) -> list[str]:
        """Ours that are neither queued nor running any more. One that changes meanwhile is asked for in vain."""
        going_on: set[str] = set()
        for status in ("queued", "running"):
            answer = await api.ask("GET", f"/completion-jobs?limit=100&status={status}")
            if answer.status_code != 200:
                raise CommandFailed(error_of(answer))
            going_on |= {job["id"] for job in answer.json()["data"]}
        return [job_id for job_id in self._unfinished if job_id not in going_on]

    def _write(self, line: Line, job_id: str | None, answer: httpx.Response) -> None:
        self._window = WINDOW if job_id else self._window
        self._failed += answer.status_code != 200
        result = {
            "line": line.number,
            "key": line.key,
            "job": job_id,
            "http_status": answer.status_code,
            "body": answer.json(),
        }
        self._results.write(json.dumps(result, ensure_ascii=False) + "\n")
        self._results.flush()


async def _all(asking: Any) -> list[httpx.Response]:
    return list(await asyncio.gather(*asking))
