"""Files of harvests in a folder, by signed links: no key, ranges, and only what the ledger says may still be had. Those
in a bucket the bucket itself serves.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable, Response

from acs.platform.errors import InternalError, NotFound, RangeBeyond
from acs.platform.harvests.client import HarvestClient
from acs.platform.harvests.links import Links
from acs.serve_apps.api import http
from acs.serve_apps.api.routes.listing import one

PATH = "/files/{harvest_id}/{file}"
NO_LINK = "This is no link of ours, or it works no longer. GET /v1/harvest/{job_id} has those of a harvest."


class Parts(FileResponse):
    chunk_size = 1 << 20


async def get_file(request: Request) -> Response:
    """Whether a link is forged, has expired, or is of a suspended account: nobody can tell which."""
    services = http.services_of(request)
    harvest_id, file = request.path_params["harvest_id"], request.path_params["file"]
    expires, signature = one(request, "expires") or "", one(request, "signature") or ""
    links = services.links
    genuine = isinstance(links, Links) and links.is_genuine(harvest_id, file, expires, signature)
    if not genuine or int(expires) <= time.time():
        raise NotFound(NO_LINK)
    sha256 = await HarvestClient(services.ledger.asks).sha256_of(harvest_id, file)
    if sha256 is None:
        raise NotFound(NO_LINK)
    path = services.harvest_files.inside(harvest_id).path_of(file)
    try:
        stat = await asyncio.to_thread(os.stat, path)
    except OSError as error:
        raise InternalError("The file cannot be read.") from error
    headers = {"ETag": f'"{sha256}"'} if sha256 else {}
    _check_range(request, stat.st_size)
    return Parts(path, headers=headers, media_type=_type_of(path), stat_result=stat)


def _check_range(request: Request, size: int) -> None:
    """A range that means nothing is passed over, as if none had been asked for. Raises RangeBeyond."""
    given = request.headers.get("range")
    if given is None:
        return
    try:
        Parts._parse_range_header(given, size)
    except RangeNotSatisfiable:
        raise RangeBeyond(f"The file has {size:,} bytes; {given[:60]} begins behind its end.", size=size) from None
    except MalformedRangeHeader:
        request.scope["headers"] = [header for header in request.scope["headers"] if header[0] != b"range"]


def _type_of(path: str) -> str:
    return "application/json" if Path(path).suffix == ".json" else "application/vnd.apache.parquet"
