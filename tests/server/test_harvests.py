"""Harvests through a whole server: the rows are those of Transformers, each once, whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine.reference import Reference
from server.killing import LEDGER, RECOVERY_S, REPLICA, RUNNER, SERVER, kill
from server.running import Server, start_server
from server.waiting import within

from acs import tensors
from acs.platform.catalogue import Catalogue
from acs.platform.harvests.links import Links
from acs.platform.models import prepare
from acs.platform.settings import SHIPPED_CATALOGUES

pytestmark = [pytest.mark.server, pytest.mark.engine]

VIEWS = "ViewsActor"  # a part of its command line
TOLERANCE = 1e-4  # of the largest value of a row, in float32: the same weights, summed in another order
PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


class Harvests:
    """A server and a client of it, through whatever is killed."""

    def __init__(self, start: Callable[[], Server]) -> None:
        self._start = start
        self.begin()

    def begin(self) -> None:
        self.server = self._start()
        self.http = httpx.Client(base_url=self.server.v1, headers=self.server.headers, timeout=120)

    def kill(self, what: str) -> None:
        kill(self.server, what)
        if what == SERVER:
            self.begin()

    def submit(self, prompts: list[Any], **fields: Any) -> str:
        body = {"model": "toy", "prompts": prompts, "layers": [0, 2, 3], **fields}
        once = {"Idempotency-Key": secrets.token_hex(8)}
        answer = self._answered(lambda: self.http.post("/harvest", json=body, headers=once))
        assert answer.status_code == 202, answer.text
        harvest_id: str = answer.json()["job_id"]
        return harvest_id

    def get(self, harvest_id: str, query: str = "") -> Any:
        answer = self._answered(lambda: self.http.get(f"/harvest/{harvest_id}{query}"))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _answered(self, ask: Callable[[], httpx.Response]) -> httpx.Response:
        """Once the parts that it takes are back."""

        def answer() -> httpx.Response | None:
            with contextlib.suppress(httpx.TransportError):
                found = ask()
                return None if found.status_code in (502, 503) else found
            return None

        found = within(RECOVERY_S, answer)
        assert found is not None
        return found

    def ended(self, harvest_id: str) -> Any:
        while (found := self.get(harvest_id, "?wait=60"))["status"] in ("pending", "running"):
            pass
        return found

    def done(self, harvest_id: str) -> Any:
        found = self.ended(harvest_id)
        assert found["status"] == "done", found.get("error", found)
        return found

    def shards_done(self, harvest_id: str) -> int:
        return int(self.get(harvest_id).get("progress", {}).get("shards_done", 0))

    def acs(self, *words: str) -> Any:
        """The operator's command."""
        command = [sys.executable, "-P", "-m", "acs.platform.cli.main", *words, "--json"]
        environ = {**os.environ, "ACS_DATA": str(self.server.data)}
        return json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)

    def table(self, found: Any, folder: Path) -> pa.Table:
        """All rows, from the files behind the links."""
        folder.mkdir(exist_ok=True)
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
    limits = {"ACS_LIMIT_OWNER_LEASE_S": "3", "ACS_LIMIT_KEY_HARVESTS": "10", "ACS_LIMIT_HARVEST_RUNS": "1000"}
    folder = tmp_path_factory.mktemp("harvests")
    env = {"ACS_MODELS": str(models_dir), **limits}
    harvests = Harvests(lambda: start_server(folder / "data", catalogue="toy", env=env))
    yield harvests
    harvests.server.stop()


