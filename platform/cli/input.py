"""What a command is given to read."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from acs.platform.cli.errors import CommandFailed


def parsed(text: str, what: str) -> Any:
    """`what` begins the sentence that says that it is no JSON. Raises CommandFailed."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandFailed(f"{what} is not JSON: {error}.") from None


def request(body: str) -> Any:
    """As an argument gives it; `-`: from the standard input. Raises CommandFailed."""
    if os.path.isfile(body):
        raise CommandFailed(f"{body} is a file: give it as `- < {body}`, or by the option that --help names for it.")
    return parsed(sys.stdin.read() if body == "-" else body, "The request")
