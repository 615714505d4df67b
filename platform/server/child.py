"""How a child process of the supervisor runs: it ends with the supervisor, and leaves a sentence when it fails."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from acs.platform.server import processes
from acs.platform.server.faults import ServerFault
from acs.platform.settings import Settings, SettingsError

_NUMBER_OF_WORDS = 40


def run(main: Callable[[Settings], None], *, doing: str) -> None:
    """Run `main` and end this process. stderr is the server's log; the operator sees only the sentence."""
    processes.die_with_parent()
    try:
        settings = Settings.from_environ()
    except SettingsError as error:
        print(error, file=sys.stderr)
        _exit(1)
    try:
        main(settings)
    except ServerFault as fault:
        traceback.print_exc()
        _leave(settings, str(fault))
    except BaseException as error:
        traceback.print_exc()
        what = " ".join(f"{type(error).__name__}: {error}".split()[:_NUMBER_OF_WORDS])
        _leave(settings, f"{doing} failed ({what}); the log is {settings.server_log}.")
    _exit(0)


def _leave(settings: Settings, sentence: str) -> None:
    partial = settings.fault_file.with_suffix(".partial")
    partial.write_text(sentence)
    partial.rename(settings.fault_file)
    _exit(1)


def _exit(code: int) -> None:
    """Without the interpreter's farewells, among them Ray's own shutdown: the supervisor ends what is left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
