"""Ports for what Ray, Serve and HAProxy listen on inside one run: a block that nobody else on this machine uses."""

from __future__ import annotations

import random
import socket

from acs.platform.server.faults import ServerFault

RAY_AGENTS = "ACS_RAY_AGENT_PORTS"  # four, with spaces between

_COUNT = 256
_claims: list[socket.socket] = []  # held until this process ends


def environment() -> dict[str, str]:
    """Ports of this run's own, so that two servers on one machine do not meet."""
    first = _claimed_block(_COUNT)
    http, grpc = first + 16, first + 136
    return {
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(first),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(first + 1),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(first + 2),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(first + 3),
        RAY_AGENTS: " ".join(str(first + 4 + i) for i in range(4)),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(grpc - 1),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(first + _COUNT - 1),
    }


def _claimed_block(size: int) -> int:
    """The first of `size` free ports in a row, below those that the kernel gives to outgoing connections. One of them,
    which nothing of ours listens on, stays bound: another server that looks meanwhile does not find the block free.
    """
    blocks = list(range(12_000, 32_000, size))
    random.shuffle(blocks)
    for first in blocks:
        claimed = first + 15
        if (claim := _bound(claimed)) is None:
            continue
        if all(_is_free(port) for port in range(first, first + size) if port != claimed):
            _claims.append(claim)
            return first
        claim.close()
    raise ServerFault(f"No {size} free ports in a row between 12000 and 32000.")


def _is_free(port: int) -> bool:
    if (probe := _bound(port)) is None:
        return False
    probe.close()
    return True


def _bound(port: int) -> socket.socket | None:
    bound = socket.socket()
    try:
        bound.bind(("", port))
    except OSError:
        bound.close()
        return None
    return bound
