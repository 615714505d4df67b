"""What is said to the ledger about Jobs, in the same frames as about Holds. To the runner a Branch is a Job.

An ingress asks; each question has a number of the asker's, and is asked again with it until it is answered. The one
runner is told what to run and what to stop, and says how each run ended. Ids are those people see.
"""

from __future__ import annotations

import msgspec

from acs.platform.ledger.contract import IdempotencyKey, Kept, Open, Refusal


class Submit(msgspec.Struct, array_like=True, tag="submit_job", frozen=True):
    """May this Job be taken? Judged like a request that is opened, and its Hold placed. Answered by JobTold, by
    SubmitRefused or, when it is a repetition, by Repeated.
    """

    ask: int
    job_id: str
    order: Open  # its kind is job, and it is not clamped
    request_sha256: str  # the blob that holds the request
    created_at: int  # Unix seconds
    answer: Kept | None = None  # what a repetition under the order's key is given


class LookAt(msgspec.Struct, array_like=True, tag="look_at_job", frozen=True):
    """Answered by JobTold."""

    ask: int
    account_id: str
    job_id: str


class Cancel(msgspec.Struct, array_like=True, tag="cancel_job", frozen=True):
    """Answered by JobTold, once the Job has ended: as cancelled or, when that came first, otherwise."""

    ask: int
    account_id: str
    job_id: str
    key: IdempotencyKey | None = None


class Browse(msgspec.Struct, array_like=True, tag="list_jobs", frozen=True):
    """Answered by JobsTold, newest first."""

    ask: int
    account_id: str
    limit: int
    after: str | None  # a Job's id: those made before it
    status: str | None


class Offer(msgspec.Struct, array_like=True, tag="offer", frozen=True):
    """The runner can run Jobs of these models now. Not answered."""

    models: list[str]


class Grown(msgspec.Struct, array_like=True, frozen=True):
    """What one choice of a Branch became: a Node's content, in a blob."""

    node_id: str
    sha256: str
    size: int  # bytes
    tokens: int
    finish_reason: str
    logprob: float | None  # of all its tokens together; None: not asked for


class Finish(msgspec.Struct, array_like=True, tag="finish", frozen=True):
    """How a run ended. Answered by Noted, once it is on disk; a run that no longer counts is answered all the same."""

    ask: int
    job_id: str
    run: int
    prompt_tokens: int  # what is charged
    completion_tokens: int
    http_status: int | None  # of the Completion; None: it was stopped, as asked
    code: str | None = None  # the error's
    retryable: bool = False
    result_sha256: str = ""  # the blob that holds the result
    result_bytes: int = 0
    grown: list[Grown] = []  # of a Branch, in the place of a result

    @property
    def addresses(self) -> list[str]:
        """Of the blobs that it brings."""
        return [sha256 for sha256 in (self.result_sha256, *(grown.sha256 for grown in self.grown)) if sha256]


JobCommand = Submit | LookAt | Cancel | Browse | Offer | Finish


class JobView(msgspec.Struct, array_like=True, frozen=True):
    """A Job as its account may see it; times are Unix seconds."""

    id: str
    status: str
    model: str
    created_at: int
    started_at: int | None
    finished_at: int | None
    http_status: int | None
    expires_at: int | None
    result_sha256: str | None
    result_bytes: int


class JobTold(msgspec.Struct, array_like=True, tag="job", frozen=True):
    ask: int
    job: JobView | None  # None: the account has no such Job
    was_ended: bool = False  # of a Cancel: before it came
    repeated: bool = False  # by an earlier one under the same Idempotency-Key


class JobsTold(msgspec.Struct, array_like=True, tag="jobs", frozen=True):
    ask: int
    jobs: list[JobView]
    has_more: bool


class SubmitRefused(msgspec.Struct, array_like=True, tag="job_refused", frozen=True):
    ask: int
    refusal: Refusal


class Repeated(msgspec.Struct, array_like=True, tag="job_repeated", frozen=True):
    """The same request was answered before."""

    ask: int
    kept: Kept


class Noted(msgspec.Struct, array_like=True, tag="noted", frozen=True):
    ask: int


JobReply = JobTold | JobsTold | SubmitRefused | Repeated | Noted


class RunJob(msgspec.Struct, array_like=True, tag="run_job", frozen=True):
    """To the runner. May come again; it is one run."""

    job_id: str
    run: int
    account_id: str
    key_id: str
    request_id: str
    request_sha256: str
    prompt_tokens: int  # as they were held
    max_tokens: int  # of one choice
    node_ids: list[str] = []  # of a Branch: what its choices become


class StopJob(msgspec.Struct, array_like=True, tag="stop_job", frozen=True):
    """To the runner: end the run in the engine, and say with Finish how it ended."""

    job_id: str
    run: int


Work = RunJob | StopJob
