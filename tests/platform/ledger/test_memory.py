"""What the ledger remembers is what its log says, with a checkpoint or without one."""

import pytest
from local_ledger import local_ledger

from acs.events.hold import Price
from acs.events.ids import uuid7
from acs.platform.ledger import checkpoint, memory
from acs.platform.ledger.contract import IdempotencyKey, Kept, Open, Settle
from acs.platform.ledger.memory import recall
from acs.storage.event_store import open_event_store

PRICES = {"toy": Price(1000, 3000)}


def run_requests(ledger, account, key, count, *, settled=True):
    """`count` requests, one after the other, the last of them open when not `settled`."""
    replies = []
    for number in range(count):
        hold_id = f"hold_{uuid7().hex}"
        once = IdempotencyKey(str(number), "sha") if number % 3 else None
        order = Open(hold_id, account, key, "req", "toy", "completion", None, 10, 1, 10, 0, True, once)
        ledger.desk.handle("ingress_1", order, replies.append)
        if settled or number < count - 1:
            kept = Kept(200, "blob", 7) if number % 2 else None
            ledger.desk.handle("ingress_1", Settle(hold_id, account, 10, number % 10, 200, kept), replies.append)
    return replies


def facts(memory):
    books = memory.books
    return (
        memory.table.everything()[1],
        memory.table.accounts(),
        memory.table.spend_limit_micro_usd,
        {id: (ledger.version, ledger.book) for id, ledger in books.ledgers.items()},
        {hold_id: hold for hold_id, (_, hold) in books.open_holds.items()},
        books.spend.days,
        {digest: (known.id, known.version, known.attempt) for digest, known in memory.repeats.requests.items()},
    )


async def life(ledger, until, count=50):
    account = ledger.account()
    key, _ = ledger.key(account)
    ledger.accounts.set_account_budget(account, 10_000)
    ledger.accounts.set_platform_spend_limit(10_000_000)
    replies = run_requests(ledger, account, key, count, settled=False)
    await until(lambda: len(replies) == 2 * count - 1)
    return account, key


def again(tmp_path, folder="."):
    store = open_event_store(tmp_path / "events.sqlite")
    try:
        return recall(store, tmp_path / folder / "ledger.checkpoint", PRICES)
    finally:
        store.close()


async def test_a_ledger_that_starts_again_remembers_what_the_former_one_did(tmp_path, until):
    with local_ledger(tmp_path, prices=PRICES) as ledger:
        await life(ledger, until)
        assert facts(again(tmp_path)) == facts(ledger.memory)


async def test_a_start_from_a_checkpoint_remembers_the_same_and_reads_only_what_came_after(
    tmp_path, until, monkeypatch
):
    monkeypatch.setattr(memory, "CHECKPOINT_EVENTS", 40)
    with local_ledger(tmp_path, prices=PRICES) as ledger:
        account, key = await life(ledger, until)
        await until((tmp_path / "ledger.checkpoint").exists)
        ledger.accounts.rename_key(key, "desk")
        replies = run_requests(ledger, account, key, 1)
        await until(lambda: len(replies) == 2)
        from_checkpoint, from_log = again(tmp_path), again(tmp_path, "elsewhere")
        assert facts(from_checkpoint) == facts(from_log) == facts(ledger.memory)
        assert from_checkpoint.replayed < from_log.replayed == ledger.memory.store.head()


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, checkpoint.write])
async def test_a_checkpoint_that_cannot_be_used_is_passed_over(tmp_path, until, content):
    path = tmp_path / "ledger.checkpoint"
    with local_ledger(tmp_path, prices=PRICES) as ledger:
        await life(ledger, until)
        if callable(content):  # one of a log that went further than this one
            memory = ledger.memory
            content(path, 10**6, memory.table, memory.encoded())
        else:
            path.write_bytes(content)
        assert facts(again(tmp_path)) == facts(ledger.memory)


async def test_open_holds_take_their_slots_again_after_a_restart(tmp_path, until):
    with local_ledger(tmp_path, prices=PRICES) as ledger:
        account, key = await life(ledger, until)
    with local_ledger(tmp_path, prices=PRICES, slots={"toy": 1}) as ledger:
        (reply,) = run_requests(ledger, account, key, 1, settled=False)
        assert type(reply).__name__ == "Waiting"
        assert ledger.desk.owners() == {"ingress_1"}


async def test_a_full_disk_loses_the_checkpoint_and_not_the_events(tmp_path, until, monkeypatch):
    monkeypatch.setattr(memory, "CHECKPOINT_EVENTS", 10)
    (tmp_path / "ledger.partial").mkdir()  # where the draft should be
    with local_ledger(tmp_path, prices=PRICES) as ledger:
        await life(ledger, until)
        assert not ledger.failures
        assert facts(again(tmp_path)) == facts(ledger.memory)
