"""Harvests whose files lie in a bucket: their links lead to it, and it may be lost."""

import asyncio
import hashlib
import json
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from api_client import until
from bucket_server import running_bucket
from harvest_client import PROMPTS, RESOLVED, error_of, first_shard_noted, harvests_api

from acs.events.harvest import Harvest
from acs.platform.cli.harvest_files import download_all

WEEK_S = 7 * 86400


@pytest.fixture(scope="module")
def server():
    with running_bucket() as server:
        yield server


@pytest.fixture
async def harvests(toy_checkpoint, server):
    async with harvests_api(toy_checkpoint, place=server.address) as harvests:
        yield harvests


async def test_its_links_lead_to_the_bucket_work_in_parts_and_live_as_long_as_its_files(harvests, server):
    found = await harvests.done(await harvests.submit())
    result = found["result"]
    async with httpx.AsyncClient() as nobody:
        manifest = (await nobody.get(result["manifest_url"])).json()
        assert (await nobody.get(result["stats_url"])).json()["layers"].keys() == {"0", "2"}
        for url, shard in zip(result["shard_urls"], manifest["shards"], strict=True):
            whole = (await nobody.get(url)).content
            assert hashlib.sha256(whole).hexdigest() == shard["sha256"]
            part = await nobody.get(url, headers={"Range": "bytes=10-19"})
            assert (part.status_code, part.content) == (206, whole[10:20])
    for url in (result["manifest_url"], result["stats_url"], *result["shard_urls"]):
        assert urlsplit(url).netloc == server.host
        assert WEEK_S - 60 < int(parse_qs(urlsplit(url).query)["X-Amz-Expires"][0]) <= WEEK_S


async def test_asked_again_its_links_live_for_what_is_left(toy_checkpoint, server):
    async with harvests_api(toy_checkpoint, place=server.address, harvest_kept_s=100) as harvests:
        found = await harvests.done(await harvests.submit())
        (lives,) = parse_qs(urlsplit(found["result"]["manifest_url"]).query)["X-Amz-Expires"]
        assert 0 < int(lives) <= 100


async def test_our_own_links_lead_nowhere(harvests):
    found = await harvests.done(await harvests.submit())
    path = f"/files/{found['job_id']}/manifest.json?expires={int(time.time()) + 60}&signature={'0' * 64}"
    assert error_of(await harvests.http.get(path)) == (404, None)


async def test_its_files_are_downloaded_as_those_of_a_folder(harvests, tmp_path):
    result = (await harvests.done(await harvests.submit()))["result"]
    told = await download_all(result, tmp_path)
    assert told["files"] == 4
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    shard = tmp_path / manifest["shards"][0]["file"]
    whole = shard.read_bytes()
    assert hashlib.sha256(whole).hexdigest() == manifest["shards"][0]["sha256"]
    shard.unlink()
    shard.with_name(shard.name + ".part").write_bytes(whole[:100])
    again = await download_all(result, tmp_path)
    assert again["bytes_fetched"] == len(whole) - 100 + (tmp_path / "manifest.json").stat().st_size
    assert shard.read_bytes() == whole


async def test_when_it_is_cancelled_its_files_go(harvests):
    written = asyncio.Event()
    harvests.runner.harvests._asks.ask = first_shard_noted(harvests, written)
    harvest_id = await harvests.submit(prompts=PROMPTS * 20)
    await written.wait()
    assert harvest_id in harvests.files.places()
    assert (await harvests.cancel(harvest_id)).json()["status"] == "cancelled"
    await until(lambda: harvest_id not in harvests.files.places())


async def test_a_bucket_that_is_lost_on_the_way_ends_it_with_a_word_that_helps(toy_checkpoint):
    with running_bucket() as server:
        async with harvests_api(toy_checkpoint, place=server.address) as harvests:
            written = asyncio.Event()
            harvests.runner.harvests._asks.ask = first_shard_noted(harvests, written)
            harvest_id = await harvests.submit(prompts=PROMPTS * 20)
            await written.wait()
            server.kill()
            harvests.engine.step_s = 0
            found = await harvests.ended(harvest_id)
            assert (found["status"], found["error"]["code"]) == ("failed", "storage_unavailable")
            assert "bucket" in found["error"]["message"]
            assert "result" not in found
            (settled,) = harvests.events(RESOLVED)
            noted = sum(event.tokens for event in harvests.of(harvest_id, Harvest.ShardWritten))
            assert 0 < noted <= settled.prompt_tokens < found["n_tokens"]
