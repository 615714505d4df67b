"""The same store in a bucket: a real S3-compatible server in a process of its own. Skipped unless ACS_TEST_MOTO names
the program `moto_server` of `pip install "moto[server]<5.2"`; 5.2.1 answers the multipart uploads of pyarrow wrongly.
"""

import os
import socket
import subprocess
import urllib.error
import urllib.request

import pyarrow.parquet as pq
import pytest
from made_shards import layout, prompts
from pyarrow import fs
from server.waiting import within

from acs.storage.shards.manifest import sweep, write_manifest, write_stats
from acs.storage.shards.store import UNAVAILABLE, Store, StoreUnavailable
from acs.storage.shards.writer import write_shard

START_S = 60


@pytest.fixture
def server():
    program = os.environ.get("ACS_TEST_MOTO")
    if program is None:
        pytest.skip("ACS_TEST_MOTO is not set")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        within(START_S, lambda: process.poll() is None and answers(f"http://127.0.0.1:{port}/moto-api/"))
        yield process, f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except urllib.error.URLError:
        return False


@pytest.fixture
def bucket(server, monkeypatch):
    _, address = server
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setitem(os.environ, "AWS_EC2_METADATA_DISABLED", "true")
    options = f"scheme=http&endpoint_override={address}&region=us-east-1&allow_bucket_creation=true"
    files, root = fs.FileSystem.from_uri(f"s3://harvests?{options}")
    files.create_dir(root)
    return Store(files, root).inside("hrv_1")


def test_a_harvest_lies_in_a_bucket_as_in_a_folder(bucket, tmp_path):
    given = prompts([40, 50])
    shard = write_shard(bucket, layout(), 0, given)
    assert shard == write_shard(Store.at(str(tmp_path)), layout(), 0, given)
    assert pq.read_table(bucket.open(shard.name)).num_rows == 90
    write_manifest(bucket, layout(), [shard], write_stats(bucket, layout(), [shard]), {})
    assert bucket.sizes().keys() == {shard.name, "manifest.json", "stats.json"}


def test_a_writer_that_fails_leaves_nothing_in_the_bucket_and_the_sweep_takes_what_is_not_of_the_harvest(bucket):
    def failing():
        yield from prompts([5])
        raise RuntimeError("the replica is gone")

    with pytest.raises(RuntimeError):
        write_shard(bucket, layout(), 0, failing())
    assert bucket.sizes() == {}
    stray = write_shard(bucket, layout(), 0, prompts([5]))
    assert sweep(bucket, []) == [stray.name]


def test_a_bucket_that_is_lost_is_unavailable(server, bucket):
    process, _ = server
    process.kill()
    process.wait()
    with pytest.raises(StoreUnavailable) as caught:
        bucket.put("x", b"data")
    assert caught.value.word == UNAVAILABLE
