"""Runs a scenario from the command line: reads its file, shows progress and prints the result."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ... import __version__
from .. import render
from ..errors import CommandError
from .folder import RESULT, unwritable

if TYPE_CHECKING:
    from rich.progress import Progress

    from ...netsim.scenario.format.tables import Scenario
    from ...netsim.scenario.result import Result
    from ...netsim.scenario.run import Run

BULKY = ("samples", "series", "deeds")  # fields of a result that only plots need
SHOWN_EVERY = 0.1  # seconds of real time
MOST_BYTES_BESIDE = 32 << 20  # bytes of a file that a scenario names


def read_scenario(path: Path, hosts: int | None = None) -> "Scenario":
    """Read and check a scenario's file. Raises CommandError with the line."""
    from ...netsim.errors import BadScenario
    from ...netsim.scenario.format.parse import parse
    from ...netsim.scenario.format.source import MOST_BYTES

    text = read_text(path, MOST_BYTES)

    def beside(name: str) -> str:
        file = path.parent / name
        if file.resolve().parent != path.parent.resolve():
            raise BadScenario(
                f"`{file}` is outside the scenario's folder", hint="copy the file into it"
            )
        try:
            return read_text(file, MOST_BYTES_BESIDE)
        except CommandError as error:  # add the line of the scenario
            hint = (error.hint or "") if file.exists() else "put it next to the scenario"
            raise BadScenario(error.message, hint=hint) from None

    try:
        return parse(text, hosts=hosts, beside=beside)
    except BadScenario as error:
        raise refused(path, error) from None


def read_text(path: Path, most: int) -> str:
    """Read a UTF-8 file that a person names. Raises CommandError; never waits for a pipe."""
    if path.is_dir():
        hint = "give a file in it"
        if (path / RESULT).is_file():
            hint = f"`shoal sim replay {path}` repeats a run"
        raise CommandError("bad-scenario", f"`{path}` is a folder", hint=hint)
    if not path.exists():
        raise CommandError(
            "bad-scenario", f"there is no file `{path}`",
            hint="examples/scenarios/ has some; `shoal sim run --help` shows an example",
        )  # fmt: skip
    if not path.is_file():
        raise CommandError("bad-scenario", f"`{path}` is not a regular file", hint="save it as one")
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except PermissionError:
        hint = "check its owner and its mode"
        raise CommandError("bad-scenario", f"`{path}` cannot be read", hint=hint) from None
    if len(data) > most:
        raise CommandError(
            "bad-scenario", f"`{path}` is larger than {most >> 20} MiB",
            hint="`count` of a [[host]] makes many hosts of one table",
        )  # fmt: skip
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CommandError(
            "bad-scenario", f"{path}:{line}: this is not UTF-8 text", hint="save it as UTF-8"
        ) from None


def refused(path: Path, error: Any) -> CommandError:
    """Return the error for a mistake in a scenario, with its line."""
    where = f"{path}:{error.line}" if error.line else str(path)
    hint = error.hint or "docs/spec/scenario.md describes scenario files"
    return CommandError("bad-scenario", f"{where}: {error.message}", hint=hint)


def versions() -> dict[str, str]:
    """Return the versions that must agree for a run to be repeatable."""
    import cryptography
    import trio

    return {
        "shoal": __version__,
        "python": sys.version.split()[0],
        "trio": trio.__version__,
        "cryptography": cryptography.__version__,
    }


class VirtualTime:
    """Progress of a run as a changing line on a terminal; silent elsewhere."""

    def __init__(self, duration: float, what: str = "virtual") -> None:
        self._what = what
        self._duration = duration
        self._began = time.monotonic()
        self._shown = 0.0
        self._progress: Progress | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the progress while the block runs."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn(self._what), BarColumn(), TextColumn("{task.description}")
        console = Console(stderr=True)
        # Refreshed explicitly: a thread would draw it while a simulation runs.
        self._progress = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._task = self._progress.add_task("", total=self._duration)
        with self._progress:
            yield

    def __call__(self, virtual: float) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._shown < SHOWN_EVERY:
            return
        self._shown = now
        real = self._what == "real"
        words = f"{virtual:.1f} s" if real else figures_of_time(virtual, now - self._began)
        self._progress.update(self._task, completed=virtual, description=words)
        self._progress.refresh()


