"""A Harvest as its account may see it, alone and in a list; and its files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from acs.events.harvest import HarvestRecord, HarvestStatus
from acs.platform.ledger.harvest_contract import HarvestView
from acs.storage.shards.layout import MANIFEST, STATS


def view(harvest_id: str, record: HarvestRecord, kept: timedelta) -> HarvestView:
    """`kept`: how long the files are, from the end."""
    terms, done, shards = record.terms, record.status is HarvestStatus.DONE, record.shards
    return HarvestView(
        id=harvest_id,
        status=record.status.value,
        model=terms.model,
        n_prompts=terms.n_prompts,
        n_tokens=terms.n_tokens,
        n_shards=terms.n_shards,
        layers=terms.layers,
        prompts_done=record.prompts_done,
        tokens_done=record.tokens_done,
        shards_done=len(shards),
        bytes_done=record.bytes_done,
        started_at=record.started_at,
        finished_at=record.finished_at,
        word=record.word,
        forward_s=sum(shard.forward_ms for shard in shards.values()) / 1000,
        write_s=sum(shard.write_ms for shard in shards.values()) / 1000,
        expires_at=record.finished_at + kept if done and record.finished_at is not None else None,
        expired=record.expired,
        files=[shards[number].file for number in sorted(shards)] if done else [],
    )


def page(
    harvests: Iterable[tuple[str, HarvestRecord]], limit: int, status: str | None, kept: timedelta
) -> tuple[list[HarvestView], bool]:
    """The first `limit` of those in this status, without their files, and whether there are more."""
    wanted = None if status is None else HarvestStatus(status)
    found: list[HarvestView] = []
    for harvest_id, record in harvests:
        if wanted is None or record.status is wanted:
            if len(found) == limit:
                return found, True
            found.append(msgspec.structs.replace(view(harvest_id, record, kept), files=[]))
    return found, False


def sha256_of(record: HarvestRecord, file: str) -> str | None:
    """Of a done one's file; empty for the statistics, which the manifest vouches for. None: it has no such file."""
    if file == MANIFEST:
        return record.manifest_sha256
    if file == STATS:
        return ""
    return next((shard.sha256 for shard in record.shards.values() if shard.file == file), None)
