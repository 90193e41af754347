"""Messages about jobs, and about the usage that nodes report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Never

from ....tasks.jobs.defaults import PROMPT_TOKENS
from ... import defaults
from .encoding import Ask, IfKnown, Items, Text, Whole
from .generation import AskForText

Id = Annotated[str, Text(64)]


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The ids of the jobs, one for each prompt, and the model that they are for."""

    jobs: tuple[str, ...]
    model: str
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJobs(AskForText[SubmittedJobs, Never]):
    """Submit a job for each prompt: all of them or none."""

    op = "job_submit"
    prompts: Annotated[
        tuple[Annotated[str, Text(defaults.CONTROL_REQUEST_LIMIT)], ...],
        Items(1, defaults.JOBS_AT_ONCE),
    ]
    max_tokens: Annotated[int, Whole(1, PROMPT_TOKENS)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job. `error` is a code if it failed, `abstract` the beginning of the prompt, `claimant` the
    author of the leading claim. `came` and `made` are in seconds since 1970, None if unknown.

    `tokens` and `reason` are None unless the result is stored here.
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
    tokens: IfKnown[int] = None
    reason: IfKnown[str] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """A part of the list of jobs. `more`: how many follow; `at`: the job that this node is doing.

    `does_jobs`: this node does jobs of others. `kept`: it stores jobs of others.
    """

    jobs: tuple[JobView, ...]
    more: int
    totals: Mapping[str, int]
    own: str
    at: str | None = None
    does_jobs: bool
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJobs(Ask[Jobs, Never]):
    """Ask for jobs, own ones first. `mine`: only own ones; `state`: only those in this state."""

    op = "job_list"
    mine: bool = False
    state: Annotated[str, Text(16)] | None = None
    limit: Annotated[int, Whole(1, defaults.JOBS_SHOWN)] = defaults.JOBS_SHOWN
    offset: Annotated[int, Whole(0, 2**53)] = 0


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecView:
    """The request of a prompt job. It has either `prompt` or `messages`."""

    root: str
    model: str
    abstract: str
    prompt: str | None
    messages: tuple[ChatMessage, ...] | None
    raw: bool
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """A claim on a job. `refused`: the author does not accept this claimant."""

    claimant: str
    attempt: int
    done: bool
    step: int
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob(JobView):
    """A job in full. `spec` is None if it is unreadable or cancelled."""

    spec: SpecView | None
    claims: tuple[ClaimView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowJob(Ask[ShownJob, Never]):
    """Describe a job, by its id or the beginning of it."""

    op = "job_show"
    job: Id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(JobView):
    """The result of a job, with its text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobResult(Ask[JobResult, Never]):
    """Ask for the result of an own job. `until_done`: wait for it."""

    op = "job_result"
    job: Id
    until_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(JobView):
    """The result of one of many jobs, with its prompt and the node that made it."""

    prompt: str | None
    text: str
    node: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LackingRecord:
    """A job without a result; `error` is `not-done` or `unknown-job`."""

    job: str
    prompt: str | None
    text: str
    node: str | None
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class ExpectedJobs:
    """The jobs whose results follow, in the order of the request or of submission."""

    jobs: tuple[str, ...]
    event: Literal["jobs"] = "jobs"


@dataclass(frozen=True, slots=True)
class ArrivedResult:
    """The result of one job."""

    result: JobRecord | LackingRecord
    event: Literal["result"] = "result"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How many jobs have a result, and how many of these failed."""

    done: int
    failed: int
    event: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class CountedResults:
    """How many results came, and how many of these are failures."""

    jobs: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobResults(Ask[CountedResults, ExpectedJobs | ArrivedResult | JobProgress]):
    """Ask for the results of several own jobs, by full ids; None: all own jobs.

    `until_done`: wait for jobs without a result.
    """

    op = "job_results"
    jobs: tuple[Annotated[str, Text(64, least=64)], ...] | None = None
    until_done: bool = False


@dataclass(frozen=True, slots=True)
class CancelledJob:
    """The full id of the job that was cancelled."""

    job: str


@dataclass(frozen=True, slots=True)
class CancelledJobs:
    """The ids of the jobs that were cancelled, and how many results are kept."""

    jobs: tuple[str, ...]
    results: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJobs(Ask[CancelledJob | CancelledJobs, Never]):
    """Cancel an own job, or `all` own jobs without a result."""

    op = "job_cancel"
    job: IfKnown[Id] = None
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What one client used of one provider, by the provider's word. `client` and `root` are None
    for many clients combined."""

    client: str | None
    provider: str
    root: str | None
    model: str | None
    requests: int
    tokens_in: int
    tokens_out: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage, most tokens first. `more`: how many rows follow; `kept`: this node stores the reports
    of other nodes."""

    usage: tuple[UsageRow, ...]
    more: int
    own: str
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GetUsage(Ask[Usage, Never]):
    """Ask for the usage that providers report."""

    op = "usage"
