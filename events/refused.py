"""The one parent of every refusal: a command that may not be done, and of which no event was made."""

from __future__ import annotations


class Refused(Exception):
    """The message is one sentence for whoever asked; it names the thing and the two values that disagree."""
