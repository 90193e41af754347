"""`shoal job submit | list | show | result | cancel`: work that is done later."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import click

from .. import defaults, jobfiles, jobresults, jobviews, render
from ..errors import CommandError
from ..options import Commands, Misplaced, TextOptions, data_flag, data_option, example, json_option
from ..progress import JobProgressDisplay
from .run import read_prompt

if TYPE_CHECKING:
    from ...node.control.messages import jobs as messages
    from ...node.control.messages.tuning import ShownTuning
    from ..jobresults import Record

KINDS = ("generate", "embed", "evaluate", jobfiles.TUNING)
STATES = ("open", "claimed", "done", "failed")
ENDED = ("stopped", "failed", "done")  # states of fine-tunings that wait for a command

COMMAND_LINE = click.core.ParameterSource.COMMANDLINE

job_argument = click.argument("job_id", metavar="ID")


@click.group(
    cls=Commands,
    epilog=example(
        'shoal job submit tiny "Once upon a time" --wait',
        "shoal job submit tiny --file prompts.jsonl --follow -o answers.jsonl",
        "shoal job list --mine",
    ),
)
def job() -> None:
    """Submit work that idle nodes of the swarm do later.

    The kinds of work are prompts, texts for embeddings, evaluations, and fine-tunings. A job
    continues while this computer is off. Jobs and results are not secret unless they are sealed:
    every node of the swarm stores and can read them. Other nodes compute one in fifty rows again,
    to find nodes that lie. Interactive requests take precedence over jobs.
    """


@job.command(
    epilog=example(
        'shoal job submit tiny "Once upon a time"',
        "shoal job submit tiny --file prompts.jsonl --max-tokens 64 --follow",
        "shoal job submit tiny --file texts.jsonl --kind embed --deadline 2h",
        "shoal job submit job.toml",
    )
)
@click.argument("name", metavar="MODEL|JOB.toml")
@click.argument("prompt", required=False)
@click.option("--file", type=click.Path(allow_dash=True, path_type=Path), metavar="FILE",
              help="A job with a row for each line, each a JSON object; `-` reads standard "
              "input.")  # fmt: skip
@click.option("--kind", type=click.Choice(KINDS),
              help="What to do with each row, or `finetune`: to learn them (default: "
              "generate).")  # fmt: skip
@click.option("--priority", type=click.IntRange(0, 9), metavar="N",
              help="Among your own jobs, a higher one comes first (default: 5).")  # fmt: skip
@click.option("--deadline", metavar="TIME",
              help="When you need it: a time span (`90m`, `2h`) or a time "
              "(`2026-12-01T18:00`). Among your own jobs, the earliest comes first.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1, 4096), metavar="N",
              help="Stop after N tokens (default: 4096, or where the context ends).")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0, 100), default=0.0, metavar="T",
              show_default=True, help="0 takes the likeliest token, 1 samples.")  # fmt: skip
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="P",
              help="Sample among the likeliest tokens that sum to P.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(0, 2**31), default=0, metavar="K",
              help="Sample among the K likeliest tokens.")  # fmt: skip
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, metavar="P",
              help="Sample among tokens at least P times as likely as the likeliest.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), metavar="S",
              help="Random seed, to repeat a text (default: a new one for each job).")  # fmt: skip
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before TEXT; may be repeated.")
@click.option("--raw", is_flag=True, help="Continue the prompt without a chat template.")
@click.option("--seal", "seal", flag_value="all", default=None,
              help="Only this node can read the outputs, and only the members of its private "
              "group the rows.")  # fmt: skip
@click.option("--seal-outputs", "seal", flag_value="outputs",
              help="Only this node can read the outputs.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="With --follow, write the output to FILE.")  # fmt: skip
@click.option("--follow", "--wait", "follow", is_flag=True,
              help="Show the progress, wait for the result and print it.")  # fmt: skip
@data_option
@json_option
def submit(
    name: str,
    prompt: str | None,
    file: Path | None,
    kind: str | None,
    priority: int | None,
    deadline: str | None,
    seal: Literal["all", "outputs"] | None,
    output: Path | None,
    follow: bool,
    data: Path,
    as_json: bool,
    **options: Unpack[TextOptions],
) -> None:
    """Submit PROMPT as a job for MODEL, and print its id. MODEL+ADAPTER uses a LoRA adapter of the
    model, each by its name or hash.

    With --file, the job has a row for each line of the file, and its output has a line for each
    row, in the same order. JOB.toml describes a job in the same words as these options. The PROMPT
    `-` reads one prompt from standard input. When an id is printed, its job is stored on this
    node's disk, and on another node unless the command says otherwise. Every node of the swarm can
    read the jobs, unless they are sealed; a node that computes a row sees it in any case. A
    fine-tuning is one that other nodes train (`shoal finetune --movable`). Needs a running daemon.
    """
    if output is not None and not follow:
        hint = "add --follow; or fetch the output later: `shoal job result ID -o FILE`"
        raise Misplaced("-o is only for --follow", hint)
    if name.endswith(".toml"):
        _refuse_beside_job_file()
        order = jobfiles.read_job_file(Path(name))
        output = output or order.output
    else:
        if (prompt is None) == (file is None):
            raise click.UsageError("give either a PROMPT or --file FILE")
        prompt = read_prompt() if prompt == "-" else prompt
        order = jobfiles.JobOrder(
            name, prompt, file, kind or "generate", priority, deadline, output, seal, options
        )
    if order.kind == jobfiles.TUNING:
        _submit_tuning(data, order, follow=follow, as_json=as_json)
        return
    sent = _send(data, order)
    job_id = sent.jobs[0]
    if not follow:
        click.echo(render.as_json(sent) if as_json else job_id)
        return
    if not as_json:
        print(job_id, file=sys.stderr)
    _finish(data, job_id, output, as_json=as_json)


def _refuse_beside_job_file() -> None:
    """Raise UsageError if an option is given that a job file has a key for. `name` is the file."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in jobfiles.KEYS and name not in ("name", "output") and source is COMMAND_LINE:
            word = parameter.opts[0] if name != "prompt" else "PROMPT"
            hint = f"write `{name} = …` into the file, or give all as options, without the file"
            raise Misplaced(f"a job file goes without {word}", hint)


