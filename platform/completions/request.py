"""The shape of a Completion request: every field, its bounds, and what must hold between fields.

The model below validates, and the OpenAPI page is generated from it. To add a field: a line here, its place in
`Sampling` or `Generate` if the engine must know it, a row in `docs/completions.md`, and its two bounds in the table of
`tests/serve_apps/test_bad_input.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from acs.platform.errors import DeadlineInfeasible, InvalidRequest
from acs.platform.limits import Limits

SEED_MAX = 2**63 - 1
MAX_TOKENS_SCHEMA = 1_000_000_000  # no model has a context near it; larger is a mistake, not a wish


def _prompt(value: Any) -> Any:
    """One text, a list of texts, one list of token ids, or a list of them: never empty, never mixed."""
    if isinstance(value, str):
        kinds = {str}
        items = [value]
    elif isinstance(value, list):
        kinds, items = set(map(type, value)), value
    else:
        raise PydanticCustomError("prompt", "must be a text, a list of texts, a list of token ids or a list of those")
    if not items or not all(items) and kinds <= {str, list}:
        raise PydanticCustomError("prompt", "must not be empty, nor hold an empty prompt")
    if kinds == {str}:
        return value
    for ids in [items] if kinds == {int} else items if kinds == {list} else [[None]]:
        if set(map(type, ids)) != {int}:
            raise PydanticCustomError("prompt", "must not mix texts and token ids; token ids are whole numbers")
        if min(ids) < 0:
            raise PydanticCustomError("prompt", "holds the token id {id}; token ids are not negative", {"id": min(ids)})
    return value


def _stop(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("stop", "must be a text or a list of up to 4 texts")
    if len(stops) > 4:
        raise PydanticCustomError("stop", "has {count} texts; at most 4 are allowed", {"count": len(stops)})
    if not all(stops):
        raise PydanticCustomError("stop", "must not hold an empty text")
    return stops


def _logit_bias(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticCustomError("logit_bias", "must be a map of token ids to numbers from -100 to 100")
    biases = {}
    for token_id, bias in value.items():
        if not (token_id.isascii() and token_id.isdecimal() and len(token_id) <= 10):
            raise PydanticCustomError("logit_bias", "has the key {key}, which is no token id", {"key": token_id[:40]})
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise PydanticCustomError("logit_bias", "must map token ids to numbers from -100 to 100")
        biases[int(token_id)] = float(bias)
    return biases


def _not_yet(value: Any) -> Any:
    raise PydanticCustomError("not_yet", "is not supported by this server yet")


PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            "minItems": 1,
        },
    ]
}
STOP_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 4},
    ]
}
BIAS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
Text = Annotated[str, StringConstraints(strict=True)]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


def _optional(check: Callable[[Any], Any], schema: dict[str, Any]) -> Any:
    """A field that `check` validates by itself; null means left out."""

    def validator(value: Any) -> Any:
        return None if value is None else check(value)

    return Annotated[Any, BeforeValidator(validator), WithJsonSchema(_nullable(schema))]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = Field(None, description="One more chunk before [DONE], with the token counts.")


class CompletionRequest(BaseModel):
    """The body of POST /v1/completions. `null` is the same as leaving a field out. Nothing is ever clamped."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: Text = Field(description="An id of GET /v1/models.", examples=["smollm2-135m"])
    prompt: Annotated[Any, BeforeValidator(_prompt), WithJsonSchema(PROMPT_SCHEMA)] = Field(
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
    stop: _optional(_stop, STOP_SCHEMA) = Field(None, description="The text ends where one of these starts.")  # type: ignore[valid-type]
    logprobs: int | None = Field(None, ge=0, le=100, description="k likeliest tokens at each generated position.")
    prompt_logprobs: int | None = Field(
        None, ge=-1, le=100, description="The same at each prompt position; -1: the whole vocabulary."
    )
    echo: bool | None = Field(None, description="Put the prompt in front of the text.")
    stream: bool | None = Field(None, description="Send each token as a Server-Sent Event.")
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    logit_bias: _optional(_logit_bias, BIAS_SCHEMA) = Field(None, description="Token id to -100…100.")  # type: ignore[valid-type]
    ignore_eos: bool | None = Field(None, description="Go on after the end-of-text token.")
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS_SCHEMA, description="At most max_tokens.")
    add_special_tokens: bool | None = Field(None, description="Default true: the tokenizer may add its first token.")
    return_token_ids: bool | None = Field(None, description="Add token_ids and prompt_token_ids to each choice.")
    user: Text | None = Field(None, max_length=256, description="Kept with the usage row.")
    output_residual_stream: _optional(_not_yet, {}) = Field(None, description="Not supported yet: 400.")  # type: ignore[valid-type]
    apply_steering_vectors: _optional(_not_yet, {}) = Field(None, description="Not supported yet: 400.")  # type: ignore[valid-type]

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return cast("list[str]", [self.prompt])
        return cast("list[str]", self.prompt)

    @property
    def choices_per_prompt(self) -> int:
        return self.n or 1


