"""The fields of a harvest that pydantic's own types cannot judge: each with its check and JSON schema."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from acs.platform.completions.activations import INDEX_MAX, finite_float32, limits_of
from acs.platform.completions.body import OURS, shown

DIRECTIONS_MAX = 64
ALL = "all"

_TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 4096}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_LAYERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": INDEX_MAX},
    "minItems": 1,
    "uniqueItems": True,
}
_ROWS = {"type": "array", "items": {"type": "number"}, "minItems": 1}


def _prompts(value: Any, info: ValidationInfo) -> Any:
    """All texts or all lists of token ids, none of them empty."""
    if not isinstance(value, list) or not value:
        raise PydanticCustomError(OURS, "must be a list of texts, or of lists of token ids, and not empty")
    most = limits_of(info).harvest_prompts
    if len(value) > most:
        raise PydanticCustomError(OURS, "has {count} prompts; at most {most}", {"count": len(value), "most": most})
    kinds = {type(prompt) for prompt in value}
    if kinds not in ({str}, {list}):
        raise PydanticCustomError(OURS, "must hold texts alone, or lists of token ids alone")
    for index, prompt in enumerate(value):
        if not prompt:
            raise PydanticCustomError(OURS, "holds an empty prompt, the one of index {index}", {"index": index})
        if isinstance(prompt, list):
            _check_ids(index, prompt)
    return value


def _check_ids(index: int, ids: list[Any]) -> None:
    if {type(id) for id in ids} != {int} or min(ids) < 0:
        raise PydanticCustomError(
            OURS, "must hold token ids that are whole numbers from 0; index {index} does not", {"index": index}
        )


Prompts = Annotated[
    Any,
    BeforeValidator(_prompts),
    WithJsonSchema({"anyOf": [_TEXTS, {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 4096}]}),
]


def _layers(value: Any) -> Any:
    """None, "all", or Layers in ascending order."""
    if value is None or value == ALL:
        return value
    if not isinstance(value, list) or not value or any(type(layer) is not int for layer in value):
        raise PydanticCustomError(OURS, 'must be a list of Layers that is not empty, or "all"')
    for layer in value:
        if not 0 <= layer <= INDEX_MAX:
            raise PydanticCustomError(OURS, "names the Layer {layer}", {"layer": shown(layer)})
    if len(set(value)) < len(value):
        raise PydanticCustomError(OURS, "names a Layer twice")
    return sorted(value)


Layers = Annotated[
    Any, BeforeValidator(_layers), WithJsonSchema({"anyOf": [_LAYERS, {"const": ALL}, {"type": "null"}]})
]


def _directions(value: Any, info: ValidationInfo) -> np.ndarray | None:
    """float32 [directions, hidden], each of length 1."""
    if value is None:
        return None
    given = finite_float32(value, limits_of(info).steering_bytes)
    if given.ndim != 2 or not given.size or len(given) > DIRECTIONS_MAX:
        shape = list(given.shape)
        raise PydanticCustomError(
            OURS,
            "has the shape {shape}; it must be [directions, hidden], of 1 to {most} directions",
            {"shape": shape, "most": DIRECTIONS_MAX},
        )
    lengths = np.sqrt((given.astype("<f8") ** 2).sum(axis=1, keepdims=True))
    if not lengths.all():
        raise PydanticCustomError(OURS, "holds a direction of length 0")
    unit: np.ndarray = (given / lengths).astype("<f4")
    return unit


Directions = Annotated[
    Any,
    BeforeValidator(_directions),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "minItems": 1, "maxItems": DIRECTIONS_MAX, "items": _ROWS},
                {"type": "object", "description": "The envelope of output_residual_stream."},
                {"type": "null"},
            ]
        }
    ),
]
