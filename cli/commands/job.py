"""`shoal job submit | list | show | result | cancel`: prompts that are answered later."""

import json
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from .. import defaults, jobresults, render
from ..errors import CommandError
from ..options import Commands, TextOptions, data_flag, data_option, example, json_option
from .run import read_prompt

if TYPE_CHECKING:
    from ...node.control.messages import jobs as messages
    from ..jobresults import Record

HEADS = ("JOB", "STATE", "MODEL", "BY", "PROMPT")
NOT_KEPT = "this node does not store other nodes' jobs (`shoal node --state all` does)"
STATES = ("open", "claimed", "done", "failed")

LETTERS = 12  # letters of a job id that are shown
ABSTRACT = 48  # most characters of a prompt in a table

job_argument = click.argument("job_id", metavar="ID")


@click.group(
    cls=Commands,
    epilog=example(
        'shoal job submit tiny "Once upon a time" --wait',
        "shoal job submit tiny --file prompts.txt",
        "shoal job list --mine",
    ),
)
def job() -> None:
    """Submit prompts that idle nodes of the swarm answer later.

    A job continues while this computer is off. Jobs and results are not secret: every node of the
    swarm stores and can read them. A result is only as trustworthy as the node that made it.
    Interactive requests take precedence over jobs.
    """


@job.command(
    epilog=example(
        'shoal job submit tiny "Once upon a time"',
        "shoal job submit tiny --file prompts.txt --max-tokens 64 --wait",
    )
)
@click.argument("name", metavar="MODEL")
@click.argument("prompt", required=False)
@click.option("--file", type=click.Path(allow_dash=True, path_type=Path), metavar="FILE",
              help="One job for each non-empty line; `-` reads standard input.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1, 4096), metavar="N",
              help="Stop after N tokens (default: 4096, or where the context ends).")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0, 100), default=0.0, metavar="T",
              show_default=True, help="0 takes the likeliest token, 1 samples.")  # fmt: skip
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="P",
              help="Sample among the likeliest tokens that sum to P.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(0, 2**31), default=0, metavar="K",
              help="Sample among the K likeliest tokens.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), metavar="S",
              help="Random seed, to repeat a text (default: a new one for each job).")  # fmt: skip
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before TEXT; may be repeated.")
@click.option("--raw", is_flag=True, help="Continue the prompt without a chat template.")
@click.option("--wait", is_flag=True, help="Wait for the results and print them.")
@data_option
@json_option
def submit(
    name: str,
    prompt: str | None,
    file: Path | None,
    wait: bool,
    data: Path,
    as_json: bool,
    **options: Unpack[TextOptions],
) -> None:
    """Submit PROMPT as a job for MODEL, and print its id.

    With --file, every non-empty line of the file becomes a job. The PROMPT `-` reads one prompt
    from standard input. When an id is printed, its job is stored on this node's disk. Every node of
    the swarm can read the jobs. Needs a running daemon.
    """
    prompts = prompts_of(prompt, file)
    sender = JobSender(data, name, options, show=not as_json, wait=wait)
    sender.send(prompts)
    if not wait:
        if as_json:
            click.echo(render.as_json({"jobs": sender.jobs}))
        return
    found = sender.results()
    if as_json:
        from ...node.control.messages.encoding import plain

        click.echo(render.as_json({"jobs": plain(found)}))
    if any(result.error for result in found):
        click.get_current_context().exit(1)


@job.command("list", epilog=example("shoal job list --mine", "shoal job list --state open"))
@click.option("--mine", is_flag=True, help="Only jobs that were submitted on this node.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N",
              help="Show at most N jobs (default: 50; with --json 1000).")  # fmt: skip
@click.option("--offset", type=click.IntRange(0), default=0, metavar="N",
              help="Skip the first N jobs.")  # fmt: skip
@data_option
@json_option
def list_(
    mine: bool, state: str | None, limit: int | None, offset: int, data: Path, as_json: bool
) -> None:
    """List jobs and stored results, and count the jobs in each state.

    This node's own jobs come first, the newest at the top; then those of other nodes: open,
    claimed, done. Needs a running daemon.
    """
    from ...node.control.messages.jobs import ListJobs
    from ..client import request

    limit = limit or (1000 if as_json else defaults.JOBS_LISTED)
    ask = ListJobs(mine=mine, state=state, limit=limit, offset=offset)
    answer = request(data, ask, wait=True)
    if as_json:
        click.echo(render.as_json(answer))
        return
    kept = mine or answer.kept
    totals = answer.totals
    if not any(totals.values()):
        none = "there are no jobs" if kept else NOT_KEPT
        click.echo(f"{none}; submit one with `shoal job submit MODEL PROMPT`")
        return
    if answer.jobs:
        click.echo(render.table(HEADS, [_row(item, answer.own) for item in answer.jobs]))
    click.echo(_totals(totals))
    if answer.more:
        after = offset + len(answer.jobs)
        click.echo(f"and {answer.more} more: add `--offset {after}`, or `--limit N`")
    if not kept:
        click.echo(NOT_KEPT)


