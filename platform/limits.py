"""Every number of the contract that an operator may want to see or change, in one table that `/docs` shows.

A limit is set by the environment variable `ACS_LIMIT_<NAME>`; `acs limits` and the errors page print the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


def _limit(default: float, meaning: str) -> float:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = _limit(32_000_000, "size of a request's body; beyond: 413")  # type: ignore[assignment]
    choices: int = _limit(1024, "prompts × n of one request")  # type: ignore[assignment]
    max_tokens_whole: int = _limit(15_600, "max_tokens without stream")  # type: ignore[assignment]
    full_vocab_prompt_tokens: int = _limit(256, "prompt tokens in all × n with prompt_logprobs -1")  # type: ignore[assignment]
    max_logprobs: int = _limit(100, "logprobs and prompt_logprobs")  # type: ignore[assignment]
    gzip_bytes: int = _limit(500, "answers of this size and more are compressed when the client accepts gzip")  # type: ignore[assignment]
    whole_deadline_s: float = _limit(600, "a whole answer; beyond: 504 upstream_deadline")
    stream_deadline_s: float = _limit(3600, "a stream; beyond: an upstream_deadline event")
    keepalive_s: float = _limit(15, "silence after which a stream sends a keepalive comment")
    breaker_failures: int = _limit(5, "failures in a row that open a model's circuit breaker")  # type: ignore[assignment]
    breaker_open_s: float = _limit(30, "time a breaker stays open before one probe")
    key_lease_s: float = _limit(3, "age at which an ingress stops trusting its copy of the keys")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Limits:
        """Raises ValueError naming the variable when a value is not a positive number."""
        given = {}
        for limit in fields(cls):
            name = f"ACS_LIMIT_{limit.name.upper()}"
            if name not in environ:
                continue
            try:
                value = type(limit.default)(environ[name])  # type: ignore[misc]
            except ValueError:
                value = 0
            if value <= 0:
                raise ValueError(f"{name}={environ[name]!r} is not a positive number")
            given[limit.name] = value
        return cls(**given)

    def table(self) -> list[tuple[str, float, str]]:
        """Rows of (name, value, meaning), in the order of the contract."""
        return [(f.name, getattr(self, f.name), f.metadata["meaning"]) for f in fields(self)]
