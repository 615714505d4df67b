"""The ledger as an ingress uses it: one link, on which commands go out together and answers come back by Hold id.

A command is sent again, on a new link, until it is answered: the ledger applies it once. Whoever opens a Hold waits for
a while only; a Hold that was granted is resolved however long the ledger is away, unless this process dies first.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec

from acs.platform import frames
from acs.platform.errors import ADMISSION_ERRORS, ApiError, PartUnavailable
from acs.platform.frames import FrameProtocol, Hello
from acs.platform.key_book import refusal_of
from acs.platform.ledger.asks import Asks
from acs.platform.ledger.contract import (
    INGRESS,
    Command,
    Granted,
    Open,
    Refusal,
    Release,
    Reply,
    Resolved,
    Settle,
    Standing,
    Stored,
    Waiting,
)
from acs.platform.ledger.harvest_contract import HarvestCommand, HarvestReply, HarvestWork
from acs.platform.ledger.job_contract import JobCommand, JobReply, Work
from acs.platform.ledger.loom_contract import LoomCommand, LoomReply

Endpoint = Callable[[], Awaitable[tuple[str, int, str]]]  # host, port, secret of the ledger that lives; raises

UNAVAILABLE = "The ledger does not answer at the moment. Try again."
RETRY_PAUSE_S = 0.2
PATIENCE_S = 3.0  # for the first answer to an Open; Ray has a killed ledger back in less

log = logging.getLogger("ray.serve")
_replies = msgspec.msgpack.Decoder(list[Reply | JobReply | HarvestReply | LoomReply | Work | HarvestWork])


class Link(Protocol):
    def send(self, item: Command | JobCommand | HarvestCommand | LoomCommand) -> None: ...


def _no_work(work: Work | HarvestWork) -> None:
    raise TypeError("an ingress was told to run a Job")


class LedgerClient:
    def __init__(
        self, endpoint: Endpoint, role: str = INGRESS, on_work: Callable[[Work | HarvestWork], None] = _no_work
    ) -> None:
        """`on_work`: what the runner is told to do."""
        self.owner = f"{role}{uuid.uuid4().hex}"  # one a process: a restarted ingress is another owner
        self.asks = Asks()
        self._endpoint = endpoint
        self._on_work = on_work
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._unanswered: dict[str, Command] = {}  # by Hold id, in the order they were given
        self._placed: dict[str, Open] = {}  # granted at once: a ledger that dies may not remember them
        self._asking: dict[str, asyncio.Future[Reply]] = {}
        self._patience: dict[str, asyncio.TimerHandle] = {}

    async def follow(self) -> None:
        """Keeps the link, for ever. Owned by the ingress."""
        answered = True
        while True:
            try:
                host, port, secret = await self._endpoint()
                hello = Hello(secret, self.owner)
                self._lost.clear()
                link = await frames.connect(host, port, hello, _replies, self._on_replies, self._on_lost)
                self.attach(link)
                answered = True
                try:
                    await self._lost.wait()
                finally:
                    link.close()
            except Exception as error:  # whatever it is, the remedy is the same
                if answered:  # said once, not at every try
                    log.warning("The ledger cannot be reached: %s: %s", type(error).__name__, error)
                answered = False
            await asyncio.sleep(RETRY_PAUSE_S)

    def attach(self, link: Link) -> None:
        """From now on commands go there, those without an answer first."""
        self._link = link
        for order in self._placed.values():
            link.send(order)
        for command in self._unanswered.values():
            link.send(command)
        self.asks.attach(link)

    def open(self, order: Open) -> asyncio.Future[Reply]:
        """Done with Granted or Stored; or its exception is an AdmissionError, a 401 error, one of 409, PartUnavailable.
        Whoever no longer waits for it calls `withdraw`.
        """
        opening = self._send(order)
        self._be_patient(order.hold_id)
        opening.add_done_callback(lambda _: self._end_patience(order.hold_id))
        return opening

    def resolve(self, command: Settle | Release) -> asyncio.Future[Reply]:
        """Done with Resolved, once it is on disk."""
        return self._send(command)

    def withdraw(self, order: Open, reason: str) -> None:
        """Nobody waits for the request any more: whatever became of it, nothing of it stays."""
        self._asking.pop(order.hold_id, None)
        self.resolve(Release(order.hold_id, order.account_id, reason, None))

    def _send(self, command: Command) -> asyncio.Future[Reply]:
        asking: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asking[command.hold_id] = asking
        self._unanswered[command.hold_id] = command
        if self._link is not None:
            self._link.send(command)
        return asking

    def take(self, replies: Iterable[Reply | JobReply | HarvestReply | LoomReply | Work | HarvestWork]) -> None:
        for reply in replies:
            if isinstance(reply, Work | HarvestWork):
                self._on_work(reply)
                continue
            if isinstance(reply, JobReply | HarvestReply | LoomReply):
                self.asks.take(reply)
                continue
            command = self._unanswered.get(reply.hold_id)
            if isinstance(reply, Waiting):
                self._end_patience(reply.hold_id)
            elif isinstance(command, Open):
                self._opened(command, reply)
            elif command is not None and isinstance(reply, Resolved):  # not the answer to an Open that was withdrawn
                del self._unanswered[reply.hold_id]
                self._placed.pop(reply.hold_id, None)
                _done(self._asking.pop(reply.hold_id), reply)

    def _opened(self, order: Open, reply: Granted | Stored | Refusal | Resolved) -> None:
        del self._unanswered[order.hold_id]
        asking = self._asking.pop(order.hold_id)
        if isinstance(reply, (Granted, Stored)):
            if order.at_once and isinstance(reply, Granted):
                self._placed[order.hold_id] = order
            _done(asking, reply)
        elif isinstance(reply, Refusal):
            _fail(asking, error_of(reply))
        else:  # it was granted, and has expired while the answer could not reach us
            _fail(asking, PartUnavailable(UNAVAILABLE))

    def _on_replies(
        self, link: FrameProtocol, replies: list[Reply | JobReply | HarvestReply | LoomReply | Work | HarvestWork]
    ) -> None:
        self.take(replies)

    def _on_lost(self, link: FrameProtocol) -> None:
        self._link = None
        self.asks.detach()
        self._lost.set()
        for hold_id, command in self._unanswered.items():
            if isinstance(command, Open) and hold_id not in self._patience:  # it was told to wait, by a ledger now gone
                self._be_patient(hold_id)

    def _out_of_patience(self, hold_id: str) -> None:
        order = self._unanswered.get(hold_id)
        asking = self._asking.get(hold_id)
        if isinstance(order, Open) and asking is not None:
            self.withdraw(order, "no_answer")
            _fail(asking, PartUnavailable(UNAVAILABLE))

    def _be_patient(self, hold_id: str) -> None:
        self._end_patience(hold_id)
        self._patience[hold_id] = asyncio.get_running_loop().call_later(PATIENCE_S, self._out_of_patience, hold_id)

    def _end_patience(self, hold_id: str) -> None:
        timer = self._patience.pop(hold_id, None)
        if timer is not None:
            timer.cancel()


def _done(asking: asyncio.Future[Reply], reply: Reply) -> None:
    if not asking.done():
        asking.set_result(reply)


def _fail(asking: asyncio.Future[Reply], error: ApiError) -> None:
    if not asking.done():
        asking.set_exception(error)


def error_of(refusal: Refusal) -> ApiError:
    if refusal.code in ADMISSION_ERRORS:
        return ADMISSION_ERRORS[refusal.code](refusal.message, retry_after_s=refusal.retry_after_s)
    return refusal_of(Standing(refusal.code) if refusal.code in set(Standing) else None)
