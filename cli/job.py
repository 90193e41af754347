"""`shoal job submit | list | show | result | cancel`: prompts that nobody waits for."""

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from . import defaults, render
from .errors import CommandError
from .options import Commands, data_flag, data_option, example, json_option
from .run import read_prompt

HEADS = ("JOB", "STATE", "MODEL", "BY", "PROMPT")
LETTERS = 12  # of an id
ABSTRACT = 48  # characters of a prompt in a table
NOT_KEPT = "this node does not keep others' jobs (`shoal node --state all` does)"
STATES = ("open", "claimed", "done", "failed")

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
    """Have prompts answered by whoever has the time, also while this computer is off.

    Jobs and their results are no secret: every node of the swarm keeps them and can read them, and
    a result is the word of the node that made it. Whoever waits for an answer comes first.
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
              help="One job for each line that is not empty; `-`: of standard input.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1, 4096), metavar="N",
              help="End after N tokens (default: 4096, or where the context ends).")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0, 100), default=0.0, metavar="T",
              show_default=True, help="0 takes the likeliest token, 1 samples.")  # fmt: skip
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="P",
              help="Sample among the likeliest tokens that sum to P.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(0, 2**31), default=0, metavar="K",
              help="Sample among the K likeliest tokens.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), metavar="S",
              help="The same seed gives the same text (default: a fresh one each).")  # fmt: skip
@click.option("--stop", multiple=True, metavar="TEXT", help="End before TEXT; may be repeated.")
@click.option("--raw", is_flag=True, help="Continue the prompt; no chat template.")
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
    **options: Any,
) -> None:
    """Submit a job: PROMPT for MODEL, or one for each line of a file. Prints the ids.

    `-` reads one prompt from standard input. The jobs are on this node's disk when their ids are
    printed. Everybody in the swarm can read them. Needs a running daemon.
    """
    prompts = _prompts(prompt, file)
    options["stop"] = list(options["stop"])
    sender = _Sender(data, {"model": name, **options}, show=not as_json, wait=wait)
    sender.send(prompts)
    if not wait:
        if as_json:
            click.echo(render.as_json({"jobs": sender.jobs}))
        return
    found = sender.results()
    if as_json:
        click.echo(render.as_json({"jobs": found}))
    if any(result["error"] for result in found):
        click.get_current_context().exit(1)


@job.command("list", epilog=example("shoal job list --mine", "shoal job list --state open"))
@click.option("--mine", is_flag=True, help="Only what was submitted on this node.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@data_option
@json_option
def list_(mine: bool, state: str | None, data: Path, as_json: bool) -> None:
    """List the jobs of the swarm, and results that are kept here. Needs a running daemon."""
    from .client import request

    answer = request(data, "job_list", wait=True, mine=mine, state=state)
    if as_json:
        click.echo(render.as_json(answer))
        return
    kept = mine or answer.get("kept", True)
    if not answer["jobs"]:
        none = "there are no jobs" if kept else NOT_KEPT
        click.echo(f"{none}; submit one with `shoal job submit MODEL PROMPT`")
        return
    click.echo(render.table(HEADS, [_row(item, answer["own"]) for item in answer["jobs"]]))
    if answer["more"]:
        click.echo(f"and {answer['more']} more")
    if not kept:
        click.echo(NOT_KEPT)


@job.command(epilog=example("shoal job show 3fa9c1d2", "shoal job show 3fa9c1d2 --json"))
@job_argument
@data_option
@json_option
def show(job_id: str, data: Path, as_json: bool) -> None:
    """Show a job: what it asks for, and who claims it. The beginning of its id is enough.

    Needs a running daemon.
    """
    from .client import request

    answer = request(data, "job_show", job=job_id.lower(), wait=True)
    if as_json:
        click.echo(render.as_json(answer))
        return
    rows = [
        ("job", render.safe(answer["job"], 64)),
        ("state", _state(answer)),
        ("author", render.short(answer["author"])),
        ("model", render.name(answer["model"] or "-", 64)),
        ("prompt", render.safe(answer["abstract"], 300)),
    ]
    if answer["came"]:
        rows.append(("result", f"came {_time(answer['came'])}"))
    rows += [("claims", _claim(claim)) for claim in answer["claims"]]
    click.echo(render.fields(rows))


@job.command(epilog=example("shoal job result 3fa9c1d2", "shoal job result 3fa9c1d2 --wait"))
@job_argument
@click.option("--wait", is_flag=True, help="Wait until there is one.")
@data_option
@json_option
def result(job_id: str, wait: bool, data: Path, as_json: bool) -> None:
    """Print what came of a job of this node. It is kept for a day after that.

    Exits with 1 where the job failed. Control characters are shown escaped; `--json` gives the text
    exactly. Needs a running daemon.
    """
    found = _result(data, job_id, wait=wait)
    if as_json:
        click.echo(render.as_json(found))
    elif not found["error"]:
        click.echo(render.safe_text(found["text"]))
    if not found["error"]:
        return
    if not as_json:
        raise CommandError("failed", f"the job failed: {_why(found)}", hint=AGAIN)
    click.get_current_context().exit(1)


@job.command(epilog=example("shoal job cancel 3fa9c1d2"))
@job_argument
@data_option
@json_option
def cancel(job_id: str, data: Path, as_json: bool) -> None:
    """Take a job of this node out, and let its result go. Whoever is at it stops.

    Needs a running daemon.
    """
    from .client import request

    answer = request(data, "job_cancel", job=job_id.lower(), wait=True)
    if as_json:
        click.echo(render.as_json(answer))
    else:
        click.echo(f"taken out: {render.safe(answer['job'], 64)}")


AGAIN = "submit it again, perhaps changed: `shoal job submit MODEL PROMPT`"


class _Sender:
    """Submits prompts, some at a time, and has their results."""

    def __init__(self, data: Path, options: dict[str, Any], *, show: bool, wait: bool) -> None:
        self.jobs: list[str] = []
        self._data = data
        self._options = options
        self._show = show
        self._wait = wait
        self._found: list[dict[str, Any]] = []

    def send(self, prompts: list[str]) -> None:
        """All of them; where there is no room, behind results that are waited for."""
        from .client import request

        at = 0
        while at < len(prompts):
            batch = _batch(prompts[at:])
            try:
                answer = request(
                    self._data, "job_submit", prompts=batch, wait=True, **self._options
                )
            except CommandError as error:
                if error.code != "jobs-full" or not (self._wait and self.jobs):
                    raise self._partly(error, at, len(prompts)) from None
                self._have_one()
                time.sleep(defaults.JOBS_FULL_PAUSE)
                continue
            except KeyboardInterrupt:
                raise self._stopped(at, len(prompts)) from None
            at += len(batch)
            self.jobs += answer["jobs"]
            for each in answer["jobs"] if self._show else ():
                print(each, file=sys.stderr if self._wait else sys.stdout)

    def results(self) -> list[dict[str, Any]]:
        """Of all, in the order in which they were submitted."""
        while len(self._found) < len(self.jobs):
            self._have_one()
        return self._found

    def _have_one(self) -> None:
        if len(self._found) == len(self.jobs):
            return
        at = len(self._found)
        found = _result(self._data, self.jobs[at], wait=True, left=len(self.jobs) - at)
        self._found.append(found)
        if not self._show:
            return
        if len(self.jobs) > 1:
            head = f"{found['job'][:LETTERS]}  {render.safe(found['abstract'], ABSTRACT)}"
            click.echo(render.coloured(head, "dim", sys.stdout))
        said = f"failed: {_why(found)}" if found["error"] else render.safe_text(found["text"])
        click.echo(said)

    def _stopped(self, done: int, of: int) -> CommandError:
        """While a request was under way: what became of it is not known."""
        message = "interrupted; the job may have been submitted"
        if of > 1:
            message = f"interrupted; {done} of {of} jobs were submitted, and perhaps the next ones"
        hint = f"`shoal job list --mine{data_flag(self._data)}` shows which"
        return CommandError("interrupted", message, hint=hint)

    def _partly(self, error: CommandError, done: int, of: int) -> CommandError:
        if of == 1:
            return error
        what = f"{done} of {of} jobs were submitted, those from prompt {done + 1} on were not"
        return CommandError(error.code, f"{what}: {error.message}", hint=error.hint)


def _batch(prompts: list[str]) -> list[str]:
    """The first of them, as many as one request takes."""
    chosen: list[str] = []
    room = defaults.JOBS_BATCH_BYTES
    for prompt in prompts[: defaults.JOBS_BATCH]:
        room -= len(json.dumps(prompt))
        if room < 0 and chosen:
            break
        chosen.append(prompt)
    return chosen


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    if (prompt is None) == (file is None):
        raise click.UsageError("give either a PROMPT or --file FILE")
    if prompt is not None:
        prompts = [read_prompt() if prompt == "-" else prompt]
    else:
        prompts = _lines(str(file))
    if not any(prompt.strip() for prompt in prompts):
        raise CommandError("failed", "there is no prompt", hint="`shoal job submit MODEL PROMPT`")
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
        raise CommandError("failed", f"`{name}` has more than {most}", hint="cut it into several")
    return [line for line in text.splitlines() if line.strip()]


def _result(data: Path, job_id: str, *, wait: bool, left: int = 1) -> dict[str, Any]:
    """`left`: how many jobs are waited for, this one among them."""
    from .client import request

    try:
        return request(data, "job_result", job=job_id.lower(), until_done=wait, wait=True)
    except KeyboardInterrupt:
        raise _interrupted(data, job_id, left) from None


def _interrupted(data: Path, job_id: str, left: int) -> CommandError:
    flag, first = data_flag(data), render.safe(job_id[:LETTERS])
    hint = f"`shoal job result {first} --wait{flag}`"
    if left == 1:
        return CommandError("interrupted", "interrupted; the job goes on", hint=hint)
    hint += f" for the first, `shoal job list --mine{flag}` for all"
    return CommandError("interrupted", f"interrupted; {left} jobs go on", hint=hint)


def _row(item: dict[str, Any], own: str) -> list[str]:
    claimant = item["claimant"]
    by = "" if claimant is None else "this node" if claimant == own else _peer(claimant)
    return [
        render.safe(item["job"][:LETTERS]),
        _state(item),
        render.name(item["model"] or item["kind"], 24),
        by,
        render.safe(item["abstract"], ABSTRACT),
    ]


def _state(item: dict[str, Any]) -> str:
    said = str(item["state"])
    if item["error"]:
        said += f" ({render.safe(item['error'])})"
    elif item["state"] == "claimed" and item["attempt"] > 1:
        said += f" (attempt {item['attempt']})"
    elif item["came"]:
        said += ", read" if item["read"] else ""
    return said


def _claim(claim: dict[str, Any]) -> str:
    state = "refused" if claim["refused"] else "done" if claim["done"] else "at it"
    step = f", step {claim['step']}" if claim["step"] else ""
    return f"{_peer(claim['claimant'])}  attempt {claim['attempt']}: {state}{step}"


def _why(found: dict[str, Any]) -> str:
    message = render.safe(found["message"] or "", 300)
    return f"{render.safe(found['error'])}: {message}" if message else render.safe(found["error"])


def _peer(peer: str) -> str:
    return render.short(peer)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
