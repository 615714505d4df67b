"""Ports for what Serve and HAProxy listen on inside one run: a block that nobody else on this machine uses."""

from __future__ import annotations

import random
import socket

from acs.platform.server.faults import ServerFault

_COUNT = 256


def environment() -> dict[str, str]:
    """Ports of this run's own, so that two servers on one machine do not meet."""
    first = _free_block(_COUNT)
    http, grpc = first + 16, first + 136
    return {
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(first),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(first + 1),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(first + 2),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(first + 3),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(grpc - 1),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(first + _COUNT - 1),
    }


def _free_block(size: int) -> int:
    """The first of `size` free ports in a row, below those that the kernel gives to outgoing connections."""
    blocks = list(range(12_000, 32_000, size))
    random.shuffle(blocks)
    for first in blocks:
        if all(_is_free(port) for port in range(first, first + size)):
            return first
    raise ServerFault(f"No {size} free ports in a row between 12000 and 32000.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
