"""What is kept of a Loom in blobs, each with the id of what it is of, so that no two share one: what one of them no
longer needs is erased.

    a title     {"loom", "title", "nonce"}: each giving of a title has a blob of its own
    a Node      {"node", "run", "text", "token_ids", "finish_reason", "usage", "logprobs"}; the root's, and those that
                were imported, have "model" and "sampling" too, which the others have from their Branch
    a Branch    {"branch", "asked"}: the fields that were sent
    its request as a Job's, and its error too
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import orjson

from acs.storage.blobs import Blobs


@dataclass(frozen=True, slots=True)
class NodeContent:
    text: str
    token_ids: list[int]
    finish_reason: str | None
    usage: dict[str, int] | None  # None: the root
    logprobs: dict[str, Any] | None
    model: str | None = None  # of its Branch
    sampling: dict[str, Any] | None = None  # of its Branch

    def blob(self, node_id: str, run: int) -> bytes:
        """`run`: of its Branch, 0 without one. Two runs may have made the same, and one of them is erased."""
        kept = {name: getattr(self, name) for name in NodeContent.__dataclass_fields__}
        return orjson.dumps({"node": node_id, "run": run, **kept})

    @property
    def token_logprobs(self) -> list[float] | None:
        """None: they were not asked for."""
        return None if self.logprobs is None else self.logprobs["token_logprobs"]


def content_of(node_blob: bytes) -> NodeContent:
    stored = orjson.loads(node_blob)
    return NodeContent(**{name: stored[name] for name in NodeContent.__dataclass_fields__})


def read_content(looms: Blobs, address: str) -> NodeContent:
    """Raises BlobUnavailable."""
    return content_of(looms.get(address))


def title_blob(loom_id: str, title: str) -> bytes:
    """Never the same twice: a title given again may be on its way while its former blob is erased."""
    return orjson.dumps({"loom": loom_id, "title": title, "nonce": secrets.token_hex(16)})


def title_of(title_blob: bytes) -> str:
    title: str = orjson.loads(title_blob)["title"]
    return title


def asked_blob(branch_id: str, asked: dict[str, Any]) -> bytes:
    return orjson.dumps({"branch": branch_id, "asked": asked})


def asked_of(asked_blob: bytes) -> dict[str, Any]:
    asked: dict[str, Any] = orjson.loads(asked_blob)["asked"]
    return asked
