"""How far a long command is."""

from __future__ import annotations

import sys


class Progress:
    """One line on a terminal's stderr, written over; nothing where nobody looks. A context, at whose end it goes."""

    def __enter__(self) -> Progress:
        self._shown = sys.stderr.isatty()
        return self

    def say(self, line: str) -> None:
        if self._shown:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        self.say("")
