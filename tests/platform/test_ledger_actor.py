"""The actor's class as a plain object on this loop; `tests/server` has it under Ray."""

import asyncio

import pytest

from acs.platform import named_actor
from acs.platform.ledger_actor import LedgerActor
from acs.platform.settings import Settings
from acs.storage.event_store import EventStoreUnavailable


async def test_a_store_that_cannot_be_opened_is_said_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(named_actor, "REOPEN_PAUSE_S", 0.001)
    settings = Settings.from_environ({"ACS_DATA": str(tmp_path)})
    settings.event_store.mkdir()  # a folder where the file should be
    actor = LedgerActor(settings, {})
    for call in (actor.ready, lambda: actor.watch("a", None, -1), lambda: actor.ensure_local_key("http://x/v1")):
        with pytest.raises(EventStoreUnavailable):
            await call()
    assert not settings.admin_socket.exists(), "nobody is listened to before the log has been read"

    settings.event_store.rmdir()
    async with asyncio.timeout(10):
        while True:
            try:
                await actor.ready()
                break
            except EventStoreUnavailable:
                await asyncio.sleep(0.001)
    await actor.ensure_local_key("http://x/v1")
    assert settings.env_file.exists()
    changes = await actor.watch("a", None, -1)
    assert [key.caller.key_name for key in changes.keys] == ["local"]
