"""Submits prompts as jobs in batches, and waits for their results."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import defaults, render
from ..errors import CommandError
from ..options import TextOptions, data_flag
from . import jobresults
from .run import read_prompt

if TYPE_CHECKING:
    from ...node.control.messages.jobs import JobResult
    from .jobresults import Record

LETTERS = 12  # letters of a job id that are shown
ABSTRACT = 48  # most characters of a prompt in a table


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


def why(found: "Record | JobResult") -> str:
    """Return the reason why a job failed, as its error code and message."""
    message = render.safe(found.message or "", 300)
    return f"{render.safe(found.error)}: {message}" if message else render.safe(found.error)
