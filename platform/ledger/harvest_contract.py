"""What is said to the ledger about Harvests, in the same frames as about Holds and Jobs.

An ingress asks; each question has a number of the asker's, and is asked again with it until it is answered. The runner
of Jobs runs Harvests too: it is told what to run and what to stop, and says what it has written and how each run ended.
Ids are those people see. A refused or repeated submission is answered as a Job's.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from acs.events.harvest import Terms, WrittenShard
from acs.platform.ledger.contract import Kept, Open


class SubmitHarvest(msgspec.Struct, array_like=True, tag="submit_harvest", frozen=True):
    """May this Harvest be taken? Judged like a request that is opened, and its Hold placed. Answered by HarvestTold, by
    SubmitRefused or, when it is a repetition, by Repeated.
    """

    ask: int
    harvest_id: str
    order: Open  # its kind is harvest, and it is not clamped
    terms: Terms
    answer: Kept | None = None  # what a repetition under the order's key is given


class LookAtHarvest(msgspec.Struct, array_like=True, tag="look_at_harvest", frozen=True):
    """Answered by HarvestTold."""

    ask: int
    account_id: str
    harvest_id: str


class WaitForHarvest(msgspec.Struct, array_like=True, tag="wait_for_harvest", frozen=True):
    """Answered by HarvestTold when the status is another than `seen`, or after `wait_s`; at once, as declined, when too
    many wait.
    """

    ask: int
    account_id: str
    key_id: str
    harvest_id: str
    seen: str
    wait_s: float


class EndWait(msgspec.Struct, array_like=True, tag="end_wait", frozen=True):
    """Whoever waited has gone. Not answered."""

    ask: int


class CancelHarvest(msgspec.Struct, array_like=True, tag="cancel_harvest", frozen=True):
    """Answered by HarvestTold, once it has ended: as cancelled or, when that came first, otherwise."""

    ask: int
    account_id: str
    harvest_id: str


class BrowseHarvests(msgspec.Struct, array_like=True, tag="list_harvests", frozen=True):
    """Answered by HarvestsTold, newest first."""

    ask: int
    account_id: str
    limit: int
    after: str | None  # a Harvest's id: those made before it
    status: str | None


class AskPace(msgspec.Struct, array_like=True, tag="ask_pace", frozen=True):
    """Answered by PaceTold."""

    ask: int
    model: str


class LookAtFile(msgspec.Struct, array_like=True, tag="look_at_file", frozen=True):
    """A file that a signed link names, whoever follows it. Answered by FileTold."""

    ask: int
    harvest_id: str
    file: str


class NoteShard(msgspec.Struct, array_like=True, tag="note_shard", frozen=True):
    """The file is whole and on disk. Answered by HarvestNoted, once that is stored."""

    ask: int
    harvest_id: str
    run: int
    number: int
    shard: WrittenShard


class EndHarvest(msgspec.Struct, array_like=True, tag="end_harvest", frozen=True):
    """How a run ended: done, with its manifest; failed, with a word; or, without either, stopped as asked. Answered by
    HarvestNoted; a run that no longer counts is answered all the same.
    """

    ask: int
    harvest_id: str
    run: int
    tokens_read: int  # what is charged: with what earlier runs had noted
    manifest_sha256: str | None = None
    word: str | None = None


class AskKept(msgspec.Struct, array_like=True, tag="ask_kept", frozen=True):
    """Whose files are wanted still? Answered by KeptTold."""

    ask: int


HarvestQuestion = (
    SubmitHarvest
    | LookAtHarvest
    | WaitForHarvest
    | CancelHarvest
    | BrowseHarvests
    | AskPace
    | LookAtFile
    | NoteShard
    | EndHarvest
    | AskKept
)
HarvestCommand = HarvestQuestion | EndWait


class HarvestView(msgspec.Struct, array_like=True, frozen=True):
    """A Harvest as its account may see it."""

    id: str
    status: str
    model: str
    n_prompts: int
    n_tokens: int
    n_shards: int
    layers: list[int]
    prompts_done: int
    tokens_done: int
    shards_done: int
    bytes_done: int
    started_at: datetime | None  # of its first run
    finished_at: datetime | None
    word: str | None  # why it failed or was cancelled
    forward_s: float
    write_s: float
    expires_at: datetime | None  # of a done one: until when its files are kept
    expired: bool
    files: list[str]  # of a done one, in their order


class HarvestTold(msgspec.Struct, array_like=True, tag="harvest", frozen=True):
    ask: int
    harvest: HarvestView | None  # None: the account has no such Harvest
    was_ended: bool = False  # of a CancelHarvest: before it came
    declined: bool = False  # of a WaitForHarvest: too many wait


class HarvestsTold(msgspec.Struct, array_like=True, tag="harvests", frozen=True):
    ask: int
    harvests: list[HarvestView]  # without their files
    has_more: bool


class PaceTold(msgspec.Struct, array_like=True, tag="pace", frozen=True):
    ask: int
    tokens_per_s: float | None  # of the model's last Harvests; None: there was none


class FileTold(msgspec.Struct, array_like=True, tag="file", frozen=True):
    """`sha256`: None when nobody may have the file: it is none of the Harvest's, it has expired, its account is
    suspended. That of the statistics is not known to the ledger: empty.
    """

    ask: int
    sha256: str | None


class HarvestNoted(msgspec.Struct, array_like=True, tag="harvest_noted", frozen=True):
    ask: int
    counts: bool  # False: another run has taken its place


class KeptTold(msgspec.Struct, array_like=True, tag="kept", frozen=True):
    ask: int
    harvest_ids: list[str]


HarvestReply = HarvestTold | HarvestsTold | PaceTold | FileTold | HarvestNoted | KeptTold


class RunHarvest(msgspec.Struct, array_like=True, tag="run_harvest", frozen=True):
    """To the runner. May come again; it is one run."""

    harvest_id: str
    run: int
    terms: Terms
    shards: dict[int, WrittenShard]  # those that are noted


class StopHarvest(msgspec.Struct, array_like=True, tag="stop_harvest", frozen=True):
    """To the runner: end the run, and say with EndHarvest what it had read."""

    harvest_id: str
    run: int


HarvestWork = RunHarvest | StopHarvest
