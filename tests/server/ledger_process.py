"""The ledger's own class in a process of its own, without Ray, to be killed at any moment and started again.

    ledger = LedgerProcess(folder, catalogue, {"ACS_LIMIT_OWNER_LEASE_S": "0.5"})
    async with ledger:
        client = LedgerClient(ledger.endpoint)
        await ledger.kill()  # kill -9
        await ledger.start()

This file is the program too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acs.platform.settings import Settings
from acs.platform.unix_socket import short_address

START_S = 60
CHECKPOINT_EVENTS = 3000  # few, so that a short race passes many


class LedgerProcess:
    def __init__(self, data: Path, catalogue: Path, limits: Mapping[str, str]) -> None:
        """`limits`: variables of the environment."""
        self._environ = {**os.environ, "ACS_DATA": str(data), "ACS_CATALOGUE": str(catalogue), **limits}
        self.settings = Settings.from_environ(self._environ)
        self.starts = 0
        self._endpoint: tuple[str, int, str] | None = None

    async def start(self) -> None:
        """Returns when it serves."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", __file__, env=self._environ, stdin=pipe, stdout=pipe
        )
        assert self._process.stdout is not None
        host, port, secret = json.loads(await asyncio.wait_for(self._process.stdout.readline(), START_S))
        self._endpoint = host, port, secret
        self.starts += 1

    async def kill(self) -> None:
        """Returns when nothing of it is left."""
        self._endpoint = None
        self._process.kill()
        await self._process.wait()

    async def endpoint(self) -> tuple[str, int, str]:
        """For a LedgerClient."""
        if self._endpoint is None:
            raise ConnectionError("the ledger is away")
        return self._endpoint

    async def ask(self, do: str, **fields: str) -> Any:
        """The operator's commands, as `acs` sends them."""
        with short_address(self.settings.admin_socket) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        answer = json.loads(await reader.readline())
        writer.close()
        assert "error" not in answer, answer
        return answer["ok"]

    async def __aenter__(self) -> LedgerProcess:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


async def serve() -> None:
    from acs.platform import ledger_actor
    from acs.platform.catalogue import Catalogue
    from acs.platform.ledger import memory

    memory.CHECKPOINT_EVENTS = CHECKPOINT_EVENTS
    ledger_actor.own_address = lambda: "127.0.0.1"  # Ray's answer takes a second to import
    settings = Settings.from_environ()
    actor = ledger_actor.LedgerActor(settings, Catalogue.load(settings.catalogue))
    await actor.ready()
    print(json.dumps(await actor.endpoint()), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # ends with whoever started us


if __name__ == "__main__":
    asyncio.run(serve())
