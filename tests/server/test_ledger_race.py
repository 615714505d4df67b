"""Many clients against the real ledger process at once, and the process killed under them: what the event log says
afterwards, by an auditor that shares no code with the ledger, and whether it is what the clients were told.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from server.audit import Audit, audit
from server.ledger_process import LedgerProcess
from server.racers import Race, Told

from acs.events.hold import Price
from acs.platform.ledger.memory import recall
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.storage.event_store import open_event_store

pytestmark = pytest.mark.server

SHORT, LONG = 15_000, 100_000  # commands
END_S = 60
MODELS = {"dear": (Price(1_000_001, 3_000_007), 12), "free": (Price(), 24)}  # prices, slots
LIMITS = {
    "ACS_LIMIT_OWNER_LEASE_S": "0.5",
    "ACS_LIMIT_KEY_LEASE_S": "0.2",
    "ACS_LIMIT_KEY_RUNNING": "10",
    "ACS_LIMIT_KEY_WAITING": "24",
    "ACS_LIMIT_KEY_RATE_PER_MINUTE": "1000000",
}
SEED = int(os.environ.get("ACS_TEST_SEED", "0"))


async def test_many_clients_spend_no_token_too_many_and_every_hold_ends_once(tmp_path: Path) -> None:
    await race(tmp_path, SHORT, kills=0)


async def test_a_ledger_that_is_killed_again_and_again_keeps_what_it_said_and_charges_once(tmp_path: Path) -> None:
    await race(tmp_path, SHORT, kills=5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_commands_spend_no_token_too_many(tmp_path: Path) -> None:
    await race(tmp_path, LONG, kills=0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_fifty_kills_lose_nothing_and_charge_nothing_twice(tmp_path: Path) -> None:
    await race(tmp_path, LONG, kills=50)


async def race(folder: Path, commands: int, kills: int) -> None:
    write_catalogue(folder / "models.toml")
    async with LedgerProcess(folder / "data", folder / "models.toml", LIMITS) as ledger:
        keys = await accounts_on_the_edge(ledger, commands)
        race = Race(ledger.endpoint, keys, list(MODELS), SEED)
        raising = asyncio.create_task(raise_a_budget(ledger, keys[0], race.told, commands))
        killing = asyncio.create_task(kill_at_random(ledger, race.told, commands, kills))
        await race.run(commands)
        await asyncio.gather(raising, killing)
        found = await when_all_holds_have_ended(ledger)
    print(f"seed {SEED}: {race.told.commands} commands; heard {dict(race.told.kinds)}; stored {dict(found.kinds)}")
    assert ledger.starts == kills + 1
    assert_all_that_was_said_is_true(found, race.told)
    assert_a_start_remembers(found, ledger)
    assert_it_was_a_race(found, race.told)


def write_catalogue(path: Path) -> None:
    shipped = (SHIPPED_CATALOGUES / "fake.toml").read_text()
    (entry,) = tomllib.loads(shipped)["models"].values()
    text = ""
    for model, (price, slots) in MODELS.items():
        entry |= {"replicas": {"target_ongoing": slots}, "price": dataclasses.asdict(price)}
        text += f"[models.{model}]\n" + "".join(f"{name} = {toml(value)}\n" for name, value in entry.items())
    path.write_text(text)


def toml(value: Any) -> str:
    """Of what a catalogue's entry holds."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


async def accounts_on_the_edge(ledger: LedgerProcess, commands: int) -> list[tuple[str, str]]:
    """(account, key) of three accounts with two keys each: one has a budget, one a budget for one of its keys, one a
    spend limit. Each is reached when a part of the race is over.
    """
    keys = []
    accounts = []
    for name in ("Ada", "Bob", "Cyd"):
        account = await ledger.ask("account.create", name=name, email="who@lab.org")
        made = [await ledger.ask("key.create", account=account["id"], name=key) for key in ("laptop", "desk")]
        accounts.append(account["id"])
        keys += [(account["id"], key["id"]) for key in made]
    await ledger.ask("budget.set", account=accounts[0], limit=str(commands))
    await ledger.ask("budget.set_of_key", account=accounts[1], id=keys[2][1], limit=str(commands))
    await ledger.ask("spend_limit.set", account=accounts[2], limit=str(commands))
    await ledger.ask("spend_limit.set_of_platform", limit=str(6 * commands))
    return keys


