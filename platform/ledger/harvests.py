"""The ledger's memory of Harvests: those that have not ended, and those that ended lately. A fold of the log.

Each command appends the Harvest's own event; its Hold's goes into the same commit
(`acs.platform.ledger.harvest_runs`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from acs.events.harvest import Harvest, HarvestRecord, HarvestStatus, Terms, WrittenShard
from acs.events.ids import HARVEST, parse, show
from acs.storage.event_store import Event

REMEMBERED = timedelta(days=32)  # after its end, however long its files are kept: the month's quota counts it


class Harvests:
    """Ids are those people see (`hrv_…`)."""

    def __init__(self) -> None:
        self._records: dict[str, HarvestRecord] = {}
        self._versions: dict[str, int] = {}
        self._of_account: dict[str, list[str]] = {}  # ids, which sort by the time they were made
        self._unfinished: dict[str, None] = {}  # ids, in the order in which they were submitted
        self._with_files: dict[str, None] = {}  # ids of those that ended and have not expired, oldest end first
        self._expired: dict[str, None] = {}
        self.on_change: Callable[[str], None] = _nobody_watches  # is told whose status changes, within the same turn

    def apply(self, event: Any) -> None:
        """One event of a Harvest, as the log has it."""
        harvest_id = show(HARVEST, event.originator_id)
        harvest = event.mutate(self._harvest(harvest_id) if harvest_id in self else None)
        self.keep(harvest_id, harvest.version, harvest.record)

    def everything(self) -> Iterator[tuple[str, int, HarvestRecord]]:
        """(id, version, record), for a checkpoint: first those that have ended, in the order in which they did."""
        for harvest_id in [*self._expired, *self._with_files, *self._unfinished]:
            yield harvest_id, self._versions[harvest_id], self._records[harvest_id]

    def keep(self, harvest_id: str, version: int, record: HarvestRecord) -> None:
        """As its events up to `version` made it."""
        self._versions[harvest_id] = version
        if harvest_id not in self:
            self._records[harvest_id] = record
            insort(self._of_account.setdefault(record.terms.account_id, []), harvest_id)
        if not record.status.ended:
            self._unfinished.setdefault(harvest_id)
            return
        self._unfinished.pop(harvest_id, None)
        if record.expired:
            self._with_files.pop(harvest_id, None)
        (self._expired if record.expired else self._with_files).setdefault(harvest_id)

    def unfinished(self) -> list[tuple[str, HarvestRecord]]:
        """In the order in which they were submitted."""
        return [(harvest_id, self._records[harvest_id]) for harvest_id in self._unfinished]

    def running(self) -> list[tuple[str, HarvestRecord]]:
        return [(id, record) for id, record in self.unfinished() if record.status is HarvestStatus.RUNNING]

    def with_files(self) -> list[str]:
        """Those whose files are wanted: they are being written, or wait for readers."""
        done = [id for id in self._with_files if self._records[id].status is HarvestStatus.DONE]
        return [*self._unfinished, *done]

    def of_account(self, account_id: str) -> Iterator[tuple[str, HarvestRecord]]:
        """All that are remembered, newest first."""
        return self.newest_first(account_id, None)

    def newest_first(self, account_id: str, after: str | None) -> Iterator[tuple[str, HarvestRecord]]:
        """Those of the account; `after`: only those made before this one, which need not be there any more."""
        ids = self._of_account.get(account_id, [])
        end = len(ids) if after is None else bisect_left(ids, after)
        return ((ids[i], self._records[ids[i]]) for i in range(end - 1, -1, -1))

    def ended_before(self, moment: datetime, limit: int) -> list[str]:
        """Those with files, oldest first, `limit` at most."""
        return self._older(self._with_files, moment, limit)

    def pace_of(self, model: str, harvests: int) -> float | None:
        """Tokens a second of the model's last `harvests` done ones, from start to end; None: there was none."""
        tokens, seconds = 0, 0.0
        for harvest_id in reversed([*self._expired, *self._with_files]):
            record = self._records[harvest_id]
            if record.status is HarvestStatus.DONE and record.terms.model == model:
                assert record.started_at is not None
                assert record.finished_at is not None
                tokens += record.terms.n_tokens
                seconds += (record.finished_at - record.started_at).total_seconds()
                harvests -= 1
                if not harvests:
                    break
        return tokens / seconds if seconds else None

    def __contains__(self, harvest_id: str) -> bool:
        return harvest_id in self._records

    def __getitem__(self, harvest_id: str) -> HarvestRecord:
        """Of one that is known to be there."""
        return self._records[harvest_id]

    def get(self, harvest_id: str) -> HarvestRecord | None:
        return self._records.get(harvest_id)

    def forget(self, before: datetime, limit: int) -> None:
        """Those that ended before, `limit` at most: nobody finds them any more. They stay in the log."""
        for harvest_id in self._older(self._expired, before, limit):
            ids = self._of_account[self._records[harvest_id].terms.account_id]
            del self._records[harvest_id], self._versions[harvest_id], self._expired[harvest_id]
            del ids[bisect_left(ids, harvest_id)]

    # Commands: each returns the events it appended

    def submit(self, harvest_id: str, terms: Terms, now: datetime) -> Sequence[Event]:
        return self._appended(Harvest.submit(_uuid(harvest_id), now, terms))

    def start(self, harvest_id: str, runner: str, now: datetime) -> Sequence[Event]:
        return self._changed(harvest_id, lambda harvest: harvest.start(runner, now))

    def note_shard(self, harvest_id: str, number: int, shard: WrittenShard, now: datetime) -> Sequence[Event]:
        return self._changed(harvest_id, lambda harvest: harvest.note_shard(number, shard, now))

    def finish(self, harvest_id: str, manifest_sha256: str, now: datetime) -> Sequence[Event]:
        return self._changed(harvest_id, lambda harvest: harvest.finish(manifest_sha256, now))

    def fail(self, harvest_id: str, word: str, now: datetime) -> Sequence[Event]:
        return self._changed(harvest_id, lambda harvest: harvest.fail(word, now))

    def cancel(self, harvest_id: str, reason: str, now: datetime) -> Sequence[Event]:
        return self._changed(harvest_id, lambda harvest: harvest.cancel(reason, now))

    def expire(self, harvest_id: str, now: datetime) -> Sequence[Event]:
        return self._changed(harvest_id, lambda harvest: harvest.expire(now))

    # Inside

    def _older(self, ids: dict[str, None], moment: datetime, limit: int) -> list[str]:
        found = []
        for harvest_id in itertools.islice(ids, limit):
            finished_at = self._records[harvest_id].finished_at
            assert finished_at is not None
            if finished_at >= moment:
                break
            found.append(harvest_id)
        return found

    def _changed(self, harvest_id: str, change: Callable[[Harvest], None]) -> Sequence[Event]:
        harvest = self._harvest(harvest_id)
        before = harvest.record.status
        change(harvest)
        events = self._appended(harvest)
        if harvest.record.status is not before:
            self.on_change(harvest_id)
        return events

    def _appended(self, harvest: Harvest) -> Sequence[Event]:
        events = harvest.collect_events()
        self.keep(show(HARVEST, harvest.id), harvest.version, harvest.record)
        return events

    def _harvest(self, harvest_id: str) -> Harvest:
        return Harvest.restored(_uuid(harvest_id), self._versions[harvest_id], self._records[harvest_id])


def _nobody_watches(harvest_id: str) -> None:
    pass


def _uuid(harvest_id: str) -> UUID:
    id = parse(HARVEST, harvest_id)
    assert id is not None, "the ingress made it"
    return id
