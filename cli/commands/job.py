"""`shoal job submit | list | show | result | cancel`: work that is done later."""

from pathlib import Path

import click

from .. import defaults, jobviews, render
from ..errors import CommandError
from ..options import Commands, data_option, example, json_option
from .jobs.result import result
from .jobs.submit import submit
from .jobs.tuning import find_tuning, show_tuning

STATES = ("open", "claimed", "done", "failed")


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


job.add_command(submit)
job.add_command(result)


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
@click.argument("job_id", metavar="ID")
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
        if error.code != "unknown-job" or not show_tuning(data, job_id, as_json=as_json):
            raise
        return
    if answer.kind == "finetune" and show_tuning(data, answer.job, as_json=as_json):
        return
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(jobviews.fields(answer))


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
        tuning = (
            None if job_id is None or error.code != "unknown-job" else find_tuning(data, job_id)
        )
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