async def raise_a_budget(ledger: LedgerProcess, key: tuple[str, str], told: Told, commands: int) -> None:
    """Bit by bit, and lower again, while clients race for the last tokens."""
    chance = random.Random(SEED)
    while told.commands < commands:
        await asyncio.sleep(0.1)
        limit = commands + chance.randint(-100, told.commands)
        try:
            await ledger.ask("budget.set", account=key[0], limit=str(limit))
        except (OSError, ValueError):  # it was killed meanwhile
            continue


async def kill_at_random(ledger: LedgerProcess, told: Told, commands: int, kills: int) -> None:
    """At moments spread over the race; it starts again at once."""
    chance = random.Random(SEED)
    for moment in sorted(chance.randrange(commands * 9 // 10) for _ in range(kills)):
        while told.commands < moment:  # noqa: ASYNC110 - others make it true
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.random() * 0.1)
        await ledger.kill()
        await ledger.start()


async def when_all_holds_have_ended(ledger: LedgerProcess) -> Audit:
    """Their owners are gone, so the ledger gives them up."""
    async with asyncio.timeout(END_S):
        while (found := audit(ledger.settings.event_store)).open:  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.2)
    return found


def assert_it_was_a_race(found: Audit, told: Told) -> None:
    """Each thing that can happen has happened."""
    heard = {"Granted", "Waiting", "Refusal", "Resolved", "budget_exceeded", "spend_cap", "queue_full"}
    assert heard <= set(told.kinds), told.kinds
    assert {how for how, _ in found.ended.values()} == {"settled", "released", "expired"}
    assert {late["resolved_as"] for late in found.late} == {"settled", "released", "expired"}
    clamped = [hold_id for hold_id, tokens in told.granted.items() if tokens < told.orders[hold_id].max_tokens]
    assert clamped


def assert_all_that_was_said_is_true(found: Audit, told: Told) -> None:
    for hold_id, max_tokens in told.granted.items():
        assert found.placed[hold_id]["max_tokens"] == max_tokens
        assert found.placed[hold_id]["account_id"] == told.orders[hold_id].account_id
    for hold_id, statuses in told.resolved.items():
        if hold_id in found.placed:
            assert statuses == {found.how_ended(hold_id)}, hold_id
        else:  # its client left while it waited, or while the ledger was away
            assert statuses <= {"released", "unknown"}, hold_id
    assert set(found.placed) <= set(told.orders)


def assert_a_start_remembers(found: Audit, ledger: LedgerProcess) -> None:
    """By its checkpoint and without: the same tokens, to the last one."""
    prices = {model: price for model, (price, _) in MODELS.items()}
    store = open_event_store(ledger.settings.event_store)
    try:
        for checkpoint in (ledger.settings.ledger_checkpoint, Path("/nonexistent")):
            memory = recall(store, checkpoint, prices)
            charged = {month.book.account_id: month.book.account.charged for month in memory.books.ledgers.values()}
            assert charged == dict(found.charged)
            assert memory.books.open_holds == {}
            assert memory.books.spend.days == _spend_of(found)
    finally:
        store.close()


def _spend_of(found: Audit) -> dict[date, dict[str, int]]:
    days: dict[date, dict[str, int]] = {}
    for (day, account), pico_usd in found.spent.items():
        if pico_usd:
            days.setdefault(date.fromisoformat(day), {})["" if account == "everyone" else account] = pico_usd
    return days
