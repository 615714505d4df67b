"""What was spent on a UTC day, by each account and by all: held and charged together, in pico-dollars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime

EVERYONE = ""
DAYS_KEPT = 3  # only today is judged; a Hold that is open for longer no longer counts anywhere


class Spend:
    """A Hold counts on the day it was placed, whenever it is settled."""

    def __init__(self) -> None:
        self.days: dict[date, Counter[str]] = {}  # account → pico-dollars

    def add(self, placed_at: datetime, account_id: str, pico_usd: int) -> None:
        if not pico_usd:  # most models of a laptop have no price
            return
        day = self.days.get(_day(placed_at)) or self._begin(_day(placed_at))
        day[account_id] += pico_usd
        day[EVERYONE] += pico_usd

    def restore(self, days: Mapping[date, Mapping[str, int]]) -> None:
        self.days = {day: Counter(accounts) for day, accounts in days.items()}

    def of(self, now: datetime, account_id: str) -> int:
        day = self.days.get(_day(now))
        return day[account_id] if day else 0

    def _begin(self, day: date) -> Counter[str]:
        begun = self.days[day] = Counter()
        while len(self.days) > DAYS_KEPT:
            del self.days[min(self.days)]
        return begun


def _day(moment: datetime) -> date:
    return moment.astimezone(UTC).date()
