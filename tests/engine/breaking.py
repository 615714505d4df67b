"""A worker extension whose tap can be made to fail for one request, and that counts rows written twice."""

from __future__ import annotations

from typing import Any

from acs.serve_apps.inference.tap import step
from acs.serve_apps.inference.tap.requests import TappedRequest
from acs.serve_apps.inference.tap.step import Rows, Step
from acs.serve_apps.inference.worker import WorkerExtension

_broken: dict[str, str] = {}  # group -> where its next fault happens
_written: dict[str, int] = {}  # request -> positions written
_twice = [0]


class Injected(Exception):
    pass


def _fail_at(where: str, group: str) -> None:
    if _broken.get(group) == where:
        raise Injected(where)


class BreakableExtension(WorkerExtension):
    def acs_break(self, group: str, where: str) -> None:
        """`where`: "begin", "plan", "write", or "skip": a row is silently not written."""
        _broken[group] = where

    def acs_swap_blocks(self) -> None:
        """The probe of the self-test takes two blocks for each other."""
        blocks = self.acs_tap.blocks
        blocks[1], blocks[2] = blocks[2], blocks[1]

    def acs_rows_written_twice(self) -> int:
        return _twice[0]

    def acs_counts(self) -> list[int]:
        """Requests that the tap knows, and vectors that it holds."""
        return [len(self.acs_tap.requests), len(self.acs_tap.vectors)]


_begin, _additions_of, _write = TappedRequest.begin.__func__, step._additions_of, Step._write


def _breakable_begin(cls: Any, request_id: str, given: dict[str, Any], *rest: Any) -> Any:
    _fail_at("begin", given["group"])
    return _begin(cls, request_id, given, *rest)


def _breakable_write(self: Step, row: Rows, records: Any) -> None:
    request = row.request
    _fail_at("write", request.group)
    if _broken.get(request.group) == "skip" and row.position > 0:
        del _broken[request.group]
        return
    _twice[0] += max(0, _written.get(request.id, 0) - row.position)
    _written[request.id] = row.position + row.stop - row.start
    _write(self, row, records)


def _breakable_additions(row: Rows) -> Any:
    _fail_at("plan", row.request.group)
    return _additions_of(row)


# In the worker's process alone, which imports this module by the engine's name of its extension.
step._additions_of = _breakable_additions
TappedRequest.begin = classmethod(_breakable_begin)  # type: ignore[assignment]
Step._write = _breakable_write  # type: ignore[method-assign]