def _send(data: Path, order: jobfiles.JobOrder) -> "messages.SubmittedJobs":
    """Submit a job, and say on standard error what the user should know about it."""
    from ..client import request

    try:
        with jobfiles.request_of(order) as ask:
            sent = request(data, ask, wait=True)
    except KeyboardInterrupt:
        hint = f"`shoal job list --mine{data_flag(data)}` shows whether it was"
        message = "interrupted; the job may have been submitted"
        raise CommandError("interrupted", message, hint=hint) from None
    for line in sent.broken:
        print(f"line {line.line}: {render.safe(line.message, 200)}", file=sys.stderr)
    if sent.broken_rows > len(sent.broken):
        more = sent.broken_rows - len(sent.broken)
        print(f"and {more} more: their lines of the output say why", file=sys.stderr)
    if sent.broken_rows:
        broken = render.count(sent.broken_rows, "broken line")
        rows = render.count(sent.rows - sent.broken_rows, "other row")
        print(f"{broken}; the {rows} will be done", file=sys.stderr)
    _say_lack(sent.lack)
    return sent


def _say_lack(lack: "messages.LackView | None") -> None:
    """Say on standard error why no other node has a job."""
    if lack is not None:
        print(f"{render.safe(lack.code)}: {render.safe(lack.message, 400)}", file=sys.stderr)
        print(f"hint: {render.safe(lack.hint, 400)}", file=sys.stderr)


def _submit_tuning(data: Path, order: jobfiles.JobOrder, *, follow: bool, as_json: bool) -> None:
    """Submit a fine-tuning as a job, and print its id."""
    from ..tuningviews import broken_words
    from .finetune import begun, watch_tuning

    with jobfiles.tuning_of(order) as ask:
        found = begun(data, ask)
    for words in broken_words(found.data):
        print(words, file=sys.stderr)
    _say_lack(found.lack)
    if follow:
        print(found.tuning.id, file=sys.stderr)
        watch_tuning(data, found.tuning, as_json=as_json)
        return
    click.echo(render.as_json(found) if as_json else found.tuning.id)


def _finish(data: Path, job_id: str, output: Path | None, *, as_json: bool) -> None:
    """Wait until a job is done, and write its output to a file or print it.

    Raises CommandError if the job or one of its rows failed.
    """
    from ...node.control.messages.jobs import GetJobResult
    from ..client import request

    try:
        count = follow(data, job_id)
    except KeyboardInterrupt:
        raise interrupted(data, job_id, 1) from None
    if output is not None or count.rows > 1:
        _write(data, job_id, output, as_json=as_json)
        return
    found = request(data, GetJobResult(job=job_id.lower()), wait=True)
    _print(found, as_json=as_json)


