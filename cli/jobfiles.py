"""What `shoal job submit` sends: a prompt, a file with rows or texts, or a job file in TOML."""

import difflib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import defaults, render
from .errors import CommandError
from .options import TextOptions

if TYPE_CHECKING:
    from ..node.control.messages.jobs import SubmitJobs
    from ..node.control.messages.tuning import BeginTuning

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
NO_OPTIONS: TextOptions = {
    "max_tokens": None, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None,
    "stop": (), "raw": False,
}  # fmt: skip
OWN_KEYS = ("model", "kind", "file", "prompt", "priority", "deadline", "output", "seal")
TUNING = "finetune"
TUNING_KEYS = (
    *("name", "rank", "alpha", "modules", "rate", "warmup", "decay", "batch", "length", "epochs"),
    *("steps", "held_out"),
)
"""Keys of a job file for a fine-tuning only."""
KEYS = (*OWN_KEYS, *NO_OPTIONS, *TUNING_KEYS)
"""All keys of a job file."""


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job as the user describes it. `deadline` is a time span such as `2h`, or a time. `seal` is
    `all`, `outputs` or None. `tuning` has what is about fine-tunings only, by key."""

    model: str
    prompt: str | None = None
    file: Path | None = None
    kind: str = "generate"
    priority: int | None = None
    deadline: str | None = None
    output: Path | None = None
    seal: Literal["all", "outputs"] | None = None
    options: TextOptions = field(default_factory=lambda: NO_OPTIONS)
    tuning: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def request_of(order: JobOrder) -> "Iterator[SubmitJobs]":
    """Yield the request for a job. Rows from standard input are in a temporary file meanwhile.

    Raises CommandError if the order is invalid.
    """
    from ..node.control.messages.jobs import SubmitJobs

    if (order.prompt is None) == (order.file is None):
        raise CommandError(
            "usage", "give either a PROMPT or --file FILE", hint="`shoal job submit --help`"
        )
    if order.prompt is not None and not order.prompt.strip():
        raise CommandError("failed", "the prompt is empty", hint="`shoal job submit MODEL PROMPT`")
    more: dict[str, Any] = dict(order.options)
    if order.priority is not None:
        more["priority"] = order.priority
    deadline = 0 if order.deadline is None else time_of(order.deadline, time.time())
    with _file_of(order.file) as path:
        yield SubmitJobs(
            model=order.model,
            kind=order.kind,
            prompts=None if order.prompt is None else (order.prompt,),
            file=None if path is None else str(path.absolute()),
            deadline=deadline,
            seal=order.seal,
            **more,
        )


@contextmanager
def tuning_of(order: JobOrder) -> "Iterator[BeginTuning]":
    """Yield the request for a job of the kind `finetune`. Its output is the folder of the adapter.

    Raises CommandError if the order is invalid.
    """
    from ..node.control.messages.tuning import BeginTuning

    if order.file is None:
        raise CommandError(
            "usage", "a fine-tuning needs a file with texts", hint="`--file texts.jsonl`"
        )
    given = [key for key, value in order.options.items() if value != NO_OPTIONS.get(key)]
    wrong = [key for key in given if key != "seed"]
    if wrong or order.seal == "outputs":
        word = wrong[0] if wrong else "seal = outputs"
        raise CommandError(
            "usage", f"`{word}` is not for fine-tunings", hint="docs/jobs.md shows what is"
        )
    more = dict(order.tuning)
    if order.priority is not None:
        more["priority"] = order.priority
    with _file_of(order.file) as path:
        assert path is not None
        yield BeginTuning(
            model=order.model,
            path=str(path.absolute()),
            out=None if order.output is None else str(order.output.absolute()),
            deadline=0 if order.deadline is None else time_of(order.deadline, time.time()),
            seed=order.options["seed"],
            moves=True,
            seal=order.seal == "all",
            **more,
        )


@contextmanager
def _file_of(file: Path | None) -> Iterator[Path | None]:
    """Yield the path of a file; standard input is copied to a file first. Raises OSError if the
    file does not exist."""
    if file is None or str(file) != "-":
        if file is not None:
            file.stat()  # the command, not the daemon, says that there is no such file
        yield file
        return
    handle, name = tempfile.mkstemp(suffix=".jsonl")
    try:
        with os.fdopen(handle, "wb") as copy:
            copy.write(sys.stdin.buffer.read(defaults.JOBS_FILE_LIMIT + 1))
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)


def time_of(text: str, now: float) -> int:
    """Return a deadline in seconds since 1970: a time span from `now`, such as `90m`, or a time in
    the form of ISO 8601. Raises CommandError if it is neither."""
    text = text.strip()
    if text[-1:] in UNITS:
        with suppress(ValueError):
            span = float(text[:-1]) * UNITS[text[-1]]
            if 0 <= span < 1e9:
                return int(now + span)
    with suppress(ValueError, OverflowError, OSError):
        return max(1, int(datetime.fromisoformat(text).timestamp()))
    raise CommandError(
        "failed",
        f"`{render.safe(text, 40)}` is not a deadline",
        hint="give a time span (`90m`, `2h`, `1d`) or a time (`2026-12-01T18:00`)",
    )


def read_job_file(path: Path) -> JobOrder:
    """Return the job that a TOML file describes. Its paths are relative to the file's folder.

    Raises CommandError `bad-job-file` if it is not TOML, or has an unknown key or a wrong value.
    """
    import tomllib

    try:
        with open(path, "rb") as file:
            data = file.read(defaults.JOB_FILE_LIMIT + 1)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from None
    if len(data) > defaults.JOB_FILE_LIMIT:
        raise _bad(path, f"is larger than {render.size(defaults.JOB_FILE_LIMIT)}")
    try:
        said = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _bad(path, f"is not TOML: {error}") from None
    return _order(path, said)


def _order(path: Path, said: Mapping[str, Any]) -> JobOrder:
    for key in said:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"its keys are {', '.join(KEYS)}"
            raise _bad(path, f"has the unknown key `{render.safe(key, 40)}`", hint=hint)
    if "model" not in said:
        raise _bad(path, "names no model", hint='add a line such as `model = "tiny"`')
    values: dict[str, Any] = {key: _checked(path, key, value) for key, value in said.items()}
    if ("file" in said) == ("prompt" in said):
        wrong = "has both `file` and `prompt`" if "file" in said else "has no `file` or `prompt`"
        raise _bad(path, wrong, hint='one is expected, such as `file = "prompts.jsonl"`')
    options: Any = {**NO_OPTIONS, **{key: values[key] for key in values if key in NO_OPTIONS}}
    own = {key: values[key] for key in values if key in OWN_KEYS}
    tuning = {key: values[key] for key in values if key in TUNING_KEYS}
    if tuning and own.get("kind") != TUNING:
        first = next(iter(tuning))
        raise _bad(path, f"has the key `{first}`, which is for fine-tunings only",
                   hint=f'add `kind = "{TUNING}"`, or leave it out')  # fmt: skip
    for key in ("file", "output"):
        if key in own:
            own[key] = path.parent / own[key]
    return JobOrder(options=options, tuning=tuning, **own)


_NUMBERS = ("temperature", "top_p", "min_p", "alpha", "rate", "decay", "epochs", "held_out")
_LISTS = ("stop", "modules")
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("model", "kind", "file", "prompt", "output", "name"), (str,)),
    **dict.fromkeys(("priority", "max_tokens", "top_k", "seed"), (int,)),
    **dict.fromkeys(("rank", "warmup", "batch", "length", "steps"), (int,)),
    **dict.fromkeys(_NUMBERS, (int, float)),
    "deadline": (str, date),  # datetime is a kind of date
    "raw": (bool,),
    "seal": (bool, str),
    **dict.fromkeys(_LISTS, (list,)),
}
_WORDS: Mapping[tuple[type, ...], str] = {
    (str,): "a text in quotes",
    (int,): "a whole number",
    (int, float): "a number",
    (str, date): 'a time span such as "2h", or a time',
    (bool,): "true or false",
    (bool, str): 'true, false or "outputs"',
    (list,): 'a list of texts, such as ["…", "…"]',
}


def _shown(value: Any) -> str:
    """Return a value of a job file in the form that it has there, cut off if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return render.safe(repr(value), 40)
    words: Mapping[type, str] = {list: "a list", dict: "a table"}
    return words.get(type(value), "a time")


