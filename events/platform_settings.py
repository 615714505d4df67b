"""What the operator sets for all accounts together. One aggregate, made by its first change."""

from __future__ import annotations

from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.domain import Aggregate, event

ID = uuid5(NAMESPACE_URL, "acs:platform-settings")


class PlatformSettings(Aggregate):
    TOPIC = "acs.events.platform_settings:PlatformSettings"

    class Created(Aggregate.Created):
        TOPIC = "acs.events.platform_settings:PlatformSettings.Created"

    class SpendLimitSet(Aggregate.Event):
        TOPIC = "acs.events.platform_settings:PlatformSettings.SpendLimitSet"
        limit_micro_usd: int | None  # a UTC day, of all accounts together; None: none

    @event(Created)
    def __init__(self) -> None:
        self.spend_limit_micro_usd: int | None = None

    def set_spend_limit(self, micro_usd: int | None) -> None:
        if micro_usd != self.spend_limit_micro_usd:
            self._set_spend_limit(limit_micro_usd=micro_usd)

    @event(SpendLimitSet)
    def _set_spend_limit(self, *, limit_micro_usd: int | None) -> None:
        self.spend_limit_micro_usd = limit_micro_usd

    @staticmethod
    def create_id() -> UUID:
        return ID
