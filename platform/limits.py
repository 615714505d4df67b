"""Every number of the contract that an operator may want to see or change, in one table that `/docs` shows.

A limit is set by the environment variable `ACS_LIMIT_<NAME>`; `acs limits` and the errors page print the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

N = TypeVar("N", int, float)


def _limit(default: N, meaning: str) -> N:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class Limits:
    """Names in `_s` are seconds and may have fractions; all others are whole numbers."""

    body_bytes: int = _limit(32_000_000, "size of a request's body; beyond: 413")
    choices: int = _limit(1024, "prompts × n of one request")
    max_tokens_whole: int = _limit(15_600, "max_tokens without stream")
    full_vocab_prompt_tokens: int = _limit(256, "prompt tokens in all × n with prompt_logprobs -1")
    max_logprobs: int = _limit(100, "logprobs and prompt_logprobs")
    activation_bytes: int = _limit(64 * 1024**2, "raw tensors of one answer, at its longest")
    steering_bytes: int = _limit(64 * 1024**2, "steering vectors of one request, as float32")
    gzip_bytes: int = _limit(500, "answers of this size and more are compressed when the client accepts gzip")
    whole_deadline_s: float = _limit(600, "a whole answer; beyond: 504 upstream_deadline")
    stream_deadline_s: float = _limit(3600, "a stream; beyond: an upstream_deadline event")
    keepalive_s: float = _limit(15, "silence after which a stream sends a keepalive comment")
    stalled_s: float = _limit(60, "time in which a client must take what was sent, or its answer is cut off")
    breaker_failures: int = _limit(5, "failures in a row that open a model's circuit breaker")
    breaker_open_s: float = _limit(30, "time a breaker stays open before one probe")
    key_running: int = _limit(16, "requests of a key that run at once; more wait")
    key_waiting: int = _limit(64, "requests of a key that wait; beyond: 429 queue_full")
    key_rate_per_minute: int = _limit(600, "requests of a key in any 60 s; beyond: 429 rate_limited")
    wait_s: float = _limit(600, "time a request waits for its turn; beyond: 429 queue_full")
    kept_answer_bytes: int = _limit(16_777_216, "size up to which an answer is kept for its Idempotency-Key")
    harvest_body_bytes: int = _limit(50_000_000, "size of a harvest's body; beyond: 413")
    harvest_prompts: int = _limit(4096, "prompts of one harvest")
    harvest_tokens: int = _limit(2_000_000, "prompt tokens of one harvest")
    harvest_runs: int = _limit(5, "runs of a harvest in a row whose runner died before a shard was written")
    harvest_bytes: int = _limit(32 * 1024**3, "rows of one harvest, as float32")
    harvest_shard_bytes: int = _limit(2 * 1024**3, "rows of one shard, and so of one prompt, as float32")
    key_harvests: int = _limit(3, "harvests of a key that have not ended; beyond: 429 harvest_concurrency_exceeded")
    platform_harvests: int = _limit(64, "harvests of all accounts that have not ended; beyond: 429")
    harvests_at_once: int = _limit(4, "harvests that run at once; more are pending")
    key_harvests_per_month: int = _limit(0, "harvests of a key in a calendar month; 0: any number")
    account_harvest_bytes: int = _limit(128 * 1024**3, "files of an account's harvests, kept or to be written")
    harvest_kept_s: float = _limit(604_800, "time for which a harvest's files are kept, and its links work")
    key_harvest_waits: int = _limit(4, "reads of harvests with wait that wait at once, of a key")
    platform_harvest_waits: int = _limit(64, "reads of harvests with wait that wait at once, of all keys")
    account_jobs: int = _limit(100, "Jobs of an account that have not ended; beyond: 429 job_capacity")
    job_tries: int = _limit(3, "tries of a Job whose failures may be tried again")
    job_retry_s: float = _limit(1, "pause before a Job's second try; each further one is four times as long")
    job_kept_s: float = _limit(2_592_000, "time for which an ended Job and its result are kept")
    account_looms: int = _limit(100, "Looms of an account; beyond: 400")
    loom_nodes: int = _limit(1000, "Nodes of a Loom; beyond: 400")
    branch_choices: int = _limit(64, "n of a Branch")
    branch_shown_bytes: int = _limit(
        16 * 1024**2, "n × the fields of a Branch, which each of its Nodes shows; beyond: 400"
    )
    key_loom_waits: int = _limit(4, "reads of a key that wait at once for a Loom to change; more are answered at once")
    platform_loom_waits: int = _limit(64, "reads of all keys that wait at once for a Loom to change")
    owner_lease_s: float = _limit(10, "time after which a vanished API server's requests are given up")
    settle_s: float = _limit(10, "time a whole answer waits until its charge is on disk; beyond: 500")
    query_s: float = _limit(60, "acs query; beyond: stopped")
    query_memory_bytes: int = _limit(1_000_000_000, "acs query, in memory; beyond: stopped")
    query_result_bytes: int = _limit(1_000_000_000, "acs query, of its result; beyond: stopped")
    key_lease_s: float = _limit(3, "age at which an ingress stops trusting its copy of the keys")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Limits:
        """Raises ValueError naming the variable when a value is not a positive number, whole where it must be."""
        given: dict[str, Any] = {}
        for limit in fields(cls):
            name = f"ACS_LIMIT_{limit.name.upper()}"
            if name in environ:
                whole = not limit.name.endswith("_s")
                given[limit.name] = _number(name, environ[name], whole=whole, may_be_0=limit.default == 0)
        return cls(**given)

    def table(self) -> list[tuple[str, float, str]]:
        """Rows of (name, value, meaning), in the order of the contract."""
        return [(f.name, getattr(self, f.name), f.metadata["meaning"]) for f in fields(self)]


def _number(name: str, text: str, *, whole: bool, may_be_0: bool) -> float:
    """As an int wherever it is whole, so that a table shows 4 and not 4.0. `may_be_0`: it then means no limit."""
    try:
        value = int(text) if whole or text.isdecimal() else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf and not (may_be_0 and value == 0):
        raise ValueError(f"{name}={text!r} is not a positive {'whole number' if whole else 'number'}")
    return value
