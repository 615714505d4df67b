"""The fields of a Completion request that pydantic's own types cannot judge: each with its check and JSON schema."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from acs.platform.completions.body import OURS, shown

TOKEN_ID = "(0|[1-9][0-9]{0,9})"  # one way to write each: "1" and "01" would be the same key twice
_TOKEN_ID = re.compile(TOKEN_ID).fullmatch

_TEXT = {"type": "string", "minLength": 1}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_NULL = {"type": "null"}


def _prompt(value: Any) -> Any:
    """One text, a list of texts, one list of token ids, or a list of them: never empty, never mixed."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise PydanticCustomError(OURS, "must be a text, a list of texts, a list of token ids or a list of those")
    kinds: set[type] = {type(item) for item in items}
    if not items or (kinds <= {str, list} and not all(items)):
        raise PydanticCustomError(OURS, "must not be empty, nor hold an empty prompt")
    if kinds == {str}:
        return value
    prompts = [items] if kinds == {int} else items if kinds == {list} else []
    if not prompts or any({type(token_id) for token_id in ids} != {int} for ids in prompts):
        raise PydanticCustomError(OURS, "must not mix texts and token ids; token ids are whole numbers")
    lowest = min(min(ids) for ids in prompts)
    if lowest < 0:
        raise PydanticCustomError(OURS, "holds the token id {id}; token ids are not negative", {"id": shown(lowest)})
    return value


Prompt = Annotated[
    Any,
    BeforeValidator(_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
            ]
        }
    ),
]


def _stop(value: Any) -> list[str] | None:
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise PydanticCustomError(OURS, "must be a text or a list of up to 4 texts")
    if len(stops) > 4:
        raise PydanticCustomError(OURS, "has {count} texts; at most 4 are allowed", {"count": len(stops)})
    if not all(stops):
        raise PydanticCustomError(OURS, "must not hold an empty text")
    return stops


Stop = Annotated[
    list[str] | None,
    BeforeValidator(_stop),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 4}, _NULL]}),
]


def _logit_bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise PydanticCustomError(OURS, "must be a map of token ids to numbers from -100 to 100")
    biases = {}
    for token_id, bias in value.items():
        if not _TOKEN_ID(token_id):
            raise PydanticCustomError(OURS, "has the key {key}, which is no token id", {"key": token_id[:40]})
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise PydanticCustomError(OURS, "must map token ids to numbers from -100 to 100")
        biases[int(token_id)] = float(bias)
    return biases


LogitBias = Annotated[
    dict[int, float] | None,
    BeforeValidator(_logit_bias),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": f"^{TOKEN_ID}$"},
                    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                },
                _NULL,
            ]
        }
    ),
]
