import asyncio

import msgspec
from local_ledger import local_ledger

from acs.platform import frames
from acs.platform.clock import MonotonicClock
from acs.platform.frames import Hello
from acs.platform.ledger.contract import Release, Reply
from acs.platform.ledger.front import Front

replies = msgspec.msgpack.Decoder(list[Reply])
command = Release("hold_1", "acct_1", "client_gone", None)


async def test_an_ingress_that_opens_a_new_link_is_heard_on_no_older_one(tmp_path):
    """Its commands come again on the new link; an older copy, read after them, would place a Hold that nobody ends."""
    answered, lost = asyncio.Event(), asyncio.Event()

    async def link():
        on_replies, on_lost = lambda *_: answered.set(), lambda _: lost.set()
        return await frames.connect("127.0.0.1", port, Hello("secret", "ingress_1"), replies, on_replies, on_lost)

    with local_ledger(tmp_path) as ledger:
        front = Front(ledger.desk, ledger.job_desk, ledger.harvest_desk, ledger.loom_desk, 10, MonotonicClock())
        port = await front.listen("127.0.0.1", "secret")
        first = await link()
        first.send(command)
        await asyncio.wait_for(answered.wait(), 10)
        answered.clear()
        second = await link()
        await asyncio.wait_for(lost.wait(), 10)
        assert first.lost
        second.send(command)
        await asyncio.wait_for(answered.wait(), 10)
