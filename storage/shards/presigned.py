"""Links to files in an S3-compatible bucket that work without a key: signature version 4, in the query of a GET.

The bucket judges them, and serves ranges; nothing of a file passes through us.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from urllib.parse import parse_qs, quote, unquote, urlsplit

LIVES_MOST_S = 604_800  # of a link; a bucket takes none that is to live longer
_USUAL_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Presigner:
    """For one bucket. `host`: with its port; it has the bucket's name, or the path begins with it."""

    scheme: str
    host: str
    in_path: bool  # the bucket's name is
    region: str
    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)  # of a key that lives for hours; its links live no longer

    @classmethod
    def of(cls, address: str, region: str, environ: Mapping[str, str]) -> Presigner:
        """`address`: as `acs.storage.shards.store.Store.at` takes it; `region`: the bucket's. Raises ValueError, with
        one sentence for the operator, when there are no keys in it or in the environment.
        """
        parts = urlsplit(address)
        bucket, asked = parts.hostname or "", {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.username is not None:
            key_id, secret, token = unquote(parts.username), unquote(parts.password or ""), None
        else:
            key_id, secret = (environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
            token = environ.get("AWS_SESSION_TOKEN") or None
        if not key_id or not secret:
            raise ValueError(
                "Links to files in a bucket are signed with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: set them."
            )
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # pyarrow heeds them too
        given = asked.get("endpoint_override") or next(filter(None, map(environ.get, names)), None)
        scheme = asked.get("scheme", "https")
        if given is not None:
            scheme, _, host = given.rpartition("://") if "://" in given else (scheme, "", given)
            host = host.rstrip("/").removesuffix(_USUAL_PORTS.get(scheme, ""))  # which no client names in its request
            return cls(scheme, host, True, region, key_id, secret, token)
        dotted = "." in bucket  # the certificate for *.s3.….amazonaws.com is for no such name
        host = f"s3.{region}.amazonaws.com"
        return cls(scheme, host if dotted else f"{bucket}.{host}", dotted, region, key_id, secret, token)

    def url(self, path: str, signed_at: datetime, lives_s: int) -> str:
        """`path`: bucket/key. The link works from `signed_at` on, for so long, LIVES_MOST_S at most."""
        moment = signed_at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        fields = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.key_id}/{scope}",
            "X-Amz-Date": moment,
            "X-Amz-Expires": str(min(lives_s, LIVES_MOST_S)),
            "X-Amz-SignedHeaders": "host",
        }
        if self.token is not None:
            fields["X-Amz-Security-Token"] = self.token
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted(fields.items()))
        shown = "/" + quote(path if self.in_path else path.partition("/")[2], safe="/~")
        request = f"GET\n{shown}\n{query}\nhost:{self.host}\n\nhost\nUNSIGNED-PAYLOAD"
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = reduce(_mac, scope.split("/"), f"AWS4{self.secret}".encode())
        return f"{self.scheme}://{self.host}{shown}?{query}&X-Amz-Signature={_mac(key, to_sign).hex()}"


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
