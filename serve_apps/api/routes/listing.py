"""The query parameters of lists, and of others that are given once."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request

from acs.events.ids import parse
from acs.platform.errors import InvalidRequest

LISTED, LISTED_MOST = 20, 100


def limit_of(request: Request) -> int:
    """How many. Raises InvalidRequest."""
    return whole_number(request, "limit", 1, LISTED_MOST, LISTED)


def after_of(request: Request, kind: str, what: str) -> str | None:
    """The id of this kind after which the list goes on; `what` it is the id of. Raises InvalidRequest."""
    return id_of(request, "after", kind, what)


def status_of(request: Request, statuses: Iterable[str]) -> str | None:
    """Raises InvalidRequest."""
    given, allowed = one(request, "status"), list(statuses)
    if given is not None and given not in allowed:
        raise InvalidRequest(f"status is {given[:40]!r}; it must be one of {', '.join(allowed)}.", param="status")
    return given


def whole_number(request: Request, name: str, low: int, high: int, default: int) -> int:
    """Raises InvalidRequest."""
    given = one(request, name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= len(str(high)) and low <= int(given) <= high):
        raise InvalidRequest(f"{name} is {given[:40]!r}; it must be a whole number from {low} to {high}.", param=name)
    return int(given)


def id_of(request: Request, name: str, kind: str, what: str) -> str | None:
    """Raises InvalidRequest for what is no id of this kind."""
    given = one(request, name)
    if given is not None and parse(kind, given) is None:
        raise InvalidRequest(f"{name} is {given[:40]!r}, which is no id of a {what}.", param=name)
    return given


def flag(request: Request, name: str) -> bool:
    """Raises InvalidRequest."""
    given = one(request, name)
    if given not in (None, "true", "false"):
        raise InvalidRequest(f"{name} is {given[:40]!r}; it must be true or false.", param=name)
    return given == "true"


def one(request: Request, name: str) -> str | None:
    """The value, None when it is not given. Raises InvalidRequest when there are several."""
    given = request.query_params.getlist(name)
    if len(given) > 1:
        raise InvalidRequest(f"{name} is given {len(given)} times; give it once.", param=name)
    return given[0] if given else None
