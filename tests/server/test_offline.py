"""A server needs no network and looks for none: run where there is no other machine, and where every packet counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.running import Server, start_server

pytestmark = [pytest.mark.server, pytest.mark.engine]

CUT = "ip link set lo up"
# A network interface and a route to everywhere, behind which nobody is: whatever is sent out is counted, and lost.
COUNTED = f"""{CUT}
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip link add out type veth peer name nowhere
ip link set out up
ip link set nowhere up
ip address add 192.0.2.1/24 dev out
ip route add default via 192.0.2.2"""

ASK = """
import json, os, sys, httpx
base, key, model = sys.argv[1:]
body = {"model": model, "prompt": "Once upon a time", "max_tokens": 4}
answer = httpx.post(base + "/completions", json=body, headers={"Authorization": "Bearer " + key}, timeout=60)
print(json.dumps({"status": answer.status_code, "body": answer.json()}))
"""


def alone(network: str) -> list[str]:
    """The words that start a command in a network of its own. Skips the test where the system does not allow that."""
    words = ["unshare", "--net", "sh", "-e", "-c", f'{network}\nexec "$@"', "sh"]
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare on this machine")
    if tried.returncode:
        pytest.skip(f"a network of one's own is not permitted here: {tried.stderr.strip()}")
    return words


@pytest.fixture(params=[pytest.param(COUNTED, id="counted"), pytest.param(CUT, id="cut", marks=pytest.mark.soak)])
def network(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lonely(network: str, toy_checkpoint: Path, models_dir: Path, tmp_path: Path) -> Iterator[Server]:
    """The real engine, on a prepared model."""
    env = {"ACS_MODELS": str(models_dir)}
    with start_server(tmp_path, catalogue="toy", env=env, prefix=alone(network)) as server:
        yield server


def inside(server: Server, *command: str) -> str:
    """What the command prints when it runs in the server's network."""
    words = ["nsenter", f"--net=/proc/{server.process.pid}/ns/net", *command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_a_server_starts_and_answers_without_a_network_and_sends_nothing_out(lonely: Server, network: str) -> None:
    answer = json.loads(inside(lonely, sys.executable, "-c", ASK, lonely.v1, lonely.key, "toy"))
    assert answer["status"] == 200, answer
    assert answer["body"]["usage"]["completion_tokens"] == 4
    if network == COUNTED:
        counters = inside(lonely, "cat", "/proc/net/dev").partition("out:")[2].split()
        assert int(counters[9]) == 0, "packets were sent out"