def _checked(path: Path, key: str, value: Any) -> Any:
    """Return a value of a job file. Raises CommandError if it is of a wrong type; the daemon checks
    its bounds."""
    wanted, checked = _TYPES[key], value
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise _bad(
            path, f"has a wrong value of `{key}`: expected {_WORDS[wanted]}, got {_shown(value)}"
        )
    if key in _LISTS:
        if not all(isinstance(each, str) for each in checked):
            raise _bad(path, f"has a wrong value of `{key}`: expected a list of texts")
        return tuple(checked)
    if key == "seal":
        return _seal(path, value)
    if isinstance(value, date):
        return value.isoformat()
    return float(checked) if key in _NUMBERS else checked


def _seal(path: Path, value: Any) -> Literal["all", "outputs"] | None:
    """Return what to seal: `all`, `outputs` or None."""
    if isinstance(value, bool):
        return "all" if value else None
    if value == "outputs":
        return "outputs"
    raise _bad(path, f"has a wrong value of `seal`: expected {_WORDS[bool, str]}, got "
               f"{_shown(value)}")  # fmt: skip


def _bad(path: Path, what: str, *, hint: str = "docs/jobs.md shows a job file") -> CommandError:
    return CommandError("bad-job-file", f"`{path}` {what}", hint=hint)
