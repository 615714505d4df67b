"""Bytes to JSON, strictly: what is not JSON is `bad_json`; JSON that no field can hold is `invalid_request`."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jiter

from acs.platform.errors import BadJson, InvalidRequest

DEPTH_MAX = 64
_LONE_SURROGATE = re.compile("[\ud800-\udfff]").search


def parse_json(body: bytes) -> Any:
    """Raises BadJson (empty, not UTF-8, NaN or Infinity, duplicate keys, deeper than 64, any broken syntax) and
    InvalidRequest with the path of a lone surrogate. A number beyond what any type holds comes back as infinity, which
    no field takes.
    """
    if not body.strip():
        raise BadJson("The body is empty; it must be a JSON object.")
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError:
        value = _parsed_by_python(body)
        _refuse_depth(body, value)
        _refuse_lone_surrogates(value)
        return value
    _refuse_depth(body, value)
    return value


def _parsed_by_python(body: bytes) -> Any:
    """jiter stops at the first fault of any kind. Python's parser tells the kinds apart: it takes lone surrogates, any
    number and more depth, and refuses the rest.
    """
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant, object_pairs_hook=_unique, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise BadJson(f"The body is not UTF-8: byte {error.start} does not belong.") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise BadJson(f"The body is not JSON: {error}.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _integer(digits: str) -> float | int:
    return int(digits) if len(digits) < 400 else math.inf


def _refuse_lone_surrogates(value: Any) -> None:
    path = _find_lone_surrogate(value)
    if path is not None:
        raise InvalidRequest(
            f"{path or 'The body'} holds half of a surrogate pair, which is no text.", param=path or None
        )


def _find_lone_surrogate(value: Any, path: str = "") -> str | None:
    """The path of the first text with one, or of the object that has it in a key."""
    if isinstance(value, str):
        return path if _LONE_SURROGATE(value) else None
    if isinstance(value, dict):
        if any(map(_LONE_SURROGATE, value)):
            return path
        inner = ((item, f"{path}.{key}" if path else key) for key, item in value.items())
    elif isinstance(value, list):
        inner = ((item, f"{path}[{index}]") for index, item in enumerate(value))
    else:
        return None
    return next((found for item, at in inner if (found := _find_lone_surrogate(item, at)) is not None), None)


def _refuse_depth(body: bytes, value: Any) -> None:
    # A body with few brackets cannot be deep, and most have few.
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _deeper_than(value, DEPTH_MAX):
        raise _too_deep()


def _too_deep() -> BadJson:
    return BadJson(f"The body is nested deeper than {DEPTH_MAX} levels.")


def _deeper_than(value: Any, levels: int) -> bool:
    """Level by level and only through containers, so that a flat list of a million numbers is cheap."""
    level = [value]
    for _ in range(levels + 1):
        containers = [item for item in level if type(item) in (dict, list)]
        if not containers:
            return False
        level = [inner for item in containers for inner in (item.values() if type(item) is dict else item)]
    return True
