"""Questions about Jobs, Harvests and Looms on a process's link to the ledger: each is asked again, on a new link, until
it is answered.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

from acs.platform.errors import PartUnavailable
from acs.platform.ledger.harvest_contract import EndWait, HarvestQuestion, HarvestReply
from acs.platform.ledger.job_contract import Browse, Cancel, Finish, JobReply, LookAt, Offer, Submit
from acs.platform.ledger.loom_contract import EndLoomWait, LoomQuestion, LoomReply

Question = Submit | LookAt | Cancel | Browse | Finish | HarvestQuestion | LoomQuestion
Answer = JobReply | HarvestReply | LoomReply


class Link(Protocol):
    def send(self, item: Question | Offer | EndWait | EndLoomWait) -> None: ...


class Asks:
    def __init__(self) -> None:
        self.links = 0  # there have been
        self._link: Link | None = None
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, Question] = {}  # in the order in which they were asked
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._offer: Offer | None = None

    def number(self) -> int:
        """Of the next question."""
        return next(self._numbers)

    async def ask(self, question: Question, patience_s: float | None) -> Answer:
        """Asked no more once nobody waits. Raises PartUnavailable without an answer in time; `patience_s` None: waits
        for ever.
        """
        self._waiting[question.ask] = asyncio.get_running_loop().create_future()
        self.insist(question)
        try:
            async with asyncio.timeout(patience_s):
                return await self._waiting[question.ask]
        except TimeoutError:
            raise PartUnavailable("The ledger does not answer at the moment. Try again.") from None
        finally:
            del self._waiting[question.ask]
            self._unanswered.pop(question.ask, None)

    def insist(self, question: Question) -> None:
        """Asked until it is answered, though nobody waits for it."""
        self._unanswered[question.ask] = question
        if self._link is not None:
            self._link.send(question)

    def say(self, item: EndWait | EndLoomWait) -> None:
        """Said once, if anybody listens; not answered."""
        if self._link is not None:
            self._link.send(item)

    def offer(self, models: list[str]) -> None:
        """What the runner can run from now on."""
        self._offer = Offer(models)
        if self._link is not None:
            self._link.send(self._offer)

    def attach(self, link: Link) -> None:
        """From now on questions go there, those without an answer first."""
        self.links += 1
        self._link = link
        for question in self._unanswered.values():
            link.send(question)
        if self._offer is not None:
            link.send(self._offer)

    def detach(self) -> None:
        self._link = None

    def take(self, reply: Answer) -> None:
        self._unanswered.pop(reply.ask, None)
        waiting = self._waiting.get(reply.ask)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
