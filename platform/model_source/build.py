"""The child process that makes one checkpoint folder: `python -m acs.platform.model_source.build SOURCE FOLDER`.

A process of its own, so that torch never loads into the parent. On standard output a line is progress, the last one
`done: ` with versions (JSON) or `fault: ` with what went wrong. When standard input ends, the parent is gone (kill -9
included), and this process ends with whatever it started.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import signal
import sys
import threading
from pathlib import Path

from acs.platform.model_source import address
from acs.platform.model_source.fault import SourceFault

TOOLS = ("acs-research", "torch", "transformers", "tokenizers", "gguf", "huggingface-hub", "numpy")


def main(source: str, folder: Path) -> str:
    """The last line to print."""
    os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error", "DO_NOT_TRACK": "1"}
    where = address.parse(source)
    if not isinstance(where, address.Hub):
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        _write(where, folder)
    except SourceFault as fault:
        return f"fault: {' '.join(str(fault).split())}"  # one line, whatever was quoted
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return f"fault: the disk of {folder.parent} is full"
    return f"done: {json.dumps({name: version for name in TOOLS if (version := _version(name))})}"


def _write(where: address.Address, folder: Path) -> None:
    match where:
        case address.Toy():
            from acs.platform.model_source import toy

            toy.write(folder, where.seed)
        case address.Package():
            from acs.platform.model_source import package

            package.write(folder, where, _say)
        case address.Hub():
            from acs.platform.model_source import hub

            hub.write(folder, where, _say)
        case address.Folder():
            raise SourceFault("a folder needs no preparation")


def _say(line: str) -> None:
    print(line, flush=True)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _end_with_the_parent() -> None:
    os.read(0, 1)  # nobody ever writes to it; not sys.stdin, whose lock would upset the interpreter's end
    os.killpg(os.getpgrp(), signal.SIGKILL)  # `models` starts us as leader of a group of our own


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    print(main(sys.argv[1], Path(sys.argv[2])), flush=True)
