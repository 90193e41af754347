"""`shoal job result`: waits for jobs and gives their results."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ... import defaults, jobresults, jobviews, render
from ...errors import CommandError
from ...options import data_flag, data_option, example, json_option
from ...progress import JobProgressDisplay
from .tuning import print_tuning

if TYPE_CHECKING:
    from ....node.control.messages import jobs as messages
    from ...jobresults import Record

AGAIN = "submit it again, perhaps with changes: `shoal job submit MODEL PROMPT`"


@click.command(
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
        if error.code != "unknown-job" or not print_tuning(data, job_id, wait, as_json):
            raise
        return
    _print(found, as_json=as_json)


def finish(data: Path, job_id: str, output: Path | None, *, as_json: bool) -> None:
    """Wait until a job is done, and write its output to a file or print it.

    Raises CommandError if the job or one of its rows failed.
    """
    from ....node.control.messages.jobs import GetJobResult
    from ...client import request

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
    from ....node.control.messages.jobs import WriteJobOutput
    from ...client import request

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
    from ....node.control.messages.jobs import WriteJobOutput
    from ...client import request

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
    _check_rows(wrote)


def _check_rows(job: "messages.WrittenJob | messages.JobResult") -> None:
    """Raise CommandError if rows of a job failed."""
    if job.rows_failed:
        raise CommandError(
            "rows-failed",
            f"{job.rows_failed} of {render.count(job.rows, 'row')} failed",
            hint="their lines of the output have the fields `error` and `message`",
        )


def _figure(item: tuple[str, object]) -> str:
    """Return a figure as words: its name, and its value if it has one."""
    name, value = item
    return f"{name} {value:.5g}" if isinstance(value, int | float) else f"{name} without a number"


def _print(found: "messages.JobResult", *, as_json: bool) -> None:
    """Print the result of a job. Raises CommandError if it or one of its rows failed."""
    if as_json:
        click.echo(render.as_json(found))
    elif not found.error:
        text = render.safe_text(found.text)
        click.echo(text, nl=found.rows == 1 or not text.endswith("\n"))
    if not found.error:
        _check_rows(found)
        return
    if not as_json:
        raise CommandError("failed", f"the job failed: {why(found)}", hint=AGAIN)
    click.get_current_context().exit(1)


def _result(data: Path, job_id: str, *, wait: bool) -> "messages.JobResult":
    """Return the result of the job whose id begins with `job_id`. With `wait`, wait until there is
    one."""
    from ....node.control.messages.jobs import GetJobResult
    from ...client import request

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