def test_every_row_is_that_of_transformers(harvests: Harvests, tmp_path: Path, toy_checkpoint: Path) -> None:
    rows_are_those_of_transformers(harvests, "toy", [0, 2, 3], paragraphs()[:200], toy_checkpoint, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_row_of_two_thousand_prompts_is_that_of_transformers(
    server: Server, tmp_path: Path, models_dir: Path
) -> None:
    """The default model. Sentences of our own pages."""
    model = Catalogue.load(SHIPPED_CATALOGUES / "default.toml")["smollm2-135m"]
    sentences = [part for text in paragraphs() for part in re.split(r"(?<=[.,;:|]) ", text) if part][:2000]
    assert len(sentences) == 2000
    checkpoint = prepare(model, models_dir, print)
    rows_are_those_of_transformers(Harvests(lambda: server), model.id, [0, 15, 29], sentences, checkpoint, tmp_path)


def rows_are_those_of_transformers(
    harvests: Harvests, model: str, layers: list[int], prompts: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    found = harvests.done(harvests.submit(prompts, model=model, layers=layers))
    table = harvests.table(found, tmp_path)
    assert table.num_rows == found["n_tokens"]
    tokenized = [
        harvests.http.post(f"{harvests.server.base}/tokenize", json={"model": model, "prompt": prompt}).json()["tokens"]
        for prompt in prompts
    ]
    labels = [(i, at, id) for i, ids in enumerate(tokenized) for at, id in enumerate(ids)]
    columns = (table[name].to_pylist() for name in ("prompt_index", "position", "token_id"))
    assert list(zip(*columns, strict=True)) == labels
    reference = Reference(checkpoint)
    starts = np.cumsum([0, *map(len, tokenized)])
    for index in random.Random(1).sample(range(len(prompts)), 20):
        expected = reference.forward(tokenized[index]).stream
        rows = table.slice(starts[index], len(tokenized[index]))
        for layer in layers:
            off = np.abs(numbers(rows[f"layer_{layer}"]) - expected[layer]).max(-1) / np.abs(expected[layer]).max(-1)
            assert off.max() < TOLERANCE
    ((rows_seen, longest),) = duckdb.sql(
        f"SELECT count(*), max(list_inner_product(layer_0, layer_0)) FROM '{tmp_path}/*.parquet'"
    ).fetchall()
    assert (rows_seen, longest > 0) == (table.num_rows, True)


def test_a_harvest_writes_no_line_a_step_to_the_logs(harvests: Harvests) -> None:
    def lines() -> int:
        logs = (harvests.server.data / "run/logs").rglob("*")
        return sum(file.read_bytes().count(b"\n") for file in logs if file.is_file())

    before = lines()
    harvests.done(harvests.submit(paragraphs(), shard_size=8))
    assert lines() - before < 40, "it has a hundred steps"


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
    theirs = {"Authorization": f"Bearer {another_accounts_key(harvests)}"}
    answer = harvests.http.get(f"/harvest/{harvest_id}", headers=theirs)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "harvest_job_not_found")


def test_a_body_that_is_too_large_is_refused_with_our_own_words(harvests: Harvests) -> None:
    answer = harvests.http.post("/harvest", content=b" " * 51_000_000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def another_accounts_key(harvests: Harvests) -> str:
    account = harvests.acs("account", "create", "--name", "Bob", "--email", "bob@lab.org")
    secret: str = harvests.acs("key", "create", "--account", account["id"], "--name", "laptop")["key"]
    return secret


def test_killed_in_the_middle_it_ends_with_the_rows_of_an_undisturbed_one(harvests: Harvests, tmp_path: Path) -> None:
    prompts = paragraphs() * 2
    undisturbed = harvests.table(harvests.done(harvests.submit(prompts, shard_size=16)), tmp_path / "plain")
    harvest_id = harvests.submit(prompts, shard_size=16)
    for victim in (REPLICA, RUNNER, LEDGER, VIEWS, SERVER):
        before = harvests.shards_done(harvest_id)
        within(120, lambda: harvests.shards_done(harvest_id) > before)  # noqa: B023
        harvests.kill(victim)
    found = harvests.done(harvest_id)
    judge(harvests, found, undisturbed, tmp_path / "killed")
    assert len(undisturbed) == found["n_tokens"]


def test_an_engine_that_is_told_to_end_fails_no_harvest(harvests: Harvests) -> None:
    """As when its server stops, is started again after `kill -9`, or has one replica too many: vLLM ends what runs."""
    harvest_id = harvests.submit(paragraphs() * 2, shard_size=8)
    within(120, lambda: harvests.shards_done(harvest_id) > 0)
    (engine,) = harvests.server.named("EngineCore")
    os.kill(engine.pid, signal.SIGTERM)
    assert harvests.get(harvest_id)["status"] == "running"
    harvests.done(harvest_id)


def judge(harvests: Harvests, found: Any, undisturbed: pa.Table, folder: Path) -> None:
    """The same rows, each once; in its folder, and in the tables of operators, nothing else; paid once."""
    table = harvests.table(found, folder)
    assert table.equals(undisturbed), "the same bytes in the same order, each once"
    harvest_id, n_tokens = found["job_id"], found["n_tokens"]
    manifest = httpx.get(found["result"]["manifest_url"]).json()
    named = {"manifest.json", "stats.json", *(shard["file"] for shard in manifest["shards"])}
    assert {file.name for file in (harvests.server.data / "harvests" / harvest_id).iterdir()} == named
    told = f"""
        SELECT status, charged_tokens, count(*) AS files, count(DISTINCT shard) AS shards, sum(s.n_tokens) AS read
        FROM harvests JOIN harvest_shards s USING (harvest_id) JOIN charges USING (hold_id)
        WHERE harvest_id = '{harvest_id}' GROUP BY ALL"""
    n_shards = len(manifest["shards"])
    as_it_was = {"status": "done", "charged_tokens": n_tokens, "files": n_shards, "shards": n_shards, "read": n_tokens}
    within(RECOVERY_S, lambda: harvests.acs("query", told) == [as_it_was])
    assert harvests.http.get("/usage").json()["held_tokens"] == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_at_many_moments_each_ends_with_the_rows_of_an_undisturbed_one(
    harvests: Harvests, tmp_path: Path
) -> None:
    rng = random.Random(os.environ.get("ACS_TEST_SEED", "0"))
    prompts, kills = paragraphs() * 8, int(os.environ.get("ACS_TEST_KILLS", "25"))
    undisturbed = harvests.table(harvests.done(harvests.submit(prompts, shard_size=16)), tmp_path / "plain")
    while kills > 0:
        harvest_id = harvests.submit(prompts, shard_size=16)
        while kills > 0 and "result" not in harvests.get(harvest_id):
            time.sleep(rng.random() * 2)  # the moment is the point
            harvests.kill(what := rng.choices([REPLICA, RUNNER, LEDGER, VIEWS, SERVER], (4, 4, 4, 2, 1))[0])
            kills -= 1
            reached = harvests.get(harvest_id)
            print(f"killed {what}: {reached['status']}, {reached.get('progress')}", flush=True)
            if "result" not in reached and rng.random() < 0.7:  # else it dies with others on their way back
                within(RECOVERY_S, lambda: harvests.get(harvest_id) != reached)  # noqa: B023
        judge(harvests, harvests.done(harvest_id), undisturbed, tmp_path / harvest_id)


@pytest.mark.soak
def test_ten_times_the_tokens_take_no_process_more_memory(harvests: Harvests) -> None:
    """Peaks of resident memory; what is shared is counted for each that has it."""
    rng = np.random.default_rng(0)

    def peaks(prompts: int) -> dict[int, int]:
        """MB by process. Each prompt is another, of 200 tokens."""
        ids = rng.integers(2, 2048, (prompts, 200)).tolist()
        watched = [each.pid for each in harvests.server.processes()]
        for pid in watched:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # a new peak begins now
        assert harvests.done(harvests.submit(ids))["n_tokens"] == prompts * 200
        found = {}
        for pid in watched:
            with contextlib.suppress(FileNotFoundError):  # Ray ends workers that idle
                status = Path(f"/proc/{pid}/status").read_text()
                found[pid] = int(status.partition("VmHWM:")[2].split()[0]) // 1024
        return found

    for _ in range(3):
        peaks(100)  # what is taken once is taken
    small, large = peaks(100), peaks(1000)
    names = {each.pid: each.cmdline[:60] for each in harvests.server.processes()}
    both = {pid: (small[pid], large[pid]) for pid in small.keys() & large.keys() & names.keys()}
    for pid, (before, after) in sorted(both.items(), key=lambda one: -one[1][0]):
        print(f"{before:6,} MB, then {after:6,} MB: {names[pid]}")
    assert {names[pid]: sizes for pid, sizes in both.items() if sizes[1] > 1.2 * sizes[0]} == {}


def test_what_is_kept_of_a_prompt_is_chosen_or_computed_from_its_rows(harvests: Harvests, tmp_path: Path) -> None:
    prompts, labels = paragraphs()[:40], ["prompt_index", "position", "token_id", "token"]
    directions = np.random.default_rng(0).normal(size=(5, 128)).astype(np.float32)
    along = (directions / np.linalg.norm(directions.astype(float), axis=1, keepdims=True)).astype(np.float32)

    def harvested(name: str, **fields: Any) -> pa.Table:
        return harvests.table(harvests.done(harvests.submit(prompts, **fields)), tmp_path / name)

    whole = harvested("all")
    starts = np.flatnonzero(whole["position"].to_numpy() == 0)
    ends = np.append(starts[1:], len(whole))
    last = harvested("last", positions="last")
    assert last.select(labels).equals(whole.select(labels).take(ends - 1))
    mean = harvested("mean", positions="mean")
    assert mean["prompt_index"].to_pylist() == list(range(40))
    assert {mean[label].null_count for label in labels[1:]} == {40}
    projected = harvested("projected", project_onto=directions.tolist())
    assert projected.select(labels).equals(whole.select(labels))
    projected_means = harvested("both", positions="mean", project_onto=tensors.encode(directions))
    for layer in ("layer_0", "layer_2", "layer_3"):
        rows = numbers(whole[layer]).astype(float)
        means = np.add.reduceat(rows, starts) / (ends - starts)[:, None]
        np.testing.assert_array_equal(numbers(last[layer]), rows[ends - 1])
        np.testing.assert_allclose(numbers(mean[layer]), means, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(numbers(projected[layer]), rows @ along.T, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(numbers(projected_means[layer]), means @ along.T, rtol=1e-6, atol=1e-9)


def test_files_that_find_no_room_end_it_as_failed_and_it_pays_for_what_was_read(harvests: Harvests) -> None:
    """The operating system refuses to let a file of the writing process grow beyond 1 MB."""
    (runner,) = harvests.server.named(RUNNER)
    free = resource.prlimit(runner.pid, resource.RLIMIT_FSIZE)
    before = harvests.http.get("/usage").json()["charged_tokens"]
    small, large = ["The sky is"] * 16, paragraphs()[:200]
    resource.prlimit(runner.pid, resource.RLIMIT_FSIZE, (1_000_000, free[1]))
    try:
        found = harvests.ended(harvest_id := harvests.submit(small + large, shard_size=16))
    finally:
        resource.prlimit(runner.pid, resource.RLIMIT_FSIZE, free)
    assert (found["status"], found["error"]["code"]) == ("failed", "storage_full")
    assert "room" in found["error"]["message"]
    assert "result" not in found
    folder = harvests.server.data / "harvests" / harvest_id
    within(60, lambda: not folder.exists())
    usage = harvests.http.get("/usage").json()
    (noted,) = harvests.acs("query", f"SELECT sum(n_tokens) AS n FROM harvest_shards WHERE harvest_id = '{harvest_id}'")
    assert 0 < noted["n"] <= usage["charged_tokens"] - before < found["n_tokens"]
    assert usage["held_tokens"] == 0
    harvests.done(harvests.submit(large, shard_size=16))


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
