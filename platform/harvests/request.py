"""The shape of a harvest request: every field and its bounds. The OpenAPI page is generated from the same model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from acs.platform.completions.body import Body, faults_of
from acs.platform.errors import InvalidRequest
from acs.platform.harvests.fields import Directions, Layers, Prompts
from acs.platform.limits import Limits


class HarvestRequest(Body):
    """The body of POST /v1/harvest. `null` is the same as leaving a field out. Nothing is ever clamped."""

    model: str = Field(description="An id of GET /v1/models.", examples=["smollm2-135m"])
    prompts: Prompts = Field(description="Texts, or lists of token ids.", examples=[["The sky is", "Water is"]])
    layers: Layers = Field(
        None, description='Layers, counted from 0, or "all". Left out: the blocks at 25, 50 and 75 % of the depth.'
    )
    shard_size: int | None = Field(None, ge=1, le=4096, description="Default 32: prompts a file, at most.")
    add_special_tokens: bool | None = Field(None, description="Default true: the tokenizer may add its first token.")
    positions: Literal["all", "last", "mean"] | None = Field(
        None, description="The rows of a prompt: every token's (the default), the last token's, or one mean of all."
    )
    project_onto: Directions = Field(
        None, description="Up to 64 directions: the files then hold the lengths of the rows along each of them."
    )


def parse_harvest(body: object, limits: Limits) -> HarvestRequest:
    """Raises InvalidRequest for the first fault in the order of the fields above, unknown fields last."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        return HarvestRequest.model_validate(body, context=limits)
    except ValidationError as error:
        first = faults_of(error)[0]
        raise InvalidRequest(f"{first.path} {first.message}.", param=first.path) from None
