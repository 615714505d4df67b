"""The shapes of our answers, for the OpenAPI page and the tests; the bytes are written by `render`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Logprobs(Shape):
    """Four parallel lists, one entry a token. With echo the prompt's tokens come first."""

    text_offset: list[int] = Field(description="Characters of the returned text in front of the token.")
    token_logprobs: list[float | None]
    tokens: list[str] = Field(description="`bytes:\\xe2\\x80` where a token is not text by itself.")
    top_logprobs: list[dict[str, float] | None] = Field(description="The k likeliest and the token itself.")


class PromptLogprob(Shape):
    logprob: float
    rank: int
    decoded_token: str


class Envelope(Shape):
    """A tensor; `acs.tensors.decode` reads it."""

    data: str = Field(description="Base64 of the zstd-compressed bytes: C order, little-endian.")
    dtype: Literal["int16", "float32"] = Field(description="How it is stored; int16 holds the bits of bfloat16.")
    original_dtype: Literal["torch.bfloat16", "torch.float32"] = Field(description="The model's own.")
    shape: list[int] = Field(description="[layers, positions, hidden]")
    compression: Literal["zstd"]


class Activations(Shape):
    residual_stream: Envelope = Field(
        description="The output of each Layer, ascending, at the prompt's tokens and all generated but the last."
    )


class Choice(Shape):
    index: int = Field(description="p × n + i for choice i of prompt p.")
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["length", "stop"]
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None
    token_ids: list[int] = Field(default=[], description="With return_token_ids.")
    prompt_token_ids: list[int] = Field(default=[], description="With return_token_ids.")
    activations: Activations | None = Field(
        default=None, description="With output_residual_stream, of several choices."
    )


class Usage(Shape):
    prompt_tokens: int = Field(description="Each prompt once.")
    completion_tokens: int = Field(description="Of all choices.")
    total_tokens: int


class Completion(Shape):
    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix seconds.")
    model: str = Field(description="The checkpoint's name.")
    choices: list[Choice]
    usage: Usage
    activations: Activations | None = Field(default=None, description="With output_residual_stream, of one choice.")


class CompletionJob(Shape):
    id: str = Field(description="job_ and 32 hex digits.")
    object: Literal["completion_job"]
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    model: str = Field(description="The id that was sent as `model`.")
    created_at: int = Field(description="Unix seconds, as all of them.")
    started_at: int | None = Field(description="Of its last run.")
    finished_at: int | None
    http_status: int | None = Field(description="Of the Completion, once it has ended; null for a cancelled Job.")
    expires_at: int | None = Field(description="From when on the Job and its result are not found.")


class CompletionJobList(Shape):
    object: Literal["list"]
    data: list[CompletionJob] = Field(description="Newest first.")
    has_more: bool


class HarvestProgress(Shape):
    prompts_done: int = Field(description="Whose shard is written, as all four.")
    tokens_done: int
    shards_done: int
    bytes_done: int = Field(description="Of the files.")


class HarvestTimings(Shape):
    forward_s: float = Field(description="In the model, added up over shards, some of which are read at once.")
    write_s: float
    tokens: int


class HarvestResult(Shape):
    n_shards: int
    layer_indices: list[int]
    manifest_url: str | None = Field(description="Null once the links have expired.")
    shard_urls: list[str] = Field(description="Parquet files, in the order of the prompts.")
    stats_url: str | None
    timings: HarvestTimings


class HarvestFault(Shape):
    code: str
    message: str


class Harvest(Shape):
    job_id: str = Field(description="hrv_ and 32 hex digits.")
    status: Literal["pending", "running", "done", "failed", "cancelled"]
    model: str = Field(description="The id that was sent as `model`.")
    n_prompts: int
    n_tokens: int
    created_at: str = Field(description="ISO 8601 with its offset, as all of them.")
    started_at: str = Field(default="", description="Once it has run.")
    progress: HarvestProgress | None = Field(default=None, description="While it runs.")
    completed_at: str = Field(default="", description="Once it has ended, however.")
    error: HarvestFault | None = Field(default=None, description="Of a failed one.")
    result: HarvestResult | None = Field(default=None, description="Of a done one; not in lists.")
    urls_expire_at: str = Field(default="", description="Of a done one.")
    urls_expired: bool = Field(default=False, description="True once the files are gone.")


class HarvestList(Shape):
    object: Literal["list"]
    data: list[Harvest] = Field(description="Newest first.")
    has_more: bool


class HarvestEstimate(Shape):
    object: Literal["harvest_estimate"]
    model: str
    n_prompts: int
    n_tokens: int
    n_rows: int
    layer_indices: list[int]
    n_files: int = Field(description="With manifest.json and stats.json.")
    max_bytes: int = Field(description="Of all rows as float32: the files are not larger.")
    estimated_bytes: int = Field(description="Of the files, compressed.")
    hold_tokens: int
    cost_pico_usd: int
    estimated_s: float | None = Field(description="From the model's last harvests; null: there was none.")


