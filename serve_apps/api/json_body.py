"""Bytes to JSON, strictly: what is not JSON is `bad_json`; what is JSON that no field can hold is `invalid_request`."""

from __future__ import annotations

import json
import math
from typing import Any

import jiter

from acs.platform.errors import BadJson, InvalidRequest

DEPTH_MAX = 64


def parse_json(body: bytes) -> Any:
    """Raises BadJson (empty, not UTF-8, NaN or Infinity, duplicate keys, deeper than 64, any broken syntax) and
    InvalidRequest with the path of the fault (a lone surrogate, a number beyond what its type can hold).
    """
    if not body.strip():
        raise BadJson("The body is empty; it must be a JSON object.")
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        raise _why(body, str(error)) from None
    # A body with few brackets cannot be deep, and most have few.
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _deeper_than(value, DEPTH_MAX):
        raise BadJson(f"The body is nested deeper than {DEPTH_MAX} levels.")
    if b"e" in body or b"E" in body:
        _refuse_infinite(value)
    return value


def _why(body: bytes, reason: str) -> BadJson | InvalidRequest:
    """jiter stops at the first fault of any kind; Python's parser, which takes more, tells the kinds apart."""
    if "recursion limit" in reason:
        return BadJson(f"The body is nested deeper than {DEPTH_MAX} levels.")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return BadJson(f"The body is not UTF-8: byte {error.start} does not belong.")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique, parse_int=_integer)
    except RecursionError:
        return BadJson(f"The body is nested deeper than {DEPTH_MAX} levels.")
    except ValueError as error:
        return BadJson(f"The body is not JSON: {error}.")
    path = _find(value, lambda leaf: isinstance(leaf, str) and _has_lone_surrogate(leaf))
    if path is not None:
        return InvalidRequest(f"{path or 'The body'} holds half of a surrogate pair, which is no text.", param=path)
    path = _find(value, lambda leaf: isinstance(leaf, float) and not math.isfinite(leaf))
    if path is not None:
        return InvalidRequest(f"{path or 'The body'} is a number too large for any field.", param=path or None)
    return BadJson(f"The body is not JSON: {reason}.")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _integer(digits: str) -> float | int:
    return int(digits) if len(digits) < 400 else math.inf


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _find(value: Any, is_fault: Any, path: str = "") -> str | None:
    """The path of the first leaf (or key) that is a fault."""
    if isinstance(value, dict):
        for key, item in value.items():
            if is_fault(key):
                return path
            found = _find(item, is_fault, f"{path}.{key}" if path else key)
            if found is not None:
                return found
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found = _find(item, is_fault, f"{path}[{index}]")
            if found is not None:
                return found
    elif is_fault(value):
        return path
    return None


def _refuse_infinite(value: Any) -> None:
    """`1e400` is a JSON number that becomes infinity; only a body with an exponent can hold one."""
    if isinstance(value, dict):
        path = _find(value, lambda leaf: isinstance(leaf, float) and not math.isfinite(leaf))
        if path is not None:
            raise InvalidRequest(f"{path} is a number too large for any field.", param=path)


def _deeper_than(value: Any, levels: int) -> bool:
    """Level by level and only through containers, so that a flat list of a million numbers is cheap."""
    level = [value]
    for _ in range(levels + 1):
        containers = [item for item in level if type(item) in (dict, list)]
        if not containers:
            return False
        level = [inner for item in containers for inner in (item.values() if type(item) is dict else item)]
    return True
