"""A Hold: the most a request can cost, set aside before it runs and resolved exactly once when it ends.

Tokens and money are whole numbers. A price is micro-dollars per million tokens, so tokens × price is an exact number of
pico-dollars (10⁻¹² dollars).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

PICO_USD_PER_MICRO_USD = 1_000_000


class HoldStatus(StrEnum):
    OPEN = "open"
    SETTLED = "settled"  # the request ended; its charge is what it used
    RELEASED = "released"  # it failed before it produced anything; nothing is charged
    EXPIRED = "expired"  # the process that owned it is gone; nothing is charged


@dataclass(frozen=True, slots=True)
class Price:
    prompt_micro_usd_per_million: int = 0
    completion_micro_usd_per_million: int = 0

    def cost_pico_usd(self, prompt_tokens: int, completion_tokens: int) -> int:
        return (
            prompt_tokens * self.prompt_micro_usd_per_million
            + completion_tokens * self.completion_micro_usd_per_million
        )


@dataclass(frozen=True, slots=True)
class Quote:
    """What a request asks to set aside: its prompts once, and each choice at its longest."""

    prompt_tokens: int
    choices: int
    max_tokens: int  # of one choice

    @property
    def completion_tokens(self) -> int:
        return self.choices * self.max_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def clamped(self, left_tokens: int, min_tokens: int) -> Quote | None:
        """The same with the largest `max_tokens` that fits into `left_tokens`; None when not even `min_tokens`, or one
        token, a choice fits."""
        fitting = (left_tokens - self.prompt_tokens) // self.choices
        if fitting < max(1, min_tokens):
            return None
        return Quote(self.prompt_tokens, self.choices, min(self.max_tokens, fitting))


@dataclass(frozen=True, slots=True)
class Hold:
    """An open Hold, as its Ledger remembers it."""

    key_id: str
    request_id: str
    model: str
    owner: str  # the ingress, Job, harvest or Loom whose end ends it
    quote: Quote
    price: Price
    placed_at: datetime

    @property
    def tokens(self) -> int:
        return self.quote.tokens

    @property
    def cost_pico_usd(self) -> int:
        """The most it can cost."""
        return self.price.cost_pico_usd(self.quote.prompt_tokens, self.quote.completion_tokens)