class NodeLogprobs(Shape):
    """Parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] = Field(description="The k likeliest and the token itself, by text.")
    top_token_ids: list[dict[str, float]] = Field(description="The same, by token id: two tokens may have one text.")


class NodeUsage(Shape):
    prompt_tokens: int = Field(description="Of the path before it; a Branch pays for them once.")
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = Field(description="Of the path, that the engine had read before.")


class Node(Shape):
    id: str = Field(description="node_ and 32 hex digits.")
    parent_id: str | None = Field(description="null: the root.")
    parent_token: int | None = Field(description="It continues after so many tokens of its parent; null: after all.")
    status: Literal["pending", "running", "done", "failed"]
    text: str | None = Field(description="What its tokens add to the path's text; null until it is done.")
    token_ids: list[int] | None
    model: str | None
    sampling: dict[str, Any] | None = Field(description="The fields that were sent, with this choice's own seed.")
    finish_reason: Literal["length", "stop"] | None
    usage: NodeUsage | None
    logprobs: NodeLogprobs | None
    created_at: int = Field(description="Unix seconds.")
    error: dict[str, Any] | None = Field(description="Of one that failed.")


class LoomHead(Shape):
    id: str = Field(description="loom_ and 32 hex digits.")
    object: Literal["loom"]
    title: str | None
    version: int = Field(description="Grows with every change; see since.")
    created_at: int = Field(description="Unix seconds.")


class Loom(LoomHead):
    nodes: list[Node] = Field(description="In the order in which they were made, the root first.")
    deleted: list[str] = Field(default=[], description="With since: Nodes that were deleted after it.")


class LoomList(Shape):
    object: Literal["list"]
    data: list[LoomHead] = Field(description="Newest first.")
    has_more: bool


class Branch(Shape):
    id: str = Field(description="branch_ and 32 hex digits.")
    object: Literal["branch"]
    loom_id: str
    nodes: list[Node] = Field(description="Pending, one for each choice.")


class LoomDeleted(Shape):
    id: str
    object: Literal["loom"]
    deleted: Literal[True]


class NodesDeleted(Shape):
    id: str
    object: Literal["node"]
    deleted: list[str] = Field(description="The Node and all that continued it.")


class Capabilities(Shape):
    max_model_len: int
    max_logprobs: int
    n_layers: int
    hidden_size: int
    vocab_size: int
    logprobs: bool
    prompt_logprobs: bool
    full_vocab_max_prompt_tokens: int
    activations: bool
    steering: bool
    harvest: bool
    max_activation_bytes: int


class Price(Shape):
    prompt_micro_usd_per_million: int
    completion_micro_usd_per_million: int


class ModelObject(Shape):
    id: str = Field(description="The id to send as `model`.")
    object: Literal["model"]
    created: int
    owned_by: str
    served_model_name: str
    status: Literal["live", "cold", "down"]
    capabilities: Capabilities
    price: Price
    description: str


class ModelList(Shape):
    object: Literal["list"]
    data: list[ModelObject]


class Budget(Shape):
    budget_tokens: int | None = Field(description="For the month; null: unlimited.")
    held_tokens: int = Field(description="Set aside for requests that run now.")
    charged_tokens: int = Field(description="Prompt and completion tokens of requests that ended.")
    left_tokens: int | None = Field(description="Budget less held less charged, never below 0; null: unlimited.")


class KeyUsage(Budget):
    key_id: str
    name: str
    requests: int = Field(description="Those that were charged.")
    spend_micro_usd: int


class ModelUsage(Shape):
    model: str = Field(description="The id that was sent as `model`.")
    requests: int = Field(description="Those that were charged.")
    prompt_tokens: int
    completion_tokens: int
    charged_tokens: int = Field(description="Prompt and completion tokens.")
    spend_micro_usd: int


class UsageReport(Budget):
    object: Literal["usage"]
    month: str = Field(description="A calendar month, UTC.")
    spend_micro_usd: int = Field(description="Of what was charged, to the nearest micro-dollar.")
    by_key: list[KeyUsage]
    by_model: list[ModelUsage]


class Tokenized(Shape):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Shape):
    prompt: str


class TokenizerInfo(BaseModel):
    """The checkpoint's own tokenizer_config.json, without a chat template."""

    model_config = ConfigDict(extra="allow")

    tokenizer_class: str


class Health(Shape):
    status: Literal["ok"]


class ErrorDetail(Shape):
    message: str
    type: str
    param: str | None
    code: str | None
    retryable: bool = Field(default=True, description="Only on errors of Inference.")


class Error(Shape):
    error: ErrorDetail
    request_id: str
