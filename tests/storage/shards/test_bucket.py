"""The same store in a bucket: a real S3-compatible server in a process of its own."""

from datetime import UTC, datetime

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from bucket_server import KEYS, running_bucket
from made_shards import layout, prompts

from acs.storage.shards.manifest import sweep, write_manifest, write_stats
from acs.storage.shards.presigned import Presigner
from acs.storage.shards.store import UNAVAILABLE, Store, StoreUnavailable
from acs.storage.shards.writer import write_shard


@pytest.fixture(scope="module")
def server():
    with running_bucket() as server:
        yield server


@pytest.fixture
def bucket(server):
    bucket = Store.at(server.address).inside("hrv_1")
    yield bucket
    bucket.remove_all()


def test_a_harvest_lies_in_a_bucket_as_in_a_folder(bucket, tmp_path):
    given = prompts([40, 50])
    shard = write_shard(bucket, layout(), 0, given)
    assert shard == write_shard(Store.at(str(tmp_path)), layout(), 0, given)
    assert pq.read_table(bucket.open(shard.name)).num_rows == 90
    write_manifest(bucket, layout(), [shard], write_stats(bucket, layout(), [shard]), {})
    assert bucket.sizes().keys() == {shard.name, "manifest.json", "stats.json"}


def test_a_file_that_is_sent_in_parts_is_whole(bucket):
    data = np.random.default_rng(0).bytes(25_000_000)
    bucket.put("x", data)
    assert bucket.read("x") == data


def test_a_writer_that_fails_leaves_nothing_in_the_bucket_and_the_sweep_takes_what_is_not_of_the_harvest(bucket):
    def failing():
        yield from prompts([5])
        raise RuntimeError("the replica is gone")

    with pytest.raises(RuntimeError):
        write_shard(bucket, layout(), 0, failing())
    assert bucket.sizes() == {}
    stray = write_shard(bucket, layout(), 0, prompts([5]))
    assert sweep(bucket, []) == [stray.name]


def test_a_presigned_link_needs_no_key_and_serves_ranges(server, bucket):
    bucket.put("x y.json", b"0123456789")
    presigner = Presigner.of(server.address, bucket.region, KEYS)
    url = presigner.url(bucket.path_of("x y.json"), datetime.now(UTC), 60)
    assert httpx.get(url).content == b"0123456789"
    part = httpx.get(url, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")


def test_a_bucket_that_is_lost_is_unavailable():
    with running_bucket() as server:
        bucket = Store.at(server.address).inside("hrv_1")
        bucket.put("x", b"data")
        server.kill()
        with pytest.raises(StoreUnavailable) as caught:
            bucket.put("y", b"data")
        assert caught.value.word == UNAVAILABLE
