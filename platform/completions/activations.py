"""The two fields that reach into the model: which Layers to read, and what to add to which of them.

Everything that needs no model is judged here, so that nothing but finite numbers of a sound shape goes any further.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from acs import tensors
from acs.platform.completions.body import OURS, Body, shown
from acs.platform.inference.contract import STEERED_MAX, Steering
from acs.platform.limits import Limits

INDEX_MAX = 2**31 - 1  # no model has as many Layers or positions
VECTORS_MAX = 8

_INDICES = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": INDEX_MAX}, "minItems": 1}
_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 1}


def _indices(value: list[int], what: str) -> list[int]:
    """Not empty, not negative, each once."""
    if not value:
        raise PydanticCustomError(OURS, "must not be empty")
    for index in value:
        if not 0 <= index <= INDEX_MAX:
            raise PydanticCustomError(OURS, "names the {what} {index}", {"what": what, "index": shown(index)})
    if len(set(value)) < len(value):
        raise PydanticCustomError(OURS, "names a {what} twice", {"what": what})
    return value


def _residual_stream(value: Any) -> Any:
    """None (nothing), True (every Layer) or Layers in ascending order."""
    if value is None or value is False:
        return None
    if value is True:
        return value
    if not isinstance(value, list) or any(type(layer) is not int for layer in value):
        raise PydanticCustomError(OURS, "must be true, false or a list of Layers")
    return sorted(_indices(value, "Layer"))


ResidualStream = Annotated[
    Any,
    BeforeValidator(_residual_stream),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {**_INDICES, "uniqueItems": True}, {"type": "null"}]}),
]


def _values(value: Any, info: ValidationInfo) -> np.ndarray:
    """float32 [layers, hidden] or [layers, positions, hidden], finite, of an envelope or of nested lists."""
    values = finite_float32(value, limits_of(info).steering_bytes)
    if values.ndim not in (2, 3) or not values.size:
        shape = list(values.shape)
        raise PydanticCustomError(
            OURS, "has the shape {shape}; it must be [layers, hidden] or [layers, positions, hidden]", {"shape": shape}
        )
    return values


def finite_float32(value: Any, max_bytes: int) -> np.ndarray:
    """The tensor of an envelope or of nested lists. Raises PydanticCustomError."""
    if isinstance(value, dict):
        unknown = value.keys() - {"data", "dtype", "original_dtype", "shape", "compression"}
        if unknown:
            raise PydanticCustomError(OURS, "is an envelope with the key {key}", {"key": min(unknown)[:100]})
        try:
            values = tensors.decode(value, max_bytes)
        except ValueError as error:
            raise PydanticCustomError(OURS, "{fault}", {"fault": str(error)}) from None
    elif isinstance(value, list):
        values = _of_lists(value)
    else:
        raise PydanticCustomError(OURS, "must be nested lists of numbers, or an envelope")
    with np.errstate(over="ignore"):
        values = values.astype("<f4")
    if not np.isfinite(values).all():
        raise PydanticCustomError(OURS, "holds NaN, infinity, or a number beyond what float32 holds")
    return values


def _of_lists(value: list[Any]) -> np.ndarray:
    """float64. Each level is looked at as a whole: a body may hold millions of numbers."""
    kinds = {type(item) for item in value}
    if kinds == {list}:
        parts = [_of_lists(item) for item in value]
        if len({part.shape for part in parts}) > 1:
            raise PydanticCustomError(OURS, "has lists of different lengths")
        if parts[0].ndim > 2:
            raise PydanticCustomError(OURS, "is nested more than three deep")
        return np.stack(parts)
    if not kinds <= {int, float}:
        raise PydanticCustomError(OURS, "must hold numbers alone, in lists nested two or three deep")
    try:
        return np.array(value, "<f8")
    except OverflowError:
        raise PydanticCustomError(OURS, "holds a number beyond what float32 holds") from None


def _layers(value: list[int], info: ValidationInfo) -> list[int]:
    _indices(value, "Layer")
    values = info.data.get("activations")
    if values is not None and len(values) != len(value):
        raise PydanticCustomError(
            OURS,
            "names {named} Layers; activations has {rows}",
            {"named": len(value), "rows": len(values)},
        )
    return value


def _scale(value: float | None, info: ValidationInfo) -> float | None:
    values = info.data.get("activations")
    if values is not None:
        scale = 1.0 if value is None else value
        largest = float(np.abs(values).max())
        if abs(scale) * max(largest, 1.0) > STEERED_MAX:
            raise PydanticCustomError(
                OURS,
                "is {scale}; times activations, which go up to {largest}, it is beyond {limit}",
                {"scale": shown(scale), "largest": f"{largest:g}", "limit": f"{STEERED_MAX:g}"},
            )
    return value


def _positions(value: list[int] | None, info: ValidationInfo) -> list[int] | None:
    if value is None:
        return None
    _indices(value, "position")
    values = info.data.get("activations")
    if values is not None and values.ndim == 2:
        raise PydanticCustomError(OURS, "needs activations of the shape [layers, positions, hidden]")
    if values is not None and values.shape[1] != len(value):
        raise PydanticCustomError(
            OURS, "names {named} positions; activations has {rows}", {"named": len(value), "rows": values.shape[1]}
        )
    return value


def limits_of(info: ValidationInfo) -> Limits:
    """`parse_completion` gives them as the context of the validation."""
    return info.context if isinstance(info.context, Limits) else Limits()


class SteeringVector(Body):
    """One vector for each of `layer_indices`, or one for each of them and each position."""

    activations: Annotated[
        Any,
        BeforeValidator(_values),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "array", "minItems": 1, "items": _NUMBERS},
                    {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1, "items": _NUMBERS}},
                    {
                        "type": "object",
                        "required": ["data", "dtype", "shape"],
                        "additionalProperties": False,
                        "properties": {
                            "data": {"type": "string"},
                            "dtype": {"enum": ["int16", "float16", "float32", "float64"]},
                            "original_dtype": {"type": ["string", "null"]},
                            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                            "compression": {"enum": ["zstd", None]},
                        },
                    },
                ]
            }
        ),
    ] = Field(description="[layers, hidden] or [layers, positions, hidden]: nested lists, or the envelope.")
    layer_indices: Annotated[list[int], AfterValidator(_layers), WithJsonSchema(_INDICES)] = Field(
        description="The Layers, counted from 0, that the rows of activations are added to."
    )
    scale: Annotated[float | None, AfterValidator(_scale)] = Field(
        None, validate_default=True, description="Default 1; 0 adds nothing."
    )
    norm_match: bool | None = Field(None, description="Give each row the norm of the stream that it is added to.")
    position_indices: Annotated[
        list[int] | None, AfterValidator(_positions), WithJsonSchema({"anyOf": [_INDICES, {"type": "null"}]})
    ] = Field(None, description="The positions of the rows of [layers, positions, hidden]; default: 0, 1, …")

    @property
    def size_bytes(self) -> int:
        return int(self.activations.nbytes)

    def steering(self) -> Steering | None:
        """What the engine is told; None for a vector of scale 0, which must leave no trace."""
        scale = 1.0 if self.scale is None else self.scale
        if scale == 0:
            return None
        positions = None
        if self.activations.ndim == 3:
            positions = self.position_indices or list(range(self.activations.shape[1]))
        return Steering(self.layer_indices, self.activations.tobytes(), scale, bool(self.norm_match), positions)