@job.command(epilog=example("shoal job show 3fa9c1d2", "shoal job show 3fa9c1d2 --json"))
@job_argument
@data_option
@json_option
def show(job_id: str, data: Path, as_json: bool) -> None:
    """Show what a job asks for, and which nodes claim it; or a fine-tuning with its loss curve.

    The beginning of its ID is enough. Needs a running daemon.
    """
    from ...node.control.messages.jobs import ShowJob
    from ..client import request

    try:
        answer = request(data, ShowJob(job=job_id.lower()), wait=True)
    except CommandError as error:
        if error.code != "unknown-job":
            raise
        _show_tuning(data, job_id, as_json=as_json, unknown=error)
        return
    if as_json:
        click.echo(render.as_json(answer))
        return
    rows = [
        ("job", render.safe(answer.job, 64)),
        ("state", _state(answer)),
        ("author", render.short(answer.author)),
        ("model", render.name(answer.model or "-", 64)),
        ("prompt", render.safe(answer.abstract, 300)),
    ]
    if answer.made:
        rows.append(("submitted", _time(answer.made)))
    if answer.came:
        rows.append(("result", f"came {_time(answer.came)}"))
    rows += [("claims", _claim(claim)) for claim in answer.claims]
    click.echo(render.fields(rows))


def _show_tuning(data: Path, text: str, *, as_json: bool, unknown: CommandError) -> None:
    """Show a fine-tuning with its loss curve. Raises `unknown` if there is none."""
    from ..tuningviews import shown as words
    from .finetune import shown

    try:
        answer = shown(data, text)
    except CommandError as error:
        raise (unknown if error.code == "unknown-tuning" else error) from None
    click.echo(render.as_json(answer) if as_json else words(answer))


@job.command(
    epilog=example(
        "shoal job result 3fa9c1d2 --wait",
        "shoal job result --file ids.txt -o results.jsonl --wait",
        "shoal job result --all -o results.jsonl",
    )
)
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--all", "every", is_flag=True, help="The results of all jobs of this node.")
@click.option("--file", type=click.Path(allow_dash=True, path_type=Path), metavar="FILE",
              help="The results of the jobs whose ids are in FILE, one on each line, as `submit` "
              "prints them.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(allow_dash=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="Write the results to FILE, one JSON object on each line "
              "(default: standard output).")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait until every job has a result.")
@data_option
@json_option
def result(
    job_id: str | None,
    every: bool,
    file: Path | None,
    output: Path | None,
    wait: bool,
    data: Path,
    as_json: bool,
) -> None:
    """Print the result of a job of this node, or of many jobs.

    Results are deleted a day after they were printed.

    For many jobs, each line is an object with `id`, `prompt`, `text`, `node`, `error` and
    `message`, in the order of the ids, or with --all in the order of submission. The results are
    written to FILE.part, which is renamed to FILE when it is complete. With --wait, the command
    keeps waiting when the daemon restarts; Ctrl-C leaves the jobs as they are.

    The exit code is 1 if a job failed or has no result. For one job, only the text is printed, with
    control characters escaped; `--json` gives it exactly. Needs a running daemon.
    """
    if (job_id is not None) + every + (file is not None) != 1:
        raise click.UsageError("give one of ID, --all and --file FILE")
    if job_id is None:
        jobs = None if file is None else jobresults.ids_in(file)
        jobresults.collect_to(data, jobs, output or Path("-"), wait=wait, as_json=as_json)
        return
    if output is not None:
        raise click.UsageError("--output is for --all and --file FILE")
    found = _result(data, job_id, wait=wait)
    if as_json:
        click.echo(render.as_json(found))
    elif not found.error:
        click.echo(render.safe_text(found.text))
    if not found.error:
        return
    if not as_json:
        raise CommandError("failed", f"the job failed: {why(found)}", hint=AGAIN)
    click.get_current_context().exit(1)


@job.command(epilog=example("shoal job cancel 3fa9c1d2", "shoal job cancel --all"))
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--all", "every", is_flag=True,
              help="All jobs of this node without a result; results are kept.")  # fmt: skip
