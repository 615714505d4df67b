"""Requests that give way, and when their choices may go into the engine: one engine's, so the rule is exact.

With nobody else in the engine, as many go in as keep it busy. Beside others a few prompts go in now and then, so that
none starves: `BESIDE_TOKENS` at a time (or one prompt, which is not cut), and then none for nine times as long as those
took. So others wait for a step at most, and lose a tenth of the engine to them. Whoever has just left counts for a
moment longer: most clients ask again at once, and would meet a whole step each time.

Where what a step computes depends a little on what else is in it, a request can be repeated to the bit only if its
steps are: with `step`, prompts of one request go in together, those that fill a step, or the last step of a longer one,
the same each time, and nothing joins them. The next go in once a step that has all of them has begun: the engine comes
upon them when it ends, and does not wait for us. After a prompt of several steps they wait until it has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from acs.platform.inference.contract import Delta, Failed, Generate, Piece, Sink

BESIDE_TOKENS = 128
REST = 9  # times as long as what went in beside others took
LOOK_S = 0.001  # whether a step has begun
LINGER_S = 0.5  # for which somebody who has left counts as still there


@dataclass(frozen=True, slots=True)
class Step:
    """The most that the engine computes at once."""

    tokens: int
    choices: int


@dataclass(slots=True)
class _Request:
    """One that has not ended, of either kind."""

    request: Generate
    unfinished: int
    groups: deque[list[int]]  # choices that have not gone in, those that go in together
    group: int = 0  # the number of the group of it that was the latest to go in
    inside: dict[int, int] = field(default_factory=dict)  # choices in the engine → tokens of their prompts

    def tokens(self, index: int) -> int:
        return len(self.request.prompts[index // self.request.n])


@dataclass(frozen=True, slots=True)
class _Waiting:
    one: _Request
    turn: asyncio.Future[list[int]]


class Lane:
    def __init__(
        self,
        idle_tokens: int,
        step: Step | None = None,
        beside_tokens: int = BESIDE_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`idle_tokens`: prompts' tokens in the engine that keep it busy; with `step` a step's are."""
        self._idle_tokens = idle_tokens
        self._step = step
        self._beside_tokens = beside_tokens
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._others = 0  # requests that do not give way
        self._waiting: deque[_Waiting] = deque()
        self._inside = 0  # tokens
        self._groups = 0  # that have gone in
        self._begun = 0  # the latest of those that has begun with what is its last step
        self._batch = 0  # tokens that have gone in since nothing was inside, or since somebody else came
        self._batch_began = 0.0
        self._rest_until = 0.0
        self._linger_until = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def watched(self, request: Generate, sink: Sink) -> Sink:
        """The request has come; what it is to be answered through."""
        count = len(request.prompts) * request.n
        one = self._requests[request.request_id] = _Request(request, count, deque())
        if request.gives_way:
            one.groups.extend(_groups([one.tokens(index) for index in range(count)], self._step))
        else:
            if not self._beside_others:
                self._batch, self._batch_began = self._inside, self._clock()
            self._others += 1

        def watching(piece: Piece) -> None:
            sink(piece)
            if isinstance(piece, Failed):
                self._ended(one, list(one.inside), one.unfinished)
            elif isinstance(piece, Delta) and piece.finish_reason is not None:
                self._ended(one, [piece.index], 1)

        return watching

    async def enter(self, request: Generate) -> list[int]:
        """Of one that gives way: which of its choices go in next, together, once they may. None: the request has been
        dropped, or has ended, meanwhile.
        """
        one = self._requests.get(request.request_id)
        if one is None:
            return []
        waiting = _Waiting(one, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._let_in()
        return await waiting.turn

    def taken(self, request: Generate, together: list[int], have_begun: Callable[[], bool]) -> None:
        """The engine has all of those, which were the latest of the request to go in. `have_begun`: whether a step with
        them has.
        """
        one = self._requests.get(request.request_id)
        if self._step is not None and one is not None and sum(map(one.tokens, together)) <= self._step.tokens:
            self._look(one, one.group, have_begun)

    def _look(self, one: _Request, group: int, have_begun: Callable[[], bool]) -> None:
        if one.unfinished and not have_begun():
            asyncio.get_running_loop().call_later(LOOK_S, self._look, one, group, have_begun)
        else:
            self._begun = max(self._begun, group)
            self._let_in()

    def drop(self, request_id: str) -> None:
        """What waits of an aborted request goes in no more."""
        dropped = [waiting for waiting in self._waiting if waiting.one.request.request_id == request_id]
        for waiting in dropped:
            self._waiting.remove(waiting)
            waiting.turn.set_result([])
        if dropped:
            self._let_in()

    @property
    def in_steps(self) -> bool:
        """Whether what goes in together must begin together."""
        return self._step is not None

    @property
    def _beside_others(self) -> bool:
        return self._others > 0 or self._clock() < self._linger_until

    def _ended(self, one: _Request, indices: list[int], count: int) -> None:
        one.unfinished -= count
        for index in indices:
            self._out(one.inside.pop(index, 0))
        if not one.unfinished and self._requests.pop(one.request.request_id, None) is not None:
            self.drop(one.request.request_id)
            if not one.request.gives_way:
                self._others -= 1
                self._linger_until = self._clock() + LINGER_S
        self._let_in()

    def _out(self, tokens: int) -> None:
        self._inside -= tokens
        if tokens and not self._inside:
            now = self._clock()
            self._rest_until = now + REST * (now - self._batch_began)
            self._batch = 0

    def _let_in(self) -> None:
        while self._waiting:
            one = self._waiting[0].one
            together = one.groups[0][: 1 if self._beside_others else None]
            tokens = sum(map(one.tokens, together))
            if not self._may_enter(tokens):
                break
            if not self._inside:
                self._batch_began = self._clock()
            self._inside += tokens
            self._groups = one.group = self._groups + 1
            self._batch += tokens
            one.inside.update((index, one.tokens(index)) for index in together)
            del one.groups[0][: len(together)]
            if not one.groups[0]:
                one.groups.popleft()
            self._waiting.popleft().turn.set_result(together)
        if self._waiting and self._beside_others and not self._inside:
            due = self._rest_until if self._others else min(self._rest_until, self._linger_until)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._rested)

    def _rested(self) -> None:
        self._timer = None
        self._let_in()

    def _may_enter(self, tokens: int) -> bool:
        if not self._beside_others:
            if self._step is None:
                return not self._inside or self._inside + tokens <= self._idle_tokens
            return not self._inside or self._begun == self._groups
        if self._clock() < self._rest_until and not self._inside:
            return False
        return not self._batch or self._batch + tokens <= self._beside_tokens


def _groups(tokens: list[int], step: Step | None) -> list[list[int]]:
    """Each choice by itself; or the longest first, each with the first whose last step it has room in."""
    if step is None:
        return [[index] for index in range(len(tokens))]
    groups: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(tokens)), key=lambda index: (-tokens[index], index)):
        for number, group in enumerate(groups):
            if tokens[index] <= room[number] and len(group) < step.choices:
                group.append(index)
                room[number] -= tokens[index]
                break
        else:
            groups.append([index])
            room.append(-tokens[index] % step.tokens)
    return groups