def follow(data: Path, job: str) -> "messages.WrittenJob":
    """Wait until a job is done, and show its progress. Returns the number of its rows.

    If the daemon restarts meanwhile, waits for it to run again. Raises CommandError if the request
    fails.
    """
    from ...node.control.messages.jobs import WriteJobOutput
    from ..client import request

    answered = away = False
    with JobProgressDisplay() as shown:

        def hear(event: "messages.RowsDone") -> None:
            nonlocal answered, away
            answered, away = True, False
            shown.show_rows(event.done, event.rows, event.failed)

        ask = WriteJobOutput(job=job.lower(), until_done=True)
        while True:
            try:
                return request(data, ask, wait=True, on_event=hear)
            except CommandError as error:
                if error.code not in jobresults.GONE or not answered:
                    raise
                if not away:
                    shown.say("the daemon stopped; waiting for it to run again")
                away = True
                time.sleep(defaults.JOBS_RESTART_LOOK)


def _write(data: Path, job_id: str, output: Path | None, *, as_json: bool) -> None:
    """Write the output of a finished job of many rows to a file, or name the command that does."""
    from ...node.control.messages.jobs import WriteJobOutput
    from ..client import request

    path = None if output is None else str(output.absolute())
    wrote = request(data, WriteJobOutput(job=job_id.lower(), path=path), wait=True)
    if as_json:
        click.echo(render.as_json(wrote))
    elif output is not None:
        click.echo(f"wrote {render.count(wrote.rows, 'line')} to {output}")
        if wrote.figures:
            click.echo(", ".join(map(_figure, wrote.figures.items())))
    else:
        flag, first = data_flag(data), job_id[: jobviews.LETTERS]
        click.echo(f"done: `shoal job result {first} -o FILE{flag}` writes the output")
    if wrote.rows_failed:
        raise CommandError(
            "rows-failed",
            f"{wrote.rows_failed} of {render.count(wrote.rows, 'row')} failed",
            hint="their lines of the output have the fields `error` and `message`",
        )


def _figure(item: tuple[str, object]) -> str:
    """Return a figure as words: its name, and its value if it has one."""
    name, value = item
    return f"{name} {value:.5g}" if isinstance(value, int | float) else f"{name} without a number"


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
    claimed, done. The place of a job of this node is that of its next piece among the pieces of all
    users that wait. Needs a running daemon.
    """
    from ...node.control.messages.jobs import ListJobs
    from ..client import request

    limit = limit or (1000 if as_json else defaults.JOBS_LISTED)
    ask = ListJobs(mine=mine, state=state, limit=limit, offset=offset)
    answer = request(data, ask, wait=True)
    if as_json:
        click.echo(render.as_json(answer))
        return
    for line in jobviews.page(answer, mine=mine, state=state, offset=offset):
        click.echo(line)


@job.command(epilog=example("shoal job show 3fa9c1d2", "shoal job show 3fa9c1d2 --json"))
@job_argument
@data_option
@json_option
def show(job_id: str, data: Path, as_json: bool) -> None:
    """Show a job and which nodes claim it, or a fine-tuning's curve.

    The beginning of its ID is enough. Needs a running daemon.
    """
    from ...node.control.messages.jobs import ShowJob
    from ..client import request

    try:
        answer = request(data, ShowJob(job=job_id.lower()), wait=True)
    except CommandError as error:
        if error.code != "unknown-job" or not _show_tuning(data, job_id, as_json=as_json):
            raise
        return
    if answer.kind == "finetune" and _show_tuning(data, answer.job, as_json=as_json):
        return
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(jobviews.fields(answer))


def _show_tuning(data: Path, text: str, *, as_json: bool) -> bool:
    """Show a fine-tuning with its loss curve. Return whether this node has it."""
    from ..tuningviews import shown as words

    answer = _tuning(data, text)
    if answer is not None:
        click.echo(render.as_json(answer) if as_json else words(answer))
    return answer is not None


def _tuning(data: Path, text: str) -> "ShownTuning | None":
    """Return a fine-tuning of this node by its id, or None if it has none."""
    from .finetune import shown

    try:
        return shown(data, text)
    except CommandError as error:
        if error.code != "unknown-tuning":
            raise
        return None


@job.command(
    epilog=example(
        "shoal job result 3fa9c1d2 --wait",
        "shoal job result 3fa9c1d2 -o answers.jsonl",
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
              metavar="FILE", help="Write the output of the job, or the results of the jobs, to "
              "FILE: one JSON object on each line.")  # fmt: skip
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

    With ID and -o, FILE gets the output of the job: a line for each row, in the order of the rows.

    The exit code is 1 if a job or a row failed, or has no result. For one prompt, only the text is
    printed, with control characters escaped; `--json` gives it exactly. Needs a running daemon.
    """
    if (job_id is not None) + every + (file is not None) != 1:
        raise click.UsageError("give one of ID, --all and --file FILE")
    if job_id is None:
        jobs = None if file is None else jobresults.ids_in(file)
        jobresults.collect_to(data, jobs, output or Path("-"), wait=wait, as_json=as_json)
        return
    if output is not None and str(output) != "-":
        if wait:
            follow(data, job_id)
        _write(data, job_id, output, as_json=as_json)
        return
    try:
        found = _result(data, job_id, wait=wait)
    except CommandError as error:
        if error.code != "unknown-job" or not _tuning_result(data, job_id, wait, as_json):
            raise
        return
    _print(found, as_json=as_json)


