"""What was spent on a UTC day, by each account and by all: held and charged together, in pico-dollars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

EVERYONE = ""
DAYS_KEPT = 3  # only today is judged; a Hold that is open for longer no longer counts anywhere


class Spend:
    """A Hold counts on the day it was placed, whenever it is settled."""

    def __init__(self) -> None:
        self.days: dict[str, Counter[str]] = {}  # 2026-11-29 → account → pico-dollars

    def add(self, placed_at: datetime, account_id: str, pico_usd: int) -> None:
        if not pico_usd:  # most models of a laptop have no price
            return
        day = self.days.setdefault(_day(placed_at), Counter())
        day[account_id] += pico_usd
        day[EVERYONE] += pico_usd
        while len(self.days) > DAYS_KEPT:
            del self.days[min(self.days)]

    def restore(self, days: Mapping[str, Mapping[str, int]]) -> None:
        self.days = {day: Counter(accounts) for day, accounts in days.items()}

    def of(self, now: datetime, account_id: str) -> int:
        day = self.days.get(_day(now))
        return day[account_id] if day else 0


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).date().isoformat()
