"""`shoal job submit`: gives a prompt, or a file of rows, to the nodes of the swarm."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import click

from ... import jobfiles, render
from ...errors import CommandError
from ...options import Misplaced, TextOptions, data_flag, data_option, example, json_option
from ..run import read_prompt
from .result import finish
from .tuning import say_lack, submit_tuning

if TYPE_CHECKING:
    from ....node.control.messages import jobs as messages

KINDS = ("generate", "embed", "evaluate", jobfiles.TUNING)
COMMAND_LINE = click.core.ParameterSource.COMMANDLINE


@click.command(
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
    read the jobs, unless they are sealed; a node that computes a row sees it in any case. With
    `--kind finetune`, other nodes train, as with `shoal finetune --movable`. Needs a running
    daemon.
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
        submit_tuning(data, order, follow=follow, as_json=as_json)
        return
    sent = _send(data, order)
    job_id = sent.jobs[0]
    if not follow:
        click.echo(render.as_json(sent) if as_json else job_id)
        return
    if not as_json:
        print(job_id, file=sys.stderr)
    finish(data, job_id, output, as_json=as_json)


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
    from ...client import request

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
    say_lack(sent.lack)
    return sent
