"""The shape of a Completion request: every field, its bounds, and what must hold between fields.

The model below validates, and the OpenAPI page is generated from it. To add a field: a line here, its place in
`Sampling` or `Generate` if the engine must know it, a row in `docs/completions.md`, and its two bounds in the table of
`tests/serve_apps/test_bad_input.py`.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field, ValidationError

from acs.platform.completions.activations import VECTORS_MAX, ResidualStream, SteeringVector
from acs.platform.completions.body import Body, Fault, faults_of
from acs.platform.completions.fields import LogitBias, Prompt, Stop
from acs.platform.errors import DeadlineInfeasible, InvalidRequest
from acs.platform.limits import Limits

SEED_MAX = 2**63 - 1
MAX_TOKENS_SCHEMA = 1_000_000_000  # no model has a context near it; larger is a mistake, not a wish


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="One more chunk before [DONE], with the token counts.")


class CompletionRequest(Body):
    """The body of POST /v1/completions. `null` is the same as leaving a field out. Nothing is ever clamped."""

    model: str = Field(description="An id of GET /v1/models.", examples=["smollm2-135m"])
    prompt: Prompt = Field(
        description="A text, a list of texts, a list of token ids, or a list of those.", examples=["The sky is"]
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_TOKENS_SCHEMA,
        description="The most tokens for each choice. Left out: the context left, without stream at most 15,600.",
    )
    n: int | None = Field(None, ge=1, le=1024, description="Choices for each prompt; prompts × n at most 1,024.")
    temperature: float | None = Field(None, ge=0, le=100, description="Default 1; 0 takes the likeliest token.")
    top_p: float | None = Field(None, gt=0, le=1, description="Default 1.")
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description="-1 or 0: off, the default.")
    min_p: float | None = Field(None, ge=0, le=1, description="Default 0; relative to the likeliest token.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Default 0.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Default 0.")
    repetition_penalty: float | None = Field(None, gt=0, le=2, description="Default 1.")
    seed: int | None = Field(None, ge=0, le=SEED_MAX, description="Choice i draws with (seed + i) mod 2**63.")
    stop: Stop = Field(None, description="The text ends where one of these starts.")
    logprobs: int | None = Field(None, ge=0, le=100, description="k likeliest tokens at each generated position.")
    prompt_logprobs: int | None = Field(
        None, ge=-1, le=100, description="The same at each prompt position; -1: the whole vocabulary."
    )
    echo: bool | None = Field(None, description="Put the prompt in front of the text.")
    stream: bool | None = Field(None, description="Send each token as a Server-Sent Event.")
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    logit_bias: LogitBias = Field(None, description="Token id to -100…100.")
    ignore_eos: bool | None = Field(None, description="Go on after the end-of-text token.")
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS_SCHEMA, description="At most max_tokens.")
    add_special_tokens: bool | None = Field(None, description="Default true: the tokenizer may add its first token.")
    return_token_ids: bool | None = Field(None, description="Add token_ids and prompt_token_ids to each choice.")
    user: str | None = Field(None, max_length=256, description="Kept with the usage row.")
    output_residual_stream: ResidualStream = Field(
        None,
        description="Layers, counted from 0, whose residual stream comes with the answer; true: all. Not in a stream.",
    )
    apply_steering_vectors: list[SteeringVector] | None = Field(
        None, min_length=1, max_length=VECTORS_MAX, description="Vectors to add to the residual stream, in this order."
    )

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return cast("list[str]", [self.prompt])
        return cast("list[str]", self.prompt)

    @property
    def choices_per_prompt(self) -> int:
        return self.n or 1


def parse_completion(body: object, limits: Limits, *, streamable: bool = True) -> CompletionRequest:
    """The request that `body`, parsed JSON, asks for. `streamable`: whether it may ask for a stream.

    Raises InvalidRequest for the first fault in the order of the fields above, unknown fields last; then
    DeadlineInfeasible.
    """
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    faults: list[Fault] = []
    try:
        request = CompletionRequest.model_validate(body, context=limits)
    except ValidationError as error:
        faults = faults_of(error)
        request = _without(body, {fault.field for fault in faults}, limits)
    faulty = {fault.field for fault in faults}
    faults += [fault for fault in _between_fields(request, limits, streamable) if fault.field not in faulty]
    if faults:
        first = min(faults, key=lambda fault: _ORDER.get(fault.field, len(_ORDER)))
        raise InvalidRequest(f"{first.path} {first.message}.", param=first.path)
    if not request.stream and request.max_tokens is not None and request.max_tokens > limits.max_tokens_whole:
        raise DeadlineInfeasible(
            f"max_tokens is {request.max_tokens}; without stream at most {limits.max_tokens_whole} can be answered "
            "in time. Set stream to true, or ask for fewer.",
            param="max_tokens",
        )
    return request


_ORDER = {name: position for position, name in enumerate(CompletionRequest.model_fields)}


def _without(body: dict[str, Any], faulty: set[str], limits: Limits) -> CompletionRequest:
    """The rest of a faulty request, so that what must hold between its sound fields is judged too."""
    sound = {name: body[name] for name in _ORDER if name in body and name not in faulty}
    return CompletionRequest.model_validate({"model": "", "prompt": "-", **sound}, context=limits)


def _between_fields(request: CompletionRequest, limits: Limits, streamable: bool) -> list[Fault]:
    prompts, n = len(request.prompts), request.choices_per_prompt
    found: list[tuple[str, str]] = []  # (field, message)
    if prompts * n > limits.choices:
        much = (
            f"has {prompts} prompts" if request.n is None else f"is {n} with {prompts} prompts, {prompts * n} choices"
        )
        found.append(("prompt" if request.n is None else "n", f"{much}; at most {limits.choices} choices in all"))
    if request.max_tokens is None and (prompts > 1 or n > 1):
        found.append(("max_tokens", "must be set when there is more than one prompt or n is above 1"))
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(request, name)
        if wanted is not None and wanted > limits.max_logprobs:
            found.append((name, f"is {wanted}; at most {limits.max_logprobs}"))
    if request.stream and request.prompt_logprobs is not None:
        found.append(("prompt_logprobs", "cannot be streamed; leave out stream"))
    if request.stream and not streamable:
        found.append(("stream", "must be false or left out: a Job has no stream"))
    if request.stream_options is not None and not request.stream:
        found.append(("stream_options", "needs stream to be true"))
    if request.min_tokens and request.max_tokens is not None and request.min_tokens > request.max_tokens:
        found.append(("min_tokens", f"is {request.min_tokens}, above max_tokens {request.max_tokens}"))
    if request.stream and request.output_residual_stream is not None:
        found.append(("output_residual_stream", "cannot be streamed; leave out stream"))
    steering_bytes = sum(vector.size_bytes for vector in request.apply_steering_vectors or ())
    if steering_bytes > limits.steering_bytes:
        much = f"holds {steering_bytes:,} bytes as float32; at most {limits.steering_bytes:,}"
        found.append(("apply_steering_vectors", much))
    return [Fault(field, field, message) for field, message in found]
