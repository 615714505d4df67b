"""What the ledger remembered at a position of its log, in a file beside it: a start replays only what came after.

The file may be deleted at any time, and is passed over when its `FORM` is not ours: the log has everything.
"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from uuid import UUID

import msgspec

from acs.events.harvest import HarvestRecord
from acs.events.idempotency import Attempt, IdempotentRequest
from acs.events.job import JobRecord
from acs.events.ledger import Ledger, Month
from acs.events.loom_tree import LoomRecord
from acs.platform.ledger.books import Books
from acs.platform.ledger.harvests import Harvests
from acs.platform.ledger.jobs import Jobs
from acs.platform.ledger.key_table import AccountRow, KeyRow, KeyTable
from acs.platform.ledger.looms import Looms
from acs.platform.ledger.repeats import Repeats

FORM = 6  # to be raised with every change of what a checkpoint holds or means


class _Table(msgspec.Struct, array_like=True):
    accounts: list[AccountRow]
    keys: list[KeyRow]
    spend_limit_micro_usd: int | None
    knows_platform_settings: bool


class _Books(msgspec.Struct, array_like=True):
    months: list[tuple[UUID, int, Month]]  # a Ledger's id, version, book
    spend: dict[date, dict[str, int]]
    repeats: list[tuple[UUID, int, Attempt]]
    jobs: list[tuple[str, int, JobRecord]]
    harvests: list[tuple[str, int, HarvestRecord]]
    looms: list[tuple[str, int, LoomRecord]]


class _Checkpoint(msgspec.Struct, array_like=True):
    form: int
    position: int
    table: _Table
    books: _Books


class _Draft(msgspec.Struct, array_like=True):
    form: int
    position: int
    table: _Table
    books: msgspec.Raw


_decoder = msgspec.msgpack.Decoder(_Checkpoint)


def encode_books(books: Books, repeats: Repeats, jobs: Jobs, harvests: Harvests, looms: Looms) -> bytes:
    """To be called between two commands; 50 ms for a million Holds of the last day."""
    months = [(ledger.id, ledger.version, ledger.book) for ledger in books.ledgers.values()]
    attempts = [(request.id, request.version, request.attempt) for request in repeats.requests.values()]
    works = list(jobs.everything()), list(harvests.everything()), list(looms.everything())
    return msgspec.msgpack.encode(_Books(months, dict(books.spend.days), attempts, *works))


def write(path: Path, position: int, table: KeyTable, books: bytes) -> None:
    """Whole or not at all, for the owner only. Raises OSError. `position`: of the last event that both know."""
    accounts = table.accounts()
    keys = [key for account in accounts for key in table.keys_of(account.id)]
    rows = _Table(accounts, keys, table.spend_limit_micro_usd, table.knows_platform_settings)
    draft = path.with_suffix(".partial")
    with open(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
        file.write(msgspec.msgpack.encode(_Draft(FORM, position, rows, msgspec.Raw(books))))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read(
    path: Path,
    head: int,
    table: KeyTable,
    books: Books,
    repeats: Repeats,
    jobs: Jobs,
    harvests: Harvests,
    looms: Looms,
) -> int:
    """Fills what is empty; returns the position it is at. 0, and all left empty, when there is no checkpoint of our
    form, or when it is of a log that went further than `head`.
    """
    try:
        found = _decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return 0
    if found.form != FORM or found.position > head:
        return 0
    table.restore(found.position, found.table.accounts, found.table.keys)
    table.spend_limit_micro_usd = found.table.spend_limit_micro_usd
    table.knows_platform_settings = found.table.knows_platform_settings
    for id, version, month in found.books.months:
        books.keep(Ledger.restored(id, version, month))
    books.spend.restore(found.books.spend)
    for id, version, attempt in found.books.repeats:
        repeats.keep(IdempotentRequest.restored(id, version, attempt))
    for job_id, version, record in found.books.jobs:
        jobs.keep(job_id, version, record)
    for harvest_id, version, harvest in found.books.harvests:
        harvests.keep(harvest_id, version, harvest)
    for loom_id, version, loom in found.books.looms:
        looms.restore(loom_id, version, loom)
    return found.position
