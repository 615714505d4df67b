"""GET /v1/usage: what the caller's account may use, holds and was charged in a month."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from acs.events.ledger import month_of
from acs.platform.errors import InvalidRequest
from acs.serve_apps.api import http

MONTH = "[1-9][0-9]{3}-(0[1-9]|1[0-2])"


async def get_usage(request: Request) -> Response:
    """Of the whole account, whichever of its keys asks."""
    services = http.services_of(request)
    caller = await http.caller_of(request)
    month = _month(request.query_params.getlist("month"))
    return await http.json_answer(request, await services.views.usage(caller.account_id, month))


def _month(given: list[str]) -> str:
    """The one given, or this one."""
    if not given:
        return month_of(datetime.now(UTC))
    if len(given) > 1:
        raise InvalidRequest(f"month is given {len(given)} times; give it once.", param="month")
    if not re.fullmatch(MONTH, given[0], re.ASCII):
        raise InvalidRequest(f"month is {given[0][:40]!r}; it must be of the form 2026-11.", param="month")
    return given[0]
