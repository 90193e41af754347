"""Messages about jobs, and about the usage that providers report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Never

from ....state.defaults import JOB_PRIORITY, MAX_DEADLINE, MAX_PRIORITY
from ....tasks.jobs.defaults import ROW_TOKENS
from ....tasks.jobs.errors import JobError
from ... import defaults
from .encoding import Ask, FileName, IfKnown, Items, Json, TextBound, Whole
from .generation import AskForText

Id = Annotated[str, TextBound(64)]


@dataclass(frozen=True, slots=True)
class BrokenLineView:
    """A row of a job's file that is malformed, by the number of its line."""

    line: int
    message: str


@dataclass(frozen=True, slots=True)
class LackView:
    """Why no other node has a job, with the code `not-replicated`, and what to do."""

    code: str
    message: str
    hint: str

    @classmethod
    def of(cls, trouble: JobError | None) -> "LackView | None":
        """Describe why no other node has a job, or return None if there is no trouble."""
        return None if trouble is None else cls(trouble.code, trouble.message, trouble.hint or "")


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The ids of the submitted jobs, in the order of the prompts, and the model that they use.

    `rows` and `pieces` are those of all jobs together. `broken` names the first malformed rows, of
    `broken_rows` in all. `replicated` says whether another node has confirmed that it stores the
    jobs and their rows, and `lack` why none has.
    """

    jobs: tuple[str, ...]
    model: str
    root: str
    rows: int = 0
    pieces: int = 0
    broken: tuple[BrokenLineView, ...] = ()
    broken_rows: int = 0
    replicated: bool = False
    lack: LackView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJobs(AskForText[SubmittedJobs, Never]):
    """Request to submit one job for each prompt, or one job with all rows of a file (JSONL). Either
    all jobs are submitted or none.

    `deadline` is in seconds since 1970. A job of the same user with a higher `priority` comes
    first. `seal` is `outputs`: only this node can read the outputs; or `all`: and only the members
    of its private group can read the rows.
    """

    op = "job_submit"
    kind: Annotated[str, TextBound(32)] = "generate"
    prompts: (
        Annotated[
            tuple[Annotated[str, TextBound(defaults.CONTROL_REQUEST_LIMIT)], ...],
            Items(1, defaults.JOBS_AT_ONCE),
        ]
        | None
    ) = None
    file: Annotated[str, FileName()] | None = None
    max_tokens: Annotated[int, Whole(1, ROW_TOKENS)] | None = None
    priority: Annotated[int, Whole(0, MAX_PRIORITY)] = JOB_PRIORITY
    deadline: Annotated[int, Whole(0, MAX_DEADLINE)] = 0
    seal: Literal["all", "outputs"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job, without its prompt and result.

    `error` is the error code if the job failed. `abstract` is the beginning of the prompt.
    `claimant` is the node whose claim counts, `attempt` the number of that claim, and `step` its
    progress. `came` is the time at which the result arrived and `made` the time of submission; both
    are in seconds since 1970, and None if unknown. `read` says whether the result was read.
    `tokens` and `reason` are None unless the result is stored on this node. `rows_done` and
    `rows_failed` count the rows whose output is on this node, and `rows_checked` those that other
    nodes have recomputed with the same output. `deadline` is in seconds since 1970,
    or None. `place` is the place of the job's next piece among the pieces of all users that wait,
    from 1 on, or None if this node did not submit it or no piece waits. `replicated` says of an
    unfinished job of this node whether other nodes have confirmed that they store it.
    """

    job: str
    author: str
    kind: str
    state: str
    error: str | None
    message: str | None
    model: str | None
    abstract: str
    claimant: str | None
    attempt: int
    step: int
    came: float | None
    read: bool
    made: float | None
    rows: int = 1
    rows_done: int = 0
    rows_failed: int = 0
    rows_checked: int = 0
    pieces: int = 1
    priority: int = JOB_PRIORITY
    deadline: float | None = None
    place: IfKnown[int] = None
    replicated: IfKnown[bool] = None
    tokens: IfKnown[int] = None
    reason: IfKnown[str] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """One page of the list of jobs.

    `more` is the number of jobs after this page, and `totals` counts the jobs in each state. `own`
    is this node's peer id. `at` is the id of the job that this node is working on, or None.
    `does_jobs` says whether this node works on jobs of other nodes, and `stores` whether it stores
    those jobs. `share` is the part of the nodes' time that this node's jobs get beside those of
    `users` other users with jobs now.
    """

    jobs: tuple[JobView, ...]
    more: int
    totals: Mapping[str, int]
    own: str
    at: str | None = None
    does_jobs: bool
    stores: bool = True
    share: float = 1.0
    users: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJobs(Ask[JobsPage, Never]):
    """Request for a page of the list of jobs, in which this node's own jobs come first.

    `mine` restricts the list to own jobs, and `state` to jobs in that state. The page has at most
    `limit` jobs and begins after the first `offset` ones.
    """

    op = "job_list"
    mine: bool = False
    state: Annotated[str, TextBound(16)] | None = None
    limit: Annotated[int, Whole(1, defaults.JOBS_SHOWN)] = defaults.JOBS_SHOWN
    offset: Annotated[int, Whole(0, 2**53)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecView:
    """The request of a job. `prompt` is the text of its first row, or the beginning of it. `sealed`
    is `all`, `outputs`, or "" if nothing is sealed. Sealed fields are empty, except on the node
    that submitted the job."""

    root: str
    model: str
    abstract: str
    prompt: str
    raw: bool
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: tuple[str, ...]
    blob: str | None
    sealed: str = ""
    min_p: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """One node's claim on a job.

    `piece` is the number of the piece of the job. `done` says whether the claim has a result, and
    `step` how far it is. `refused` says whether the author of the job has rejected this claimant.
    """

    claimant: str
    attempt: int
    done: bool
    step: int
    refused: bool
    piece: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob(JobView):
    """A job with its specification and claims. `spec` is None if the job is no longer listed, or if
    its specification is invalid or of an unknown kind. `lack` says why no other node has it."""

    spec: SpecView | None
    claims: tuple[ClaimView, ...]
    lack: LackView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowJob(Ask[ShownJob, Never]):
    """Request to describe one job, which is named by its id or the beginning of its id."""

    op = "job_show"
    job: Id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(JobView):
    """A finished job with the generated text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobResult(Ask[JobResult, Never]):
    """Request for the result of one of this node's own jobs. With `until_done`, the reply waits
    until there is a result."""

    op = "job_result"
    job: Id
    until_done: bool = False


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """The file to which the output of a job was written, with its number of bytes and rows, and
    what the kind of the job sums up (docs/spec/jobs.md)."""

    path: str
    size: int
    rows: int
    rows_failed: int
    figures: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowsDone:
    """Event that says how many rows of a job are done, and how many of these failed."""

    done: int
    rows: int
    failed: int
    event: Literal["rows"] = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJobOutput(Ask[WrittenJob, RowsDone]):
    """Request to write the output of one of this node's own jobs to a file, one line of JSON for
    each row, in the order of the rows. With `until_done`, it waits until all rows are done.

    `path` is absolute. Without it, the request only waits.
    """

    op = "job_output"
    job: Id
    path: Annotated[str, FileName()] | None = None
    until_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(JobView):
    """The result of one of several jobs, with its prompt. `node` is the node that made the
    result."""

    prompt: str | None
    text: str
    node: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LackingRecord:
    """A record in place of a missing result. `error` is `not-done` or `unknown-job`, and `message`
    explains it."""

    job: str
    prompt: str | None
    text: str
    node: str | None
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class ExpectedJobs:
    """Event that lists the jobs whose results follow, in the order of the request. If the request
    names no jobs, they are in the order of submission."""

    jobs: tuple[str, ...]
    event: Literal["jobs"] = "jobs"


@dataclass(frozen=True, slots=True)
class ArrivedResult:
    """Event that carries the result of one job."""

    result: JobRecord | LackingRecord
    event: Literal["result"] = "result"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Event that says how many jobs have a result, and how many of these failed."""

    done: int
    failed: int
    event: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class CountedResults:
    """The number of jobs whose results were sent, and how many of these jobs failed or lack a
    result."""

    jobs: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobResults(Ask[CountedResults, ExpectedJobs | ArrivedResult | JobProgress]):
    """Request for the results of several of this node's own jobs.

    `jobs` has their full ids; None means all own jobs. With `until_done`, the reply waits for each
    result.
    """

    op = "job_results"
    jobs: tuple[Annotated[str, TextBound(64, least=64)], ...] | None = None
    until_done: bool = False


@dataclass(frozen=True, slots=True)
class CancelledJob:
    """Full id of the job that was cancelled."""

    job: str


@dataclass(frozen=True, slots=True)
class CancelledJobs:
    """The ids of the jobs that were cancelled, and the number of stored results, which are not
    deleted."""

    jobs: tuple[str, ...]
    results: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJobs(Ask[CancelledJob | CancelledJobs, Never]):
    """Request to cancel one of this node's own jobs. With `all`, it cancels every own job that has
    no result."""

    op = "job_cancel"
    job: IfKnown[Id] = None
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """How much one client used of one provider, as the provider reports it.

    `busy_s` is the computing time in seconds. `client` and `root` are None in a row that sums up
    many clients.
    """

    client: str | None
    provider: str
    root: str | None
    model: str | None
    requests: int
    tokens_in: int
    tokens_out: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class CheckedView:
    """What of a provider's work counts on this node: `seconds` of work on jobs that this node has
    had recomputed, or that a member vouches for whose work it has. `lied` says whether this node
    has found a lie lately; then nothing counts."""

    provider: str
    seconds: float
    lied: bool


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Rows of usage, those with the most tokens first.

    `more` is the number of rows left out. `own` is this node's peer id. `stores` says whether this
    node stores the reports of other nodes. `checked` has a row for each provider in `usage`.
    """

    usage: tuple[UsageRow, ...]
    more: int
    own: str
    stores: bool = True
    checked: tuple[CheckedView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetUsage(Ask[UsagePage, Never]):
    """Request for the usage that providers report."""

    op = "usage"
