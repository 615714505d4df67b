"""How a command of the command line fails."""

from __future__ import annotations


class CommandFailed(Exception):
    """The message is one sentence for the operator's terminal; the exit status is 1."""