def _tuning_result(data: Path, text: str, wait: bool, as_json: bool) -> bool:
    """Say how to use the result of a fine-tuning. Return whether this node has it.

    Raises CommandError if there is no result.
    """
    from .finetune import say_ended

    item = _tuning(data, text)
    if item is None:
        return False
    if wait and item.tuning.state not in ENDED:
        from .finetune import watch_tuning

        watch_tuning(data, item.tuning, as_json=as_json)
        return True
    if item.tuning.state == "failed":
        raise CommandError(
            item.tuning.error or "failed", f"the fine-tuning failed: {item.tuning.message}",
            hint=item.tuning.hint,
        )  # fmt: skip
    if item.tuning.state != "done":
        raise CommandError(
            "not-done",
            f"the fine-tuning {item.tuning.id} is {item.tuning.state}: {item.tuning.step} of "
            f"{item.tuning.steps} steps",
            hint=f"`shoal job result {item.tuning.id} --wait`",
        )
    if as_json:
        click.echo(render.as_json(item))
    else:
        say_ended(item, data)
    return True


def _print(found: "messages.JobResult", *, as_json: bool) -> None:
    """Print the result of a job. Raises CommandError if it failed."""
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

    Any node that is computing the job stops working on it. A fine-tuning is stopped, and keeps its
    last checkpoint (`shoal finetune resume`, `shoal finetune rm`).

    Needs a running daemon.
    """
    from ...node.control.messages.jobs import CancelJobs, CancelledJob
    from ..client import request
    from .finetune import stop_tuning

    if (job_id is not None) == every:
        raise click.UsageError("give either an ID or --all")
    ask = CancelJobs(job=None if job_id is None else job_id.lower(), all=every)
    try:
        answer = request(data, ask, wait=True)
    except CommandError as error:
        tuning = None if job_id is None or error.code != "unknown-job" else _tuning(data, job_id)
        if tuning is None:
            raise
        stop_tuning(data, tuning.tuning.id, as_json=as_json)
        return
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
    from ...node.control.messages.jobs import GetJobResult
    from ..client import request

    try:
        if wait:
            follow(data, job_id)
        return request(data, GetJobResult(job=job_id.lower()), wait=True)
    except KeyboardInterrupt:
        raise interrupted(data, job_id, 1) from None


def interrupted(data: Path, job_id: str, left: int) -> CommandError:
    """Return the error for Ctrl-C while the command waits for results. `left` jobs have none yet,
    and `job_id` is the first of these."""
    flag, first = data_flag(data), render.safe(job_id[: jobviews.LETTERS])
    hint = f"`shoal job result {first} --wait{flag}`"
    if left == 1:
        return CommandError("interrupted", "interrupted; the job continues", hint=hint)
    hint += f" for the first, `shoal job list --mine{flag}` for all"
    return CommandError("interrupted", f"interrupted; {left} jobs continue", hint=hint)


def why(found: "Record | messages.JobResult") -> str:
    """Return the reason why a job failed, as its error code and message."""
    message = render.safe(found.message or "", 300)
    return f"{render.safe(found.error)}: {message}" if message else render.safe(found.error)
