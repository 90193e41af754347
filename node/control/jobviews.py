"""Describes jobs and their results in messages of the control socket."""

from ...state.claims.rule import Claim
from ...state.views.jobs import Job, JobStanding, JobState
from ...tasks.jobs.errors import BadOutcome, BadSpec
from ...tasks.jobs.outcome import read_outcome
from ...tasks.jobs.prompt import KIND, read_spec
from ...tasks.jobs.results import StoredResult
from .messages.encoding import extended
from .messages.jobs import ChatMessage, ClaimView, JobRecord, JobView, LackingRecord, SpecView

FAILED = "failed"  # shown as the state of a job whose result is an error


def state_of(standing: JobStanding) -> tuple[str, str | None]:
    """Return (state of a job, error code). The error code is None unless the job failed."""
    error = None
    if standing.state is JobState.DONE and standing.claim is not None:
        try:
            error = read_outcome(standing.claim.result).error or None
        except BadOutcome as bad:
            error = bad.code
    return FAILED if error else standing.state.value, error


def standing_view(standing: JobStanding, job: Job, made: int = 0) -> JobView:
    """Describe a job from the entries in its author's feed.

    `made` is the time of submission in microseconds since 1970, or 0 if this node did not submit
    the job.
    """
    claim, (state, error) = standing.claim, state_of(standing)
    spec = spec_view(job)
    return JobView(
        job=standing.id,
        author=job.author,
        kind=job.kind,
        state=state,
        error=error,
        message=None,
        model=None if spec is None else spec.model or spec.root,
        abstract="" if spec is None else spec.abstract,
        claimant=None if claim is None else claim.claimant,
        attempt=standing.attempt,
        step=0 if claim is None else claim.step,
        came=None,
        read=False,
        made=made / 1e6 or None,
    )


def spec_view(job: Job) -> SpecView | None:
    """Describe the request of a prompt job. Returns None if the job is of another kind or its
    specification is invalid."""
    if job.kind != KIND:
        return None
    try:
        spec = read_spec(job.spec)
    except BadSpec:
        return None
    messages = None
    if spec.messages is not None:
        messages = tuple(ChatMessage(said.role, said.content) for said in spec.messages)
    how = spec.sampling
    return SpecView(
        root=spec.root,
        model=spec.name,
        abstract=spec.abstract,
        prompt=spec.prompt,
        messages=messages,
        raw=spec.raw,
        max_tokens=spec.max_tokens,
        temperature=how.temperature,
        top_k=how.top_k,
        top_p=how.top_p,
        seed=how.seed,
        stop=spec.stop,
    )


def claim_view(claim: Claim, job: Job) -> ClaimView:
    """Describe a claim on a job."""
    return ClaimView(
        claimant=claim.claimant,
        attempt=claim.attempt,
        done=claim.done,
        step=claim.step,
        refused=claim.claimant in job.refused,
    )


def result_state(result: StoredResult) -> str:
    """Return `done` or `failed`."""
    return FAILED if result.outcome.error else JobState.DONE.value


def result_view(result: StoredResult, author: str) -> JobView:
    """Describe a result that is stored on this node, without its text."""
    came = result.outcome
    return JobView(
        job=result.job,
        author=author,
        kind=result.kind,
        state=result_state(result),
        error=came.error or None,
        message=came.message or None,
        model=result.model,
        abstract=result.abstract,
        claimant=result.claimant,
        attempt=result.attempt,
        step=0,
        came=result.came,
        read=result.read > 0,
        made=result.made / 1e6 or None,
        tokens=came.tokens,
        reason=came.reason,
    )


def record_of(result: StoredResult, author: str) -> JobRecord:
    """Describe a result that is stored on this node, with its text and its prompt (or the beginning
    of the prompt, if only that is stored)."""
    return extended(
        JobRecord,
        result_view(result, author),
        prompt=result.prompt or result.abstract,
        text=result.outcome.text,
        node=result.claimant,
    )


def lacking_record(job: str, standing: JobStanding | None, error: str, why: str) -> LackingRecord:
    """Describe a job that has no result. `error` is the code of the reason, and `why` the reason as
    a sentence."""
    spec = None if standing is None or standing.job is None else spec_view(standing.job)
    prompt = None
    if spec is not None:
        prompt = spec.messages[-1].content if spec.messages else spec.prompt
    return LackingRecord(job=job, prompt=prompt, text="", node=None, error=error, message=why)
