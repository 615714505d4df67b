"""Whether an account, and the platform, may have one more Harvest."""

from __future__ import annotations

from datetime import datetime

from acs.events.harvest import HarvestRecord, HarvestStatus, Terms
from acs.events.ids import made_at
from acs.events.ledger import month_of
from acs.events.refused import Refused
from acs.platform.ledger.harvests import Harvests
from acs.platform.limits import Limits


def judge_capacity(harvests: Harvests, terms: Terms, limits: Limits, now: datetime) -> None:
    """Raises TooManyBytes, HarvestConcurrencyReached, HarvestCapacityReached or HarvestQuotaReached, in this order."""
    of_account = [record for _, record in harvests.of_account(terms.account_id)]
    kept = sum(map(bytes_kept, of_account))
    if kept + terms.max_bytes > limits.account_harvest_bytes:
        raise TooManyBytes(
            f"The harvest may take {terms.max_bytes:,} bytes, and the account's others take {kept:,}; "
            f"{limits.account_harvest_bytes:,} are allowed in all."
        )
    unfinished = harvests.unfinished()
    of_key = sum(record.terms.key_id == terms.key_id for _, record in unfinished)
    if of_key >= limits.key_harvests:
        raise HarvestConcurrencyReached(
            f"The key has {of_key} harvests that have not ended; {limits.key_harvests} are allowed."
        )
    if len(unfinished) >= limits.platform_harvests:
        raise HarvestCapacityReached(
            f"{len(unfinished)} harvests have not ended on this platform; {limits.platform_harvests} are allowed."
        )
    if limits.key_harvests_per_month:
        used = _of_month(harvests, terms, now)
        if used >= limits.key_harvests_per_month:
            raise HarvestQuotaReached(
                f"The key has submitted {used} harvests this month; {limits.key_harvests_per_month} are allowed."
            )


def bytes_kept(record: HarvestRecord) -> int:
    """What its files take, or may take yet."""
    if not record.status.ended:
        return record.terms.max_bytes
    kept = record.status is HarvestStatus.DONE and not record.expired
    return sum(shard.bytes for shard in record.shards.values()) if kept else 0


def _of_month(harvests: Harvests, terms: Terms, now: datetime) -> int:
    """One that was cancelled before it ran does not count."""
    used = 0
    for harvest_id, record in harvests.of_account(terms.account_id):
        if month_of(made_at(harvest_id)) != month_of(now):
            break
        ran = record.status is not HarvestStatus.CANCELLED or record.started_at is not None
        used += ran and record.terms.key_id == terms.key_id
    return used


class TooManyBytes(Refused):
    pass


class HarvestConcurrencyReached(Refused):
    pass


class HarvestCapacityReached(Refused):
    pass


class HarvestQuotaReached(Refused):
    pass
