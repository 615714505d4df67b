"""A server of the fake engine whose parts are killed while clients work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
from server.running import Server, start_server
from server.waiting import within

from acs.events.ledger import Ledger
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.storage.event_store import open_event_store

# What is killed: a part of its command line.
RUNNER, REPLICA, LEDGER, INGRESS = "ServeReplica:jobs:", "ServeReplica:model-", "LedgerActor", "ServeReplica:api:"
SERVER = "the whole server"
RECOVERY_S = 300

RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)


def kill(server: Server, what: str) -> None:
    """`kill -9`. A part comes back by itself; the whole server must be started again."""
    if what == SERVER:
        server.process.kill()
        server.process.wait()
    else:
        (victim, *_) = within(RECOVERY_S, lambda: server.named(what))
        os.kill(victim.pid, signal.SIGKILL)


class Killed:
    def __init__(self, folder: Path, models_dir: Path, **env: str) -> None:
        self._folder = folder
        fake = (SHIPPED_CATALOGUES / "fake.toml").read_text()
        slow = fake.replace("max_model_len = 2048", "max_model_len = 2048, step_s = 0.01")
        (folder / "slow.toml").write_text(slow.replace("target_ongoing = 64", "target_ongoing = 16"))
        self._env = {"ACS_MODELS": str(models_dir), "ACS_LIMIT_JOB_RETRY_S": "0.5", "ACS_LIMIT_OWNER_LEASE_S": "3"}
        self._env |= env
        self.server = self._start()

    def _start(self) -> Server:
        return start_server(self._folder / "data", catalogue=str(self._folder / "slow.toml"), env=self._env)

    def ask(self, method: str, path: str, **fields: Any) -> httpx.Response:
        """`path`: after /v1."""
        headers = {**self.server.headers, **fields.pop("headers", {})}
        fields = {"timeout": 20, **fields}
        return httpx.request(method, f"{self.server.v1}{path}", headers=headers, **fields)

    def kill(self, what: str) -> None:
        kill(self.server, what)
        if what == SERVER:
            self.server = self._start()

    def events(self) -> list[Any]:
        """All of them, once the server has been stopped."""
        self.server.stop()
        store = open_event_store(self._folder / "data" / "events.sqlite")
        events = [event for _, event in store.read_log(0)]
        store.close()
        return events
