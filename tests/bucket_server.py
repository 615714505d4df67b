"""A real S3-compatible server in a process of its own, with one bucket, `harvests`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from pyarrow import fs
from server.running import free_port
from server.waiting import within

KEYS = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a secret", "AWS_EC2_METADATA_DISABLED": "true"}
START_S = 60


@dataclass(frozen=True)
class BucketServer:
    process: subprocess.Popen[bytes]
    host: str  # with its port

    @property
    def address(self) -> str:
        """As the store takes it."""
        return f"s3://harvests/acs?scheme=http&endpoint_override={self.host}&region=us-east-1"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_bucket() -> Iterator[BucketServer]:
    """With its keys in the environment."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with mock.patch.dict("os.environ", KEYS):
        server = BucketServer(subprocess.Popen(command, stderr=subprocess.DEVNULL), f"127.0.0.1:{port}")
        try:
            within(START_S, lambda: _answers(server))
            making, bucket = fs.FileSystem.from_uri(server.address.replace("/acs?", "?allow_bucket_creation=true&"))
            making.create_dir(bucket)
            yield server
        finally:
            server.kill()


def _answers(server: BucketServer) -> bool:
    assert server.process.poll() is None, "it has ended"
    try:
        with urllib.request.urlopen(f"http://{server.host}/moto-api/", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False