def parse_completion(body: object, limits: Limits) -> CompletionRequest:
    """The request that `body`, parsed JSON, asks for.

    Raises InvalidRequest for the first fault in the order of the fields above, unknown fields last; then
    DeadlineInfeasible.
    """
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    faults: list[tuple[str, str]] = []  # (path, message)
    try:
        request = CompletionRequest.model_validate(body)
    except ValidationError as error:
        faults = [fault_of(detail) for detail in error.errors(include_url=False)]
        request = _without_faulty(body, faults)
    faulty = {_field(path) for path, _ in faults}
    faults += [(path, message) for path, message in _between_fields(request, limits) if path not in faulty]
    if faults:
        path, message = min(faults, key=lambda fault: _ORDER.get(_field(fault[0]), len(_ORDER)))
        raise InvalidRequest(f"{path} {message}.", param=path)
    if not request.stream and request.max_tokens is not None and request.max_tokens > limits.max_tokens_whole:
        raise DeadlineInfeasible(
            f"max_tokens is {request.max_tokens}; without stream at most {limits.max_tokens_whole} can be answered "
            "in time. Set stream to true, or ask for fewer.",
            param="max_tokens",
        )
    return request


_ORDER = {name: position for position, name in enumerate(CompletionRequest.model_fields)}


def _field(path: str) -> str:
    return path.split(".")[0].split("[")[0]


def fault_of(detail: Any) -> tuple[str, str]:
    """Pydantic's error as a path and a sentence without its subject."""
    path = ""
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    kind, message = detail["type"], detail["msg"]
    if kind == "extra_forbidden":
        return path, "is not a field of this request"
    if kind == "missing":
        return path, "is required"
    if kind.endswith("_type") or kind in ("int_from_float", "model_attributes_type"):
        return path, "must be " + message.removeprefix("Input should be ")
    if kind in ("prompt", "stop", "logit_bias", "not_yet"):
        return path, message
    shown = detail.get("input")
    value = f"is {shown!r}; it " if isinstance(shown, int | float) else ""
    return path, value + message.replace("Input should", "must").replace("String should", "must").replace("  ", " ")


def _without_faulty(body: dict[str, Any], faults: list[tuple[str, str]]) -> CompletionRequest:
    """The rest of a faulty request, so that what must hold between its sound fields is judged too."""
    faulty = {_field(path) for path, _ in faults}
    sound = {name: value for name, value in body.items() if name not in faulty and name in _ORDER}
    return CompletionRequest.model_validate({"model": "", "prompt": "-", **sound})


def _between_fields(request: CompletionRequest, limits: Limits) -> list[tuple[str, str]]:
    prompts, n = len(request.prompts), request.choices_per_prompt
    faults = []
    if request.max_tokens is None and (prompts > 1 or n > 1):
        faults.append(("max_tokens", "must be set when there is more than one prompt or n is above 1"))
    if prompts * n > limits.choices:
        faults.append(("n", f"is {n} with {prompts} prompts, {prompts * n} choices; at most {limits.choices} in all"))
    if request.stream and request.prompt_logprobs is not None:
        faults.append(("prompt_logprobs", "cannot be streamed; leave out stream"))
    if request.stream_options is not None and not request.stream:
        faults.append(("stream_options", "needs stream to be true"))
    if request.min_tokens and request.max_tokens is not None and request.min_tokens > request.max_tokens:
        faults.append(("min_tokens", f"is {request.min_tokens}, above max_tokens {request.max_tokens}"))
    return faults
