"""Every way in which a request of a running server can end, and what its Hold became, by the event log."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.audit import audit
from server.running import Server, start_server
from server.waiting import within

from acs.platform.settings import SHIPPED_CATALOGUES

pytestmark = pytest.mark.server

BOUND_S = 90
TOKENS = 250  # of a request that is to be met in the middle: 5 s
ENV = {
    "ACS_LIMIT_BREAKER_OPEN_S": "1",
    "ACS_LIMIT_OWNER_LEASE_S": "2",
    "ACS_LIMIT_SETTLE_S": "2",
}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk of its own, where the system allows one; else a folder."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "acs-test", str(folder)], capture_output=True)
    yield folder
    if mounted.returncode == 0:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, models_dir: Path, disk: Path) -> Iterator[Server]:
    """The fake engine, a token every 20 ms."""
    catalogue = tmp_path_factory.mktemp("slow") / "slow.toml"
    shipped = (SHIPPED_CATALOGUES / "fake.toml").read_text()
    catalogue.write_text(shipped.replace("max_model_len = 2048", "max_model_len = 2048, step_s = 0.02"))
    with start_server(disk, catalogue=str(catalogue), env=ENV | {"ACS_MODELS": str(models_dir)}) as running:
        yield running


class Asked:
    """One request on a connection of its own."""

    def __init__(self, server: Server, label: str, **fields: Any) -> None:
        self.label = label  # its X-Request-Id
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND_S)
        body = {"model": "fake", "prompt": "Once upon", "max_tokens": TOKENS, **fields}
        headers = server.headers | {"X-Request-Id": label}
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)
        self._answer: http.client.HTTPResponse | None = None

    def read_tokens(self, count: int) -> None:
        """Of a stream: so many events."""
        self._answer = self._answer or self._connection.getresponse()
        assert self._answer.status == 200
        while count:
            line = self._answer.readline()
            assert line, "the stream has ended"
            count -= line.startswith(b"data: {")

    def read(self) -> tuple[int, str]:
        """(status, the rest of the body)."""
        self._answer = self._answer or self._connection.getresponse()
        return self._answer.status, self._answer.read().decode()

    def cut(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._connection.close()

    def placed(self) -> dict[str, Any]:
        """Its HoldPlaced, once it is on disk."""

        def found() -> list[dict[str, Any]]:
            holds = audit(self._server.data / "events.sqlite").placed.values()
            return [hold for hold in holds if hold["request_id"] == self.label]

        (hold,) = within(BOUND_S, found)
        return hold

    def ended(self) -> tuple[str, dict[str, Any]]:
        """(how its Hold ended, the event)."""
        hold_id = self.placed()["hold_id"]
        return within(BOUND_S, lambda: audit(self._server.data / "events.sqlite").ended.get(hold_id))


def kill(server: Server, what: str) -> None:
    (process,) = server.named(what)
    os.kill(process.pid, signal.SIGKILL)


def ask_briefly(server: Server) -> httpx.Response:
    body = {"model": "fake", "prompt": "Once", "max_tokens": 1}
    return httpx.post(server.v1 + "/completions", json=body, headers=server.headers, timeout=BOUND_S)


@pytest.fixture
def well(served: Server) -> Iterator[Server]:
    """The server, before and after: it answers, and no Hold is open."""
    within(BOUND_S, lambda: ask_briefly(served).status_code == 200)
    yield served
    within(BOUND_S, lambda: ask_briefly(served).status_code == 200)
    within(BOUND_S, lambda: not audit(served.data / "events.sqlite").open)


def test_a_stream_that_its_client_cuts_is_charged_to_the_tokens_that_were_sent(well: Server) -> None:
    stream = Asked(well, "cut-stream", stream=True)
    stream.read_tokens(10)
    stream.cut()
    how, event = stream.ended()
    assert (how, event["http_status"]) == ("settled", None)
    assert event["prompt_tokens"] == stream.placed()["prompt_tokens"]
    assert 10 <= event["completion_tokens"] < TOKENS


def test_a_whole_answer_whose_client_leaves_is_charged_to_what_was_generated(well: Server) -> None:
    whole = Asked(well, "cut-whole", n=2)
    whole.placed()
    later = Asked(well, "beside", stream=True)
    later.read_tokens(10)
    whole.cut()
    how, event = whole.ended()
    assert (how, event["http_status"]) == ("settled", None)
    assert event["prompt_tokens"] == whole.placed()["prompt_tokens"]
    assert 10 <= event["completion_tokens"] < 2 * TOKENS
    later.cut()


def test_an_engine_that_dies_costs_nothing_but_what_a_stream_has_sent(well: Server) -> None:
    whole, stream = Asked(well, "dead-whole"), Asked(well, "dead-stream", stream=True)
    whole.placed()
    stream.read_tokens(10)
    kill(well, "ServeReplica:model-fake")
    status, body = whole.read()
    assert (status, json.loads(body)["error"]["code"]) == (502, "vllm_engine_dead")
    assert "vllm_engine_dead" in stream.read()[1]
    how, event = whole.ended()
    assert (how, event["reason"], event["http_status"]) == ("released", "vllm_engine_dead", 502)
    how, event = stream.ended()
    assert (how, event["http_status"]) == ("settled", 200)
    assert 10 <= event["completion_tokens"] < TOKENS


def test_the_holds_of_an_ingress_that_dies_expire_and_nothing_is_charged(well: Server) -> None:
    whole, stream = Asked(well, "lost-whole"), Asked(well, "lost-stream", stream=True)
    whole.placed()
    stream.read_tokens(10)
    kill(well, "ServeReplica:api")
    for lost in (whole, stream):
        assert lost.ended()[0] == "expired"
        lost.cut()


def test_what_runs_while_the_ledger_dies_is_answered_and_charged_once(well: Server) -> None:
    whole, stream = Asked(well, "kept-whole"), Asked(well, "kept-stream", stream=True)
    whole.placed()
    stream.read_tokens(10)
    kill(well, "LedgerActor")
    assert stream.read()[1].endswith("data: [DONE]\n\n")
    assert whole.read()[0] == 200
    for kept in (whole, stream):
        how, event = kept.ended()
        assert (how, event["http_status"], event["completion_tokens"]) == ("settled", 200, TOKENS)


def test_a_full_disk_refuses_what_is_new_and_loses_no_hold(well: Server, disk: Path) -> None:
    if not disk.is_mount():
        pytest.skip("no small disk may be mounted here")
    whole, stream = Asked(well, "full-whole"), Asked(well, "full-stream", stream=True)
    whole.placed()
    stream.read_tokens(10)
    with ThreadPoolExecutor(1) as threads:
        answered: Future[tuple[int, str]] = threads.submit(whole.read)
        filler = fill(disk)
        refused = within(BOUND_S, lambda: refusal(ask_briefly(well)))
        status, body = answered.result()
        filler.unlink()
    assert refused == (503, None, "1") or refused[:2] == (500, "internal_error")
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")  # it could not be charged in time
    assert stream.read()[1].endswith("data: [DONE]\n\n")
    for kept in (whole, stream):
        how, event = kept.ended()
        assert (how, event["completion_tokens"]) == ("settled", TOKENS)


def fill(disk: Path) -> Path:
    """To the last byte; returns the file to be deleted."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):  # which says that the disk is full
        while True:
            file.write(bytes(4096))
    return filler


def refusal(answer: httpx.Response) -> tuple[int, str | None, str | None] | None:
    """(status, code, Retry-After); None for a 200."""
    if answer.status_code == 200:
        return None
    return answer.status_code, answer.json()["error"]["code"], answer.headers.get("Retry-After")
