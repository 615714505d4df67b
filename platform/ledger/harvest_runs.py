"""How Harvests run and end: which of the pending ones is next, the one runner, runs that are stopped or lost.

A Harvest takes no slot of its model: its requests give way inside the replica. Its Hold is resolved in the commit that
ends it. The runner is told what to run when the start is on disk, and told again when its link or this ledger comes
back. A run is known by its number: what is said of one that no longer counts changes nothing. A new runner goes on
where the one before it stopped: what shards there are stands in the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from acs.events.harvest import HarvestRecord, HarvestStatus
from acs.platform.clock import Clock
from acs.platform.ledger.commits import Commits
from acs.platform.ledger.contract import Release, Settle
from acs.platform.ledger.desk import Desk
from acs.platform.ledger.erasing import Erase, erasing
from acs.platform.ledger.harvest_contract import EndHarvest, HarvestWork, NoteShard, RunHarvest, StopHarvest
from acs.platform.ledger.job_runs import ACCOUNT_SUSPENDED, ASKED, Ended
from acs.platform.ledger.memory import Memory
from acs.platform.ledger.runner_link import RunnerLink
from acs.platform.limits import Limits
from acs.storage.event_store import Event

RUNNER_LOST = "runner_lost"


class HarvestRuns:
    def __init__(
        self,
        desk: Desk,
        memory: Memory,
        commits: Commits,
        limits: Limits,
        clock: Clock,
        now: Callable[[], datetime],
        erase: Erase,
    ) -> None:
        """`erase`: plans that nobody needs any more."""
        self._desk = desk
        self._harvests, self._table = memory.harvests, memory.table
        self._commits = commits
        self._limits = limits
        self._now = now
        self._erase = erase
        self._link: RunnerLink[HarvestWork] = RunnerLink(clock, limits.owner_lease_s)
        self._offered: frozenset[str] = frozenset()  # the models that can be had now
        self._stopping: dict[str, list[Ended]] = {}  # running ones that are to be cancelled

    def start_some(self) -> None:
        """As many pending ones as may run now. To be called whenever one has come or ended."""
        while self._link.runner is not None and (harvest_id := self._next()) is not None:
            record = self._harvests[harvest_id]
            if self._table.account_is_suspended(record.terms.account_id):
                self._cancelled(harvest_id, ACCOUNT_SUSPENDED, 0)
            else:
                self._tell_to_run(harvest_id, self._harvests.start(harvest_id, self._link.runner, self._now()))

    def cancel(self, harvest_id: str, ended: Ended) -> None:
        """One that has not ended. A running one is stopped first; it may end otherwise before it is."""
        record = self._harvests[harvest_id]
        if record.status is HarvestStatus.RUNNING:
            self._stopping.setdefault(harvest_id, []).append(ended)
            self._commits.add((), self._telling(harvest_id, StopHarvest(harvest_id, record.runs)))
        else:
            self._cancelled(harvest_id, ASKED, 0)
            ended(True)

    # Called for the runner

    def came(self, name: str, tell: Callable[[HarvestWork], None]) -> None:
        self._link.came(name, tell)
        self._give_one_up(name)
        for harvest_id, record in self._harvests.running():
            if record.runner == name:
                self._tell_to_run(harvest_id, ())
            elif harvest_id in self._stopping:
                self._cancelled(harvest_id, ASKED, record.tokens_done)
            else:
                self._tell_to_run(harvest_id, self._harvests.start(harvest_id, name, self._now()))
        self.start_some()

    def left(self, name: str) -> None:
        if self._link.left(name):
            self._offered = frozenset()

    def offers(self, name: str, models: Iterable[str]) -> None:
        if name == self._link.runner:
            self._offered = frozenset(models)
            self.start_some()

    def note_shard(self, name: str, told: NoteShard) -> bool:
        """Whether the run counts still."""
        if not self._counts(name, told):
            return False
        self._commits.add(self._harvests.note_shard(told.harvest_id, told.number, told.shard, self._now()))
        return True

    def end(self, name: str, told: EndHarvest) -> bool:
        """Whether the run counted still; also when it is told again."""
        record = self._harvests.get(told.harvest_id)
        if record is None or (record.runs, record.runner) != (told.run, name):
            return False
        if not self._counts(name, told):  # told again
            return True
        if told.manifest_sha256 is not None:
            self._done(told.harvest_id, told.manifest_sha256)
        elif told.word is None or told.harvest_id in self._stopping:
            self._cancelled(told.harvest_id, ASKED, told.tokens_read)
        else:
            self._failed(told.harvest_id, told.word, told.tokens_read)
        self.start_some()
        return True

    def look_after(self) -> None:
        """To be called every second or so: those that are to be cancelled, and whose runner stays away."""
        if self._link.stays_away:
            for harvest_id in list(self._stopping):
                self._cancelled(harvest_id, ASKED, self._harvests[harvest_id].tokens_done)

    # Inside

    def _give_one_up(self, name: str) -> None:
        """Of those whose runs were lost too often, `name` being another runner, and got no further. Which of them it
        was that took the runner with it, nobody knows: the others have another run without it.
        """
        lost = [(id, record) for id, record in self._harvests.running() if record.runner != name]
        fruitless, _, harvest_id = max(
            ((record.fruitless, turn, id) for turn, (id, record) in enumerate(lost) if id not in self._stopping),
            default=(0, 0, ""),
        )
        if fruitless >= self._limits.harvest_runs:
            self._failed(harvest_id, RUNNER_LOST, self._harvests[harvest_id].tokens_done)

    def _next(self) -> str | None:
        """The oldest pending one of the account that has the fewest running."""
        unfinished = self._harvests.unfinished()
        running = Counter(record.terms.account_id for _, record in unfinished if record.status is HarvestStatus.RUNNING)
        if running.total() >= self._limits.harvests_at_once:
            return None
        pending = (
            (running[record.terms.account_id], turn, harvest_id)
            for turn, (harvest_id, record) in enumerate(unfinished)
            if record.status is HarvestStatus.PENDING and record.terms.model in self._offered
        )
        return min(pending, default=(0, 0, None))[2]

    def _counts(self, name: str, told: NoteShard | EndHarvest) -> bool:
        record = self._harvests.get(told.harvest_id)
        return (
            record is not None
            and record.status is HarvestStatus.RUNNING
            and (record.runs, record.runner) == (told.run, name)
        )

    def _tell_to_run(self, harvest_id: str, events: Sequence[Event]) -> None:
        """Once these are on disk."""
        record = self._harvests[harvest_id]
        work = RunHarvest(harvest_id, record.runs, record.terms, dict(record.shards))
        self._commits.add(events, self._telling(harvest_id, work))
        if harvest_id in self._stopping:
            self._commits.add((), self._telling(harvest_id, StopHarvest(harvest_id, record.runs)))

    def _telling(self, harvest_id: str, work: HarvestWork) -> Callable[[], None]:
        return self._link.telling(self._harvests[harvest_id], work)

    def _done(self, harvest_id: str, manifest_sha256: str) -> None:
        terms = self._harvests[harvest_id].terms
        ended = self._harvests.finish(harvest_id, manifest_sha256, self._now())
        self._end(harvest_id, ended, Settle(terms.hold_id, terms.account_id, terms.n_tokens, 0, 200))

    def _failed(self, harvest_id: str, word: str, tokens_read: int) -> None:
        ended = self._harvests.fail(harvest_id, word, self._now())
        self._end(harvest_id, ended, self._for_what_was_read(harvest_id, word, tokens_read))

    def _cancelled(self, harvest_id: str, reason: str, tokens_read: int) -> None:
        ended = self._harvests.cancel(harvest_id, reason, self._now())
        self._end(harvest_id, ended, self._for_what_was_read(harvest_id, "cancelled", tokens_read))

    def _for_what_was_read(self, harvest_id: str, reason: str, tokens_read: int) -> Settle | Release:
        terms = self._harvests[harvest_id].terms
        if not tokens_read:
            return Release(terms.hold_id, terms.account_id, reason, None)
        return Settle(terms.hold_id, terms.account_id, tokens_read, 0, None)

    def _end(self, harvest_id: str, ended: Sequence[Event], resolution: Settle | Release) -> None:
        """Each way to end leads here: the Harvest's end and its Hold's in one commit."""
        record: HarvestRecord = self._harvests[harvest_id]
        _, resolved = self._desk.resolved(resolution)
        self._commits.add([*ended, *resolved], erasing(self._erase, record.terms.plan_sha256))
        for tell in self._stopping.pop(harvest_id, ()):
            tell(record.status is HarvestStatus.CANCELLED)