def figures_of_time(virtual: float, real: float) -> str:
    """Format times: `virtual 60.0 s, real 1.2 s, 50 times as fast`."""
    fast = virtual / real if real > 0 else 0.0
    ratio = f", {f'{fast:,.0f}' if fast >= 100 else f'{fast:.3g}'} times as fast" if fast else ""
    return f"virtual {virtual:.1f} s, real {real:.1f} s{ratio}"


def run_here(
    scenario: "Scenario",
    path: Path,
    seed: int,
    *,
    trace: Path | None = None,
    until: float | None = None,
    after: "Any" = None,
) -> "Result":
    """Run in this process. Calls `after(result)` with the result so far, however the run ends."""
    from ...netsim.errors import BadScenario, SimError
    from ...netsim.scenario.run import Run

    shown = VirtualTime(scenario.sim.duration if until is None else until)
    file = None if trace is None else _TraceFile(trace)
    run: Run | None = None
    try:
        run = Run(
            scenario, seed, trace_file=cast("Any", file), clock=time.perf_counter, until=until,
            progress=shown if file is None else file.checking(shown),
        )  # fmt: skip
        with shown.showing():
            run.go()
        if file is not None:
            file.check()
        return _finished(run, after)
    except BadScenario as error:
        raise refused(path, error) from None
    except SimError as error:
        _ended(run, f"failed: {error}", after)
        message, _, hint = str(error).partition("\nhint: ")
        raise CommandError("failed", message, hint=hint or _repeat(path, seed)) from None
    except BaseException as error:
        cause = _cause(error)
        _ended(run, "interrupted" if _is_interrupt(error) else f"failed: {cause}", after)
        raise
    finally:
        if file is not None:
            file.close()


class _TraceFile:
    """A trace on disk. Errors are raised between two samples, where a run can end cleanly, and not
    in the middle of a packet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._error: OSError | None = None

    def write(self, data: bytes) -> None:
        """Write data. Never raises; after an error, further data is dropped."""
        if self._error is None:
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                self._error = error

    def check(self) -> None:
        """Raise CommandError if a write has failed."""
        if self._error is not None:
            raise unwritable(self._path, self._error)

    def checking(self, shown: Callable[[float], None]) -> Callable[[float], None]:
        """Return a progress callback that calls `shown` and checks this file."""

        def look(now: float) -> None:
            self.check()
            shown(now)

        return look

    def close(self) -> None:
        self._file.close()


def _repeat(path: Path, seed: int) -> str:
    return f"`shoal sim run {path} --seed {seed} --trace` repeats it and keeps every packet"


def _cause(error: BaseException) -> str:
    """Describe the innermost error of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.message if isinstance(error, CommandError) else repr(error)


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _finished(run: "Run", after: Any) -> "Result":
    result = run.result()
    result.versions = versions()
    if after is not None:
        after(result)
    return result


def _ended(run: "Run | None", why: str, after: Any) -> None:
    """Store the result of a run that was interrupted or failed."""
    if run is not None and after is not None:
        result = run.result()
        result.versions = versions()
        result.ended = why
        after(result)


def print_result(result: "Result") -> None:
    """Print figures and verdicts for a person."""
    import click

    name = render.safe(result.name)
    if result.digest:
        times = figures_of_time(result.virtual, result.real)
        click.echo(f"{name}, seed {result.seed}: {times}")
        click.echo(f"{result.records} records, digest {result.digest}\n")
    else:
        click.echo(f"{name}: {result.real:.1f} s in this machine's kernel\n")
    rows = [(name, _value(name, value)) for name, value in result.metrics.items()]
    click.echo(render.fields(rows))
    if result.verdicts:
        click.echo()
    for verdict in result.verdicts:
        word, colour = ("met", "green") if verdict.met else ("failed", "red")
        marked = render.coloured(f"{word:<6}", colour, sys.stdout)
        click.echo(f"{marked}  {verdict.text}  ({verdict.shown})")


def _value(name: str, value: Any) -> str:
    from ...netsim.scenario.format.metrics import shown

    if not isinstance(value, dict):
        return shown(name, value)
    keys = tuple(value) if name == "drops" else ("count", "p5", "p50", "p95", "max")
    found = [f"{key} {shown(f'{name}.{key}', value[key])}" for key in keys if key in value]
    return "  ".join(found) or "none"


def as_json(result: "Result") -> dict[str, Any]:
    """Return a result without the fields that only plots need."""
    return {name: value for name, value in asdict(result).items() if name not in BULKY}
