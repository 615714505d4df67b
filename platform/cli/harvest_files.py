"""A harvest's files, fetched by their links: some at a time, each checked, and only what is not there yet."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.progress import Progress

AT_ONCE = 4
TRIES = 5
MANIFEST = "manifest.json"


async def download_all(result: Any, folder: Path) -> dict[str, int]:
    """`result`: of the harvest. How many files, and bytes that were fetched now. What an earlier call has fetched, of a
    file too, is not fetched again. The manifest comes last: where it is, all is. Raises CommandFailed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fetched = 0
    gate = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.get(result["manifest_url"])
        if answer.status_code != 200:
            raise CommandFailed(f"The manifest cannot be had: {answer.status_code}.")
        manifest = answer.json()
        wanted = {shard["file"]: shard["sha256"] for shard in manifest["shards"]}
        wanted[manifest["stats"]["file"]] = manifest["stats"]["sha256"]
        urls = {_name(url): url for url in (*result["shard_urls"], result["stats_url"])}
        with Progress() as progress:

            async def one(name: str, sha256: str) -> None:
                nonlocal fetched
                async with gate:
                    fetched += await _download(http, urls[name], folder / name, sha256)
                    progress.say(f"{name}, {fetched:,} bytes in all")

            await asyncio.gather(*(one(name, sha256) for name, sha256 in wanted.items()))
    _write(folder / MANIFEST, answer.content)
    return {"files": len(wanted) + 1, "bytes_fetched": fetched + len(answer.content)}


async def _download(http: httpx.AsyncClient, url: str, path: Path, sha256: str) -> int:
    """The bytes that were fetched. Raises CommandFailed."""
    if path.exists() and await asyncio.to_thread(_sha256_of, path) == sha256:
        return 0
    part, fetched = path.with_name(path.name + ".part"), 0
    for _ in range(TRIES):
        try:
            fetched += await _fetch_rest(http, url, part)
        except httpx.TransportError:
            continue
        if await asyncio.to_thread(_sha256_of, part) == sha256:
            part.replace(path)
            return fetched
        part.unlink()  # what was there was of something else
    raise CommandFailed(f"{path.name} cannot be had whole.")


async def _fetch_rest(http: httpx.AsyncClient, url: str, part: Path) -> int:
    """Appends what the file has behind what is there already."""
    there = part.stat().st_size if part.exists() else 0
    fetched = 0
    async with http.stream("GET", url, headers={"Range": f"bytes={there}-"} if there else {}) as answer:
        if answer.status_code == 416:  # all of it is there
            return 0
        if answer.status_code not in (200, 206):
            raise CommandFailed(f"{part.stem} cannot be had: {answer.status_code}.")
        with part.open("ab" if answer.status_code == 206 else "wb") as file:
            async for data in answer.aiter_bytes(1 << 20):
                file.write(data)
                fetched += len(data)
    return fetched


def _name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