@data_option
@json_option
def cancel(job_id: str | None, every: bool, data: Path, as_json: bool) -> None:
    """Cancel a job of this node and delete its result.

    Any node that is computing the job stops working on it.

    Needs a running daemon.
    """
    from ...node.control.messages.jobs import CancelJobs, CancelledJob
    from ..client import request

    if (job_id is not None) == every:
        raise click.UsageError("give either an ID or --all")
    ask = CancelJobs(job=None if job_id is None else job_id.lower(), all=every)
    answer = request(data, ask, wait=True)
    if as_json:
        click.echo(render.as_json(answer))
    elif isinstance(answer, CancelledJob):
        click.echo(f"cancelled: {render.safe(answer.job, 64)}")
    else:
        stay = f"; {render.count(answer.results, 'result')} kept" if answer.results else ""
        click.echo(f"cancelled: {render.count(len(answer.jobs), 'job')}{stay}")


AGAIN = "submit it again, perhaps with changes: `shoal job submit MODEL PROMPT`"


def _result(data: Path, job_id: str, *, wait: bool) -> "messages.JobResult":
    """Return the result of the job whose id begins with `job_id`. With `wait`, wait until there is
    one."""
    from ...node.control.messages.jobs import GetJobResult, ShowJob
    from ..client import request

    try:
        if wait:
            job_id = request(data, ShowJob(job=job_id.lower()), wait=True).job
            jobresults.Collection(data, [job_id], lambda _: None).run(wait=True)
        return request(data, GetJobResult(job=job_id.lower()), wait=True)
    except KeyboardInterrupt:
        raise interrupted(data, job_id, 1) from None


def _totals(totals: Mapping[str, int]) -> str:
    """Format the number of jobs in each state: `1000 jobs: 12 open, 3 claimed, 985 done`."""
    parts = ", ".join(f"{count} {state}" for state, count in totals.items() if count)
    return f"{render.count(sum(totals.values()), 'job')}: {parts}"


def _row(item: "messages.JobView", own: str) -> list[str]:
    claimant = item.claimant
    by = "" if claimant is None else "this node" if claimant == own else _peer(claimant)
    return [
        render.safe(item.job[:LETTERS]),
        _state(item),
        render.name(item.model or item.kind, 24),
        by,
        render.safe(item.abstract, ABSTRACT),
    ]


def _state(item: "messages.JobView") -> str:
    said = str(item.state)
    if item.error:
        said += f" ({render.safe(item.error)})"
    elif item.state == "claimed" and item.attempt > 1:
        said += f" (attempt {item.attempt})"
    elif item.came:
        said += ", read" if item.read else ""
    return said


def _claim(claim: "messages.ClaimView") -> str:
    state = "refused" if claim.refused else "done" if claim.done else "in progress"
    step = f", step {claim.step}" if claim.step else ""
    return f"{_peer(claim.claimant)}  attempt {claim.attempt}: {state}{step}"


def _peer(peer: str) -> str:
    return render.short(peer)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


