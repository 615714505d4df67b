"""The names and fields of stored events are kept for good: an old store must load. Add to the list, never change it."""

import importlib
import pkgutil

from eventsourcing.domain import Aggregate, CanMutateAggregate
from eventsourcing.utils import get_topic, resolve_topic

import acs.events

# topic → fields beside those every event has (originator_id, originator_version, timestamp, originator_topic)
PINNED = {
    "acs.events.account:Account.BudgetSet": ["budget_tokens"],
    "acs.events.account:Account.Created": ["email", "name"],
    "acs.events.account:Account.Restored": [],
    "acs.events.account:Account.SpendLimitSet": ["limit_micro_usd"],
    "acs.events.account:Account.Suspended": [],
    "acs.events.api_key:ApiKey.BudgetSet": ["budget_tokens"],
    "acs.events.api_key:ApiKey.Created": ["account_id", "digest", "name", "prefix"],
    "acs.events.api_key:ApiKey.Disabled": [],
    "acs.events.api_key:ApiKey.Enabled": [],
    "acs.events.api_key:ApiKey.Renamed": ["name"],
    "acs.events.api_key:ApiKey.Revoked": [],
    "acs.events.harvest:Harvest.Cancelled": ["reason"],
    "acs.events.harvest:Harvest.Done": ["manifest_sha256"],
    "acs.events.harvest:Harvest.Failed": ["word"],
    "acs.events.harvest:Harvest.FilesExpired": [],
    "acs.events.harvest:Harvest.ShardWritten": [
        "bytes",
        "file",
        "forward_ms",
        "number",
        "prompts",
        "rows",
        "sha256",
        "tokens",
        "write_ms",
    ],
    "acs.events.harvest:Harvest.Started": ["run", "runner"],
    "acs.events.harvest:Harvest.Created": [
        "account_id",
        "hold_id",
        "key_id",
        "layers",
        "max_bytes",
        "model",
        "n_prompts",
        "n_shards",
        "n_tokens",
        "plan_sha256",
        "positions",
        "request_id",
        "width",
    ],
    "acs.events.idempotency:IdempotentRequest.Answered": [
        "body_bytes",
        "body_sha256",
        "clamped",
        "http_status",
        "location",
    ],
    "acs.events.idempotency:IdempotentRequest.Created": ["hold_id", "key_digest", "request_sha256"],
    "acs.events.idempotency:IdempotentRequest.Freed": [],
    "acs.events.idempotency:IdempotentRequest.LeftNoAnswer": [],
    "acs.events.job:Job.Cancelled": ["reason"],
    "acs.events.job:Job.Created": [
        "account_id",
        "created_at",
        "hold_id",
        "key_id",
        "model",
        "request_id",
        "request_sha256",
    ],
    "acs.events.job:Job.Failed": ["code", "http_status", "result_bytes", "result_sha256"],
    "acs.events.job:Job.Interrupted": [],
    "acs.events.job:Job.ResultExpired": [],
    "acs.events.job:Job.Started": ["run", "runner"],
    "acs.events.job:Job.Succeeded": ["http_status", "result_bytes", "result_sha256"],
    "acs.events.job:Job.TryFailed": ["code", "http_status"],
    "acs.events.ledger:Ledger.BudgetChanged": ["budget_tokens", "key_id"],
    "acs.events.ledger:Ledger.Created": ["account_id", "budget_tokens", "key_budgets_tokens", "month"],
    "acs.events.ledger:Ledger.HoldExpired": ["hold_id"],
    "acs.events.ledger:Ledger.HoldPlaced": [
        "account_id",
        "choices",
        "completion_micro_usd_per_million",
        "hold_id",
        "key_id",
        "kind",
        "max_tokens",
        "model",
        "owner",
        "prompt_micro_usd_per_million",
        "prompt_tokens",
        "request_id",
        "user",
    ],
    "acs.events.ledger:Ledger.HoldReleased": ["hold_id", "http_status", "reason"],
    "acs.events.ledger:Ledger.HoldSettled": [
        "completion_tokens",
        "cost_pico_usd",
        "hold_id",
        "http_status",
        "key_id",
        "model",
        "prompt_tokens",
        "request_id",
    ],
    "acs.events.ledger:Ledger.LateSettlementNoted": [
        "asked_as",
        "completion_tokens",
        "hold_id",
        "prompt_tokens",
        "resolved_as",
    ],
    "acs.events.loom:Loom.BranchAsked": [
        "asked_bytes",
        "asked_sha256",
        "branch_id",
        "created_at",
        "depth",
        "hold_id",
        "key_id",
        "model",
        "node_ids",
        "parent_id",
        "parent_token",
        "path_logprob",
        "path_tokens",
        "request_id",
        "request_sha256",
    ],
    "acs.events.loom:Loom.BranchCancelled": ["branch_id", "reason"],
    "acs.events.loom:Loom.BranchFailed": ["branch_id", "code", "error_sha256", "http_status"],
    "acs.events.loom:Loom.BranchGrown": [
        "branch_id",
        "content_bytes",
        "content_sha256s",
        "finish_reasons",
        "logprobs",
        "node_ids",
        "tokens",
    ],
    "acs.events.loom:Loom.BranchInterrupted": ["branch_id"],
    "acs.events.loom:Loom.BranchStarted": ["branch_id", "run", "runner"],
    "acs.events.loom:Loom.BranchTryFailed": ["branch_id", "code", "http_status"],
    "acs.events.loom:Loom.Created": [
        "account_id",
        "content_bytes",
        "content_sha256",
        "created_at",
        "key_id",
        "model",
        "root_id",
        "title_sha256",
        "tokenizer_sha256",
        "tokens",
    ],
    "acs.events.loom:Loom.Deleted": [],
    "acs.events.loom:Loom.NodesDeleted": ["node_ids"],
    "acs.events.loom:Loom.NodesImported": [
        "content_bytes",
        "content_sha256s",
        "depths",
        "finish_reasons",
        "logprobs",
        "models",
        "node_ids",
        "parent_ids",
        "parent_tokens",
        "path_logprobs",
        "path_tokens",
        "tokens",
    ],
    "acs.events.loom:Loom.Titled": ["title_sha256"],
    "acs.events.platform_settings:PlatformSettings.Created": [],
    "acs.events.platform_settings:PlatformSettings.SpendLimitSet": ["limit_micro_usd"],
}
AGGREGATES = [
    "acs.events.account:Account",
    "acs.events.api_key:ApiKey",
    "acs.events.harvest:Harvest",
    "acs.events.idempotency:IdempotentRequest",
    "acs.events.job:Job",
    "acs.events.ledger:Ledger",
    "acs.events.loom:Loom",
    "acs.events.platform_settings:PlatformSettings",
]


def aggregates():
    for module in pkgutil.iter_modules(acs.events.__path__, "acs.events."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Aggregate) and value.__module__ == module.name:
                yield value


def stored_events(aggregate):
    return [
        value
        for value in vars(aggregate).values()
        if isinstance(value, type) and issubclass(value, CanMutateAggregate) and value.__name__ not in ("Event",)
    ]


def fields_of(event):
    common = set(Aggregate.Created.__dataclass_fields__)
    return sorted(set(event.__dataclass_fields__) - common)


def test_the_names_and_fields_of_stored_events_are_the_pinned_ones():
    found = {get_topic(event): fields_of(event) for aggregate in aggregates() for event in stored_events(aggregate)}
    assert found == PINNED


def test_the_names_of_aggregates_are_the_pinned_ones():
    assert sorted(get_topic(aggregate) for aggregate in aggregates()) == AGGREGATES


def test_each_name_leads_back_to_its_class():
    for aggregate in aggregates():
        for kind in [aggregate, *stored_events(aggregate)]:
            assert get_topic(kind) == kind.TOPIC, "said outright, so that moving the class does not change it"
            assert resolve_topic(get_topic(kind)) is kind
