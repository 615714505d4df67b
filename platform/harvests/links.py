"""Links to a harvest's files, which work without a key: signed over harvest, file and expiry, by us when the files lie
in a folder; by the bucket's own rules when they lie in one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from acs.storage.shards.presigned import Presigner
from acs.storage.shards.store import Store

KEY_BYTES = 32


class Links:
    def __init__(self, key: bytes, public_url: str) -> None:
        """`key`: the same for as long as links shall work. `public_url`: where clients reach this server, without a
        slash at its end; what a client says of its own address plays no part.
        """
        self._key = key
        self._public_url = public_url

    def url(self, harvest_id: str, file: str, expires: int) -> str:
        """`expires`: in Unix seconds."""
        signature = self._signature(harvest_id, file, expires)
        return f"{self._public_url}/files/{harvest_id}/{file}?expires={expires}&signature={signature}"

    def is_genuine(self, harvest_id: str, file: str, expires: str, signature: str) -> bool:
        """Whether we made it. It may have expired."""
        plain = expires.isascii() and expires.isdecimal() and len(expires) <= 12 and signature.isascii()
        return plain and hmac.compare_digest(self._signature(harvest_id, file, int(expires)), signature)

    def _signature(self, harvest_id: str, file: str, expires: int) -> str:
        signed = f"{harvest_id}\n{file}\n{expires}".encode()  # names of files hold no line ends
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()


class BucketLinks:
    """The bucket answers them. Until they expire, or the files go, nobody can stop one."""

    def __init__(self, presigner: Presigner, files: Store, now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        """`files`: a place for each harvest in it."""
        self._presigner = presigner
        self._files = files
        self._now = now

    def url(self, harvest_id: str, file: str, expires: int) -> str:
        """`expires`: in Unix seconds; no link works longer than a bucket allows, which is a week."""
        now = self._now()
        path = self._files.inside(harvest_id).path_of(file)
        return self._presigner.url(path, now, max(1, expires - int(now.timestamp())))


def links_key(path: Path) -> bytes:
    """The key in the file, which is made with a new one when it is not there yet. Raises OSError."""
    if not path.exists():
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # fails when another process was first, whose key then counts
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_bytes()
