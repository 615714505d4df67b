"""Harvests through a whole server: the rows are those of Transformers, each once, whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine.reference import Reference
from server.running import Server, start_server
from server.waiting import within

from acs.platform.harvests.links import Links

pytestmark = [pytest.mark.server, pytest.mark.engine]

RUNNER, REPLICA = "ServeReplica:jobs:", "ServeReplica:model-"  # parts of their command lines
TOLERANCE = 1e-4  # of the largest value of a row, in float32: the same weights, summed in another order
PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


class Harvests:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.Client(base_url=server.v1, headers=server.headers, timeout=120)

    def submit(self, prompts: list[str], **fields: Any) -> str:
        body = {"model": "toy", "prompts": prompts, "layers": [0, 2, 3], **fields}
        answer = self.http.post("/harvest", json=body)
        assert answer.status_code == 202, answer.text
        harvest_id: str = answer.json()["job_id"]
        return harvest_id

    def get(self, harvest_id: str) -> Any:
        return self.http.get(f"/harvest/{harvest_id}").json()

    def done(self, harvest_id: str) -> Any:
        while (found := self.http.get(f"/harvest/{harvest_id}?wait=60").json())["status"] in ("pending", "running"):
            pass
        assert found["status"] == "done", found
        return found

    def shards_done(self, harvest_id: str) -> int:
        return int(self.get(harvest_id).get("progress", {}).get("shards_done", 0))

    def table(self, found: Any, folder: Path) -> pa.Table:
        """All rows, from the files behind the links."""
        files = []
        for url in found["result"]["shard_urls"]:
            answer = httpx.get(url)
            assert answer.status_code == 200
            files.append(folder / url.rpartition("/")[2].partition("?")[0])
            files[-1].write_bytes(answer.content)
        return pa.concat_tables([pq.read_table(file) for file in files])


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """float32 [rows, hidden]"""
    return np.asarray(column.combine_chunks().flatten().to_numpy().reshape(len(column), -1))


def paragraphs() -> list[str]:
    """Real text: our own pages."""
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return [part[:1000] for part in map(str.strip, re.split(r"\n\s*\n", text)) if part]


@pytest.fixture(scope="module")
def harvests(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Harvests]:
    limits = {"ACS_LIMIT_OWNER_LEASE_S": "3", "ACS_LIMIT_KEY_HARVESTS": "10"}
    folder = tmp_path_factory.mktemp("harvests")
    with start_server(folder / "data", catalogue="toy", env={"ACS_MODELS": str(models_dir), **limits}) as server:
        yield Harvests(server)


def test_every_row_is_that_of_transformers(harvests: Harvests, tmp_path: Path, toy_checkpoint: Path) -> None:
    prompts = paragraphs()[:200]
    found = harvests.done(harvests.submit(prompts))
    table = harvests.table(found, tmp_path)
    assert table.num_rows == found["n_tokens"]
    tokenized = [
        harvests.http.post(f"{harvests.server.base}/tokenize", json={"model": "toy", "prompt": prompt}).json()["tokens"]
        for prompt in prompts
    ]
    labels = [(i, at, id) for i, ids in enumerate(tokenized) for at, id in enumerate(ids)]
    columns = (table[name].to_pylist() for name in ("prompt_index", "position", "token_id"))
    assert list(zip(*columns, strict=True)) == labels
    reference = Reference(toy_checkpoint)
    starts = np.cumsum([0, *map(len, tokenized)])
    for index in random.Random(1).sample(range(len(prompts)), 20):
        expected = reference.forward(tokenized[index]).stream
        rows = table.slice(starts[index], len(tokenized[index]))
        for layer in (0, 2, 3):
            off = np.abs(numbers(rows[f"layer_{layer}"]) - expected[layer]).max(-1) / np.abs(expected[layer]).max(-1)
            assert off.max() < TOLERANCE
    ((rows_seen, longest),) = duckdb.sql(
        f"SELECT count(*), max(list_inner_product(layer_3, layer_3)) FROM '{tmp_path}/*.parquet'"
    ).fetchall()
    assert (rows_seen, longest > 0) == (table.num_rows, True)


def test_a_running_harvest_is_cancelled_and_its_files_go(harvests: Harvests) -> None:
    harvest_id = harvests.submit((paragraphs() * 20)[:4000], shard_size=8)
    within(60, lambda: harvests.shards_done(harvest_id) > 0)
    assert harvests.http.delete(f"/harvest/{harvest_id}").json()["status"] == "cancelled"
    again = harvests.http.delete(f"/harvest/{harvest_id}")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "harvest_not_cancellable")
    folder = harvests.server.data / "harvests" / harvest_id
    within(60, lambda: not folder.exists())
    usage = harvests.http.get("/usage").json()
    assert usage["held_tokens"] == 0


def test_nobody_but_its_account_sees_a_harvest_and_forged_links_lead_nowhere(harvests: Harvests) -> None:
    harvest_id = harvests.submit(["The sky is"])
    found = harvests.done(harvest_id)
    url = found["result"]["shard_urls"][0]
    assert httpx.get(url, headers={"Range": "bytes=0-3"}).content == b"PAR1"
    assert httpx.get(url[:-1] + ("0" if url[-1] != "0" else "1")).status_code == 404
    made_up = Links(b"another server's key", harvests.server.base).url(
        harvest_id, "manifest.json", int(time.time()) + 9
    )
    assert httpx.get(made_up).status_code == 404
    assert httpx.get(url.replace("/files/", "/files/../")).status_code == 404
    theirs = {"Authorization": f"Bearer {another_accounts_key(harvests.server)}"}
    answer = harvests.http.get(f"/harvest/{harvest_id}", headers=theirs)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "harvest_job_not_found")


def another_accounts_key(server: Server) -> str:
    def acs(*words: str) -> Any:
        command = [sys.executable, "-P", "-m", "acs.platform.cli.main", *words, "--json"]
        environ = {**os.environ, "ACS_DATA": str(server.data)}
        return json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)

    account = acs("account", "create", "--name", "Bob", "--email", "bob@lab.org")
    secret: str = acs("key", "create", "--account", account["id"], "--name", "laptop")["key"]
    return secret


def test_killed_in_the_middle_it_ends_with_the_rows_of_an_undisturbed_one(harvests: Harvests, tmp_path: Path) -> None:
    prompts = paragraphs() * 2
    (tmp_path / "plain").mkdir()
    (tmp_path / "killed").mkdir()
    undisturbed = harvests.table(harvests.done(harvests.submit(prompts, shard_size=16)), tmp_path / "plain")
    harvest_id = harvests.submit(prompts, shard_size=16)
    for victim in (REPLICA, RUNNER):
        before = harvests.shards_done(harvest_id)
        within(120, lambda: harvests.shards_done(harvest_id) > before)  # noqa: B023
        (killed,) = harvests.server.named(victim)
        os.kill(killed.pid, signal.SIGKILL)
    found = harvests.done(harvest_id)
    table = harvests.table(found, tmp_path / "killed")
    assert table.equals(undisturbed), "the same bytes in the same order, each once"
    manifest = httpx.get(found["result"]["manifest_url"]).json()
    folder = harvests.server.data / "harvests" / harvest_id
    named = {"manifest.json", "stats.json", *(shard["file"] for shard in manifest["shards"])}
    assert {file.name for file in folder.iterdir()} == named


def test_the_command_submits_waits_downloads_and_verifies(harvests: Harvests, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(text.replace("\n", " ") for text in paragraphs()[:40]))

    def acs(*words: str, status: int = 0) -> Any:
        command = [sys.executable, "-P", "-m", "acs.platform.cli.main", "harvest", *words]
        server = harvests.server
        environ = {**os.environ, "ACS_API_BASE": server.v1, "ACS_API_KEY": server.key}
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == status, ran.stderr
        return json.loads(ran.stdout)

    what = ("--model", "toy", "--prompts", "texts.txt", "--layers", "1,3")
    estimate = acs("submit", *what, "--dry-run")
    found = acs("submit", *what, "--wait", "--json")
    assert found["n_tokens"] == estimate["n_tokens"]
    assert acs("wait", found["job_id"], "--json")["status"] == "done"
    first = acs("download", found["job_id"], "--out", "harvest")
    assert first["files"] == found["result"]["n_shards"] + 2
    (shard, *_) = sorted((tmp_path / "harvest").glob("*.parquet"))
    whole = shard.read_bytes()
    shard.unlink()
    shard.with_name(shard.name + ".part").write_bytes(whole[:1000])
    again = acs("download", found["job_id"], "--out", "harvest")
    assert again["bytes_fetched"] == len(whole) - 1000 + (tmp_path / "harvest" / "manifest.json").stat().st_size
    assert shard.read_bytes() == whole
    verified = acs("verify", "harvest", "--sample", "5")
    assert (verified["prompts"], verified["least_cosine"] > 0.9999) == (5, True)
