"""How HAProxy's manager starts HAProxy. uvloop's own way hangs here, and so does all of it under Serve."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What a lock does, which another thread held when the process forked, and which nobody in the child will ever open.
START = """
import asyncio, os, time, uvloop
from acs.serve_apps.proxy.manager import _started
os.register_at_fork(after_in_child=lambda: time.sleep(3600))
async def main():
    with open(os.devnull, "wb") as nowhere:
        process = await _started("/bin/sh", "-c", "exit 3", stdout=nowhere, stderr=nowhere)
    print(await process.wait(), process.returncode, flush=True)
uvloop.run(main())
"""


def test_nothing_that_a_thread_holds_keeps_haproxy_from_starting() -> None:
    pytest.importorskip("ray.serve._private.haproxy")
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=120)
    assert done.stdout == "3 3\n", done.stderr
