"""What the routes of Looms have in common: the ledger's word, and blobs with their faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from acs.platform.errors import ApiError, InternalError, LoomNotFound, NodeNotDone, PartUnavailable
from acs.platform.idempotency import Replayed
from acs.platform.ledger.loom_contract import LoomView, Written
from acs.platform.looms.client import LoomClient
from acs.platform.looms.stored import NodeContent, read_content, title_blob
from acs.platform.wiring import Services
from acs.serve_apps.api import http
from acs.storage.blobs import Blob, Blobs, BlobUnavailable

T = TypeVar("T")


def looms_of(request: Request) -> LoomClient:
    return LoomClient(http.services_of(request).ledger.asks)


@dataclass(frozen=True, slots=True)
class PathRead:
    """A path whose last Node is done."""

    loom: LoomView
    contents: list[NodeContent]  # from the root on

    @property
    def parent_tokens(self) -> list[int | None]:
        return [node.parent_token for node in self.loom.nodes]


async def path_of(services: Services, loom: LoomView) -> PathRead:
    """Raises NodeNotDone, and LoomNotFound when it was deleted meanwhile."""
    status = loom.nodes[-1].status
    if status != "done":
        raise NodeNotDone(f"The Node is {status}; only one that is done can be continued or read.")
    addresses = [node.content_sha256 or "" for node in loom.nodes]

    def contents() -> list[NodeContent]:
        return [read_content(services.looms, address) for address in addresses]

    try:
        return PathRead(loom, await asyncio.to_thread(contents))
    except BlobUnavailable:
        raise LoomNotFound("The Node has just been deleted.") from None


async def kept(looms: Blobs, data: bytes) -> Blob:
    """Raises PartUnavailable."""
    try:
        return await asyncio.to_thread(looms.put, data)
    except BlobUnavailable as error:
        raise PartUnavailable("The request cannot be kept at the moment. Try again.") from error


async def erased(looms: Blobs, *blobs: Blob | Written | None) -> None:
    for blob in blobs:
        if blob is not None:
            await asyncio.to_thread(looms.erase, blob.sha256)


async def read(make: Callable[[], T]) -> T:
    """What is made of blobs. Raises InternalError."""
    try:
        return await asyncio.to_thread(make)
    except BlobUnavailable as error:
        raise InternalError("The Loom cannot be read.") from error


async def replayed_or_raised(request: Request, refused: ApiError | Replayed) -> Response:
    if isinstance(refused, Replayed):
        return await http.replay(request, refused.kept)
    raise refused


async def kept_title(services: Services, loom_id: str, title: str | None) -> Blob | None:
    return None if title is None else await kept(services.looms, title_blob(loom_id, title))
