"""What is true of every process of a running server: what it has loaded, whom it lets in, what it writes down."""

from __future__ import annotations

import collections
import concurrent.futures
import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.logs import files_of_run, files_with
from server.running import Server, start_server
from server.waiting import within

from acs.platform.unix_socket import short_address

MARK = "verdigris-armadillo"
MANY = 60  # requests, each over a connection of its own


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Server]:
    """The fake engine behind two ingresses."""
    env = {"ACS_MODELS": str(models_dir), "ACS_INGRESS_REPLICAS": "2", "ACS_LIMIT_BREAKER_OPEN_S": "1"}
    with start_server(tmp_path_factory.mktemp("pair"), catalogue="fake", env=env) as server:
        yield server


# -- what they have loaded


@pytest.mark.parametrize("module", ["acs.serve_apps.api.ingress", "acs.serve_apps.build", "acs.platform.ledger_actor"])
def test_what_runs_beside_the_engine_imports_neither_torch_nor_vllm(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert {"torch", "vllm", "transformers"} & set(ran.stdout.split()) == set()


@pytest.mark.server
def test_only_a_model_replica_may_hold_torch_or_vllm(pair: Server) -> None:
    ingresses = pair.named("ServeReplica:api:")
    assert len(ingresses) == 2
    for process in [*ingresses, *pair.named("LedgerActor"), *pair.named("ServeController")]:
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libpython" in mapped or "python" in mapped
        assert "/torch/" not in mapped, process.cmdline
        assert "/vllm/" not in mapped, process.cmdline


# -- whom they let in


def acs(server: Server, *words: str) -> Any:
    """What the operator's command prints."""
    command = [sys.executable, "-P", "-m", "acs.platform.cli.main", *words, "--json"]
    environ = os.environ | {"ACS_DATA": str(server.data)}
    return json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


def answers(server: Server, key: str) -> set[tuple[int, str | None]]:
    """(status, code) of many requests, all sent after this call, so many that every ingress has its share."""

    fresh = httpx.Limits(max_keepalive_connections=0)
    headers = {"Authorization": f"Bearer {key}"}
    client = httpx.Client(base_url=server.v1, headers=headers, limits=fresh, timeout=60)

    def ask(_: int) -> tuple[int, str | None]:
        answer = client.get("/models")
        return answer.status_code, answer.json().get("error", {}).get("code")

    before = shares(server)
    with client, concurrent.futures.ThreadPoolExecutor(4) as clients:
        found = set(clients.map(ask, range(MANY)))
    after = shares(server)
    assert len(after) == 2
    assert all(after[name] > before[name] for name in after), (before, after)
    return found


def shares(server: Server) -> dict[str, int]:
    """How many requests HAProxy has given to each ingress, small and large ones."""
    (path,) = (server.data / "run" / "scratch" / "haproxy").resolve().glob("*/a.sock")
    with short_address(path) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(address)
        connection.sendall(b"show stat\n")
        with connection.makefile() as lines:
            table = csv.DictReader(io.StringIO(lines.read().removeprefix("# ")))
    rows = [row for row in table if row["type"] == "2" and row["status"].startswith("UP")]
    given: collections.Counter[str] = collections.Counter()
    for row in rows:
        if "api" in row["pxname"]:
            given[row["svname"]] += int(row["stot"])
    return given


@pytest.fixture
def account(pair: Server) -> str:
    return str(acs(pair, "account", "create", "--name", "Ada", "--email", "ada@lab.org")["id"])


@pytest.fixture
def key(pair: Server, account: str) -> dict[str, str]:
    made: dict[str, str] = acs(pair, "key", "create", "--account", account, "--name", "laptop")
    return made


@pytest.mark.server
def test_a_new_key_is_good_and_a_revoked_one_is_not_from_the_next_request_on_any_ingress(
    pair: Server, key: dict[str, str]
) -> None:
    assert answers(pair, key["key"]) == {(200, None)}
    acs(pair, "key", "revoke", key["id"])
    assert answers(pair, key["key"]) == {(401, "key_revoked")}


@pytest.mark.server
def test_a_disabled_key_is_refused_until_it_is_enabled_on_every_ingress(pair: Server, key: dict[str, str]) -> None:
    acs(pair, "key", "disable", key["id"])
    assert answers(pair, key["key"]) == {(401, "key_disabled")}
    acs(pair, "key", "enable", key["id"])
    assert answers(pair, key["key"]) == {(200, None)}


@pytest.mark.server
def test_a_suspended_account_is_refused_until_it_is_restored_on_every_ingress(
    pair: Server, account: str, key: dict[str, str]
) -> None:
    acs(pair, "account", "suspend", account)
    assert answers(pair, key["key"]) == {(401, "account_suspended")}
    acs(pair, "account", "restore", account)
    assert answers(pair, key["key"]) == {(200, None)}


@pytest.mark.server
def test_an_unknown_key_and_none_are_refused_by_every_ingress(pair: Server) -> None:
    assert answers(pair, "sk-acs-" + "0" * 43) == {(401, "invalid_api_key")}
    codes = {httpx.get(pair.v1 + "/models").json()["error"]["code"] for _ in range(8)}
    assert codes == {"missing_authorization"}


# -- what they write down: the last of this file, for it kills a replica


@pytest.mark.server
def test_no_text_and_no_key_reaches_a_log(pair: Server) -> None:
    good = {"model": "fake", "prompt": MARK, "max_tokens": 3}
    stranger = "sk-acs-" + MARK
    with httpx.Client(base_url=pair.v1, headers=pair.headers, timeout=60) as client:

        def ask(status: int, content: Any, **options: Any) -> None:
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            assert client.post("/completions", content=sent, **options).status_code == status

        ask(200, good | {"echo": True, "logprobs": 1, "user": MARK, "stop": [MARK]})
        ask(200, good | {"stream": True})
        ask(400, good | {"temperature": MARK})
        ask(400, good | {MARK: 1})
        ask(400, good | {"model": MARK})
        ask(400, good | {"prompt": [MARK, 1]})
        ask(400, good | {"prompt": (MARK + " ") * 3000})
        ask(400, b'{"prompt": "' + MARK.encode())
        ask(400, b'{"prompt": "' + MARK.encode() + b'\xff"}')
        ask(401, good, headers={"Authorization": f"Bearer {stranger}"})
        ask(401, good, headers={"Authorization": MARK})
        client.post("/completions/tokenize", json={"model": "fake", "prompt": MARK})
        endless = good | {"max_tokens": 2000, "n": 512, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(2) as clients:
            dying = [clients.submit(client.post, "/completions", json=endless | {"stream": s}) for s in (False, True)]
            within(30, lambda: busy(pair))
            os.kill(pair.named("ServeReplica:model-fake")[0].pid, signal.SIGKILL)
            assert dying[0].result().json()["error"]["code"] == "vllm_engine_dead"
            assert "vllm_engine_dead" in dying[1].result().text
        within(60, lambda: client.post("/completions", json=good).status_code == 200)
    assert sum(1 for _ in files_of_run(pair)) > 10
    assert files_with(pair, MARK, pair.key, "sk-acs-") == []


def busy(server: Server) -> bool:
    """Whether the fake engine generates: its process is at work without a pause."""
    (replica,) = server.named("ServeReplica:model-fake")
    return " R " in Path(f"/proc/{replica.pid}/stat").read_text()