class JobSender:
    """Submits prompts as jobs, in batches, and collects the results.

    `show` prints ids and results as they arrive. `wait` says whether the command waits for the
    results.
    """

    def __init__(
        self, data: Path, model: str, options: TextOptions, *, show: bool, wait: bool
    ) -> None:
        self.jobs: list[str] = []
        self._data = data
        self._model = model
        self._options = options
        self._show = show
        self._wait = wait
        self._found: list[Record] = []
        self._total = 0  # number of prompts

    def send(self, prompts: list[str]) -> None:
        """Submit all prompts.

        If this node has too many open jobs and `wait` is set, wait for a result before submitting
        more. Raises CommandError if the daemon refuses a batch; the message says how many jobs were
        submitted.
        """
        from ...node.control.messages.jobs import SubmitJobs
        from ..client import request

        at = 0
        self._total = len(prompts)
        while at < len(prompts):
            batch = _batch(prompts[at:])
            try:
                ask = SubmitJobs(model=self._model, prompts=tuple(batch), **self._options)
                answer = request(self._data, ask, wait=True)
            except CommandError as error:
                if error.code != "jobs-full" or not (self._wait and self.jobs):
                    raise self._partly(error, at, len(prompts)) from None
                self._have_one()
                time.sleep(defaults.JOBS_FULL_PAUSE)
                continue
            except KeyboardInterrupt:
                raise self._stopped(at, len(prompts)) from None
            at += len(batch)
            self.jobs += answer.jobs
            for each in answer.jobs if self._show else ():
                print(each, file=sys.stderr if self._wait else sys.stdout)

    def results(self) -> "list[Record]":
        """Return the results of all jobs, in the order of submission."""
        self._collect(self.jobs[len(self._found) :])
        return self._found

    def _have_one(self) -> None:
        """Wait for the next result."""
        at = len(self._found)
        self._collect(self.jobs[at : at + 1])

    def _collect(self, jobs: list[str]) -> None:
        if not jobs:
            return
        collection = jobresults.Collection(
            self._data, jobs, self._had, before=self._found, total=self._total
        )
        try:
            collection.run(wait=True)
        except KeyboardInterrupt:
            left = len(self.jobs) - len(self._found)
            raise interrupted(self._data, self.jobs[len(self._found)], left) from None

    def _had(self, found: "Record") -> None:
        """Append a result, and print it if results are shown."""
        self._found.append(found)
        if not self._show:
            return
        if len(self.jobs) > 1:
            head = f"{found.job[:LETTERS]}  {render.safe(found.prompt or '', ABSTRACT)}"
            click.echo(render.coloured(head, "dim", sys.stdout))
        said = f"failed: {why(found)}" if found.error else render.safe_text(found.text)
        click.echo(said)

    def _stopped(self, done: int, of: int) -> CommandError:
        """Return the error for Ctrl-C during a submission. It is unknown whether the daemon has
        stored that batch."""
        message = "interrupted; the job may have been submitted"
        if of > 1:
            message = f"interrupted; {done} of {of} jobs were submitted, and perhaps the next ones"
        hint = f"`shoal job list --mine{data_flag(self._data)}` shows which"
        return CommandError("interrupted", message, hint=hint)

    def _partly(self, error: CommandError, done: int, of: int) -> CommandError:
        """Return the error for a batch that was refused after `done` of `of` jobs had been
        submitted."""
        if of == 1:
            return error
        what = f"{done} of {of} jobs were submitted, but not those from prompt {done + 1} on"
        hint = error.hint
        if error.code == "jobs-full":
            hint = "with `--wait` the command submits the rest as jobs end"
        return CommandError(error.code, f"{what}: {error.message}", hint=hint)


def _batch(prompts: list[str]) -> list[str]:
    """Return as many of the first prompts as fit into one request; at least one."""
    chosen: list[str] = []
    room = defaults.JOBS_BATCH_BYTES
    for prompt in prompts[: defaults.JOBS_BATCH]:
        room -= len(json.dumps(prompt))
        if room < 0 and chosen:
            break
        chosen.append(prompt)
    return chosen


def prompts_of(prompt: str | None, file: Path | None) -> list[str]:
    """Return the given prompt, or the non-empty lines of a file.

    Raises UsageError unless exactly one of the two is given, and CommandError if the prompts are
    empty or the file cannot be used.
    """
    if (prompt is None) == (file is None):
        raise click.UsageError("give either a PROMPT or --file FILE")
    if prompt is not None:
        prompts = [read_prompt() if prompt == "-" else prompt]
    else:
        prompts = _lines(str(file))
    if not any(prompt.strip() for prompt in prompts):
        raise CommandError("failed", "the prompt is empty", hint="`shoal job submit MODEL PROMPT`")
    return prompts


def _lines(name: str) -> list[str]:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(defaults.JOBS_FILE_LIMIT + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(defaults.JOBS_FILE_LIMIT + 1)
        text = data.decode()
    except UnicodeDecodeError:
        raise CommandError(
            "failed", f"`{name}` is not UTF-8 text", hint="convert it: `iconv -t UTF-8`"
        ) from None
    if len(data) > defaults.JOBS_FILE_LIMIT:
        most = render.size(defaults.JOBS_FILE_LIMIT)
        raise CommandError("failed", f"`{name}` is larger than {most}", hint="split the file")
    return [line for line in text.splitlines() if line.strip()]


def interrupted(data: Path, job_id: str, left: int) -> CommandError:
    """Return the error for Ctrl-C while the command waits for results. `left` jobs have none yet,
    and `job_id` is the first of these."""
    flag, first = data_flag(data), render.safe(job_id[:LETTERS])
    hint = f"`shoal job result {first} --wait{flag}`"
    if left == 1:
        return CommandError("interrupted", "interrupted; the job continues", hint=hint)
    hint += f" for the first, `shoal job list --mine{flag}` for all"
    return CommandError("interrupted", f"interrupted; {left} jobs continue", hint=hint)


def why(found: "Record | messages.JobResult") -> str:
    """Return the reason why a job failed, as its error code and message."""
    message = render.safe(found.message or "", 300)
    return f"{render.safe(found.error)}: {message}" if message else render.safe(found.error)
