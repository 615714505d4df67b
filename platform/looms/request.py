"""The shapes of the bodies that Looms take: a new one, a title, a Branch.

A Branch's sampling fields are a Completion's, judged by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field, create_model
from pydantic_core import PydanticCustomError

from acs.platform.completions.body import OURS, Body, parse_body
from acs.platform.completions.fields import Prompt
from acs.platform.completions.request import CompletionRequest, parse_completion
from acs.platform.errors import InvalidRequest
from acs.platform.limits import Limits

TITLE_CHARACTERS = 200
AT_TOKEN_MAX = 2**31 - 1  # no context is as long
LOGPROB_MOST = 1e9  # of a token, either way: no model's is near it, and the sum of any number of them is finite
# A Branch continues one path by whole answers: what belongs to a prompt or to a stream is not its.
NOT_OF_A_BRANCH = {
    *("prompt", "prompt_logprobs", "echo", "stream", "stream_options"),
    *("add_special_tokens", "return_token_ids", "output_residual_stream"),
}


def _storable(value: dict[str, Any]) -> dict[str, Any]:
    try:
        orjson.dumps(value)
    except TypeError:  # all that a parsed body can hold and orjson cannot write
        raise PydanticCustomError(OURS, "holds a whole number beyond 64 bits") from None
    return value


TokenId = Annotated[int, Field(ge=0, le=AT_TOKEN_MAX)]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Logprob = Annotated[float, Field(ge=-LOGPROB_MOST, le=LOGPROB_MOST)]
Fields = Annotated[dict[str, Any], AfterValidator(_storable)]


class ImportedLogprobs(Body):
    tokens: list[str]
    token_logprobs: list[Logprob]
    top_logprobs: list[dict[str, float]]
    top_token_ids: list[dict[str, float]]


class ImportedNode(Body):
    """A Node as GET /v1/looms/{loom_id} shows it; what has no meaning here is passed over."""

    id: str = Field(max_length=100, description="Any name, for the Nodes that continue it.")
    parent_id: str | None = Field(None, max_length=100, description="One before it in the list; null: the root.")
    parent_token: int | None = Field(None, ge=1, le=AT_TOKEN_MAX)
    status: Literal["done"] | None = None
    text: str | None = Field(None, description="Left out: what its tokens add to the path's text.")
    token_ids: list[TokenId] | None = Field(None, min_length=1, fail_fast=True, description="Left out: the text's.")
    model: str | None = Field(None, max_length=100)
    sampling: Fields | None = None
    finish_reason: Literal["length", "stop"] | None = None
    usage: dict[str, Count] | None = None
    logprobs: ImportedLogprobs | None = None
    created_at: int | None = None
    error: None = None


class LoomRequest(Body):
    """The body of POST /v1/looms: a prompt, or the Nodes of another Loom."""

    prompt: Prompt = Field(None, description="A text, or a list of token ids: the root Node.", examples=["The sky is"])
    title: str | None = Field(None, max_length=TITLE_CHARACTERS)
    model: str | None = Field(None, description="Whose tokenizer makes the tokens; left out: the first model's.")
    add_special_tokens: bool | None = Field(None, description="Default true: the tokenizer may add its first token.")
    nodes: list[ImportedNode] | None = Field(
        None,
        min_length=1,
        fail_fast=True,
        description="Instead of a prompt: parents before those that continue them, the root first.",
    )


class LoomChange(Body):
    """The body of PATCH /v1/looms/{loom_id}."""

    title: str | None = Field(max_length=TITLE_CHARACTERS, description="null takes it away.")


_AT_TOKEN = Field(
    None, ge=1, le=AT_TOKEN_MAX, description="Continue after the first so many tokens of the Node; left out: after all."
)
BranchRequest: type[Body] = create_model(  # for the OpenAPI page: a Completion's own fields, and one more
    "BranchRequest",
    __base__=Body,
    __doc__="The body of POST /v1/looms/{loom_id}/nodes/{node_id}/branch.",
    **{  # type: ignore[call-overload]
        name: (field.annotation, field)
        for name, field in CompletionRequest.model_fields.items()
        if name not in NOT_OF_A_BRANCH
    },
    at_token=(int | None, _AT_TOKEN),
)


class _AtToken(Body):
    at_token: int | None = _AT_TOKEN


@dataclass(frozen=True, slots=True)
class Branching:
    """What a Branch asks for. `completion` has a stand-in for the prompt: see `along`."""

    at_token: int | None
    completion: CompletionRequest

    def along(self, token_ids: list[int]) -> CompletionRequest:
        """The Completion that continues these."""
        return self.completion.model_copy(update={"prompt": token_ids})


def parse_loom(body: object) -> LoomRequest:
    """Raises InvalidRequest."""
    if isinstance(body, dict):  # null is the same as leaving a field out
        body = {name: value for name, value in body.items() if value is not None}
    request = parse_body(LoomRequest, body)
    if (request.prompt is None) == (request.nodes is None):
        raise InvalidRequest("Either prompt or nodes is required, and not both.", param="prompt")
    if isinstance(request.prompt, list) and not all(type(item) is int for item in request.prompt):
        raise InvalidRequest("prompt must be one text or one list of token ids: a Loom has one root.", param="prompt")
    return request


def parse_change(body: object) -> LoomChange:
    """Raises InvalidRequest."""
    return parse_body(LoomChange, body)


def parse_branch(body: object, limits: Limits) -> Branching:
    """Raises InvalidRequest, then DeadlineInfeasible: what a Completion of these fields raises, and its own."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    own = BranchRequest.model_fields
    sampling = {name: value for name, value in body.items() if name in own and name != "at_token"}
    completion = parse_completion({**sampling, "prompt": [0]}, limits, streamable=False)
    if completion.choices_per_prompt > limits.branch_choices:
        n = completion.choices_per_prompt
        raise InvalidRequest(f"n is {n}; at most {limits.branch_choices} in one Branch.", param="n")
    at_token = parse_body(_AtToken, {"at_token": body.get("at_token")}).at_token
    for name in body:
        if name not in own:
            raise InvalidRequest(f"{name[:100]} is not a field of a Branch.", param=name[:100])
    _check_shown(completion.choices_per_prompt, body, limits)
    return Branching(at_token, completion)


def _check_shown(n: int, body: dict[str, Any], limits: Limits) -> None:
    """The answer repeats the fields with each Node, and so does the Loom. Raises InvalidRequest for too much of it."""
    if n == 1:
        return
    size = len(orjson.dumps(fields_of(body)))
    if n * size > limits.branch_shown_bytes:
        raise InvalidRequest(
            f"n is {n}: each Node shows the Branch's fields, which are {size:,} bytes; at most "
            f"{limits.branch_shown_bytes:,} in all.",
            param="n",
        )


def fields_of(body: dict[str, Any]) -> dict[str, Any]:
    """What a Node shows of the Branch that it came from, as it was sent: no nulls, and not what it shows elsewhere."""
    return {
        name: value
        for name, value in body.items()
        if value is not None and name not in ("model", "n", "at_token", "user")
    }
