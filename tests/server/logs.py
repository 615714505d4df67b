"""What a server has written that is not an answer: its output, and every file of its run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from server.running import Server


def files_with(server: Server, *words: str) -> list[str]:
    """ "file: word" for each of the words in each place where it stands."""
    texts = [("output", server.output.encode())]
    texts += [(str(path), path.read_bytes()) for path in files_of_run(server)]
    return [f"{name}: {word}" for name, text in texts for word in words if word.encode() in text]


def files_of_run(server: Server) -> Iterator[Path]:
    """Ray's and HAProxy's too, which lie behind links."""
    seen = set()
    for folder, folders, names in os.walk(server.data / "run", followlinks=True):
        if (real := Path(folder).resolve()) in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (path for name in names if (path := real / name).is_file())
