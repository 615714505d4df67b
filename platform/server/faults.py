"""A fault of starting or running a server that its operator can act on."""

from __future__ import annotations


class ServerFault(Exception):
    """The message is one sentence for the operator: what is wrong, with the names and values that matter."""
