"""One run of a scenario from the command line: its folder, its progress, its words for a person."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from . import render
from .errors import CommandError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..netsim.scenario.result import Result
    from ..netsim.scenario.run import Run
    from ..netsim.scenario.tables import Scenario

SCENARIO, RESULT, TRACE, REPORT = "scenario.toml", "run.json", "trace.msgpack", "report.html"
BULKY = ("samples", "series", "deeds")  # of a result: for plots, not for eyes
SHOWN_EVERY = 0.1  # seconds of real time


def read_scenario(path: Path, hosts: int | None = None) -> "Scenario":
    """A scenario's file, checked. Raises CommandError with its line."""
    from ..netsim.errors import BadScenario
    from ..netsim.scenario.parse import parse

    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise CommandError(
            "bad-scenario", f"{path}:{line}: this is no UTF-8 text", hint="save it as UTF-8"
        ) from None
    except FileNotFoundError:
        raise CommandError(
            "bad-scenario", f"there is no file `{path}`",
            hint="examples/scenarios/ has some; `shoal sim run --help` shows an example",
        ) from None  # fmt: skip
    except IsADirectoryError:
        raise CommandError(
            "bad-scenario", f"`{path}` is a folder", hint=f"`shoal sim replay {path}` repeats a run"
        ) from None
    try:
        return parse(text, hosts=hosts)
    except BadScenario as error:
        raise refused(path, error) from None


def refused(path: Path, error: Any) -> CommandError:
    """What is wrong with a scenario, with its line."""
    where = f"{path}:{error.line}" if error.line else str(path)
    hint = error.hint or "docs/spec/scenario.md says what a scenario can hold"
    return CommandError("bad-scenario", f"{where}: {error.message}", hint=hint)


def versions() -> dict[str, str]:
    """What a repetition has to have alike."""
    import cryptography
    import trio

    return {
        "shoal": __version__,
        "python": sys.version.split()[0],
        "trio": trio.__version__,
        "cryptography": cryptography.__version__,
    }


class VirtualTime:
    """How far a run is: a changing line on a terminal, else nothing."""

    def __init__(self, duration: float) -> None:
        self._duration = duration
        self._began = time.monotonic()
        self._shown = 0.0
        self._progress: Progress | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        """For the time of a run."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("virtual"), BarColumn(), TextColumn("{task.description}")
        console = Console(stderr=True)
        # Drawn when told: a thread would draw it while a simulation runs.
        self._progress = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._task = self._progress.add_task("", total=self._duration)
        with self._progress:
            yield

    def __call__(self, virtual: float) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._shown < SHOWN_EVERY:
            return
        self._shown = now
        words = figures_of_time(virtual, now - self._began)
        self._progress.update(self._task, completed=virtual, description=words)
        self._progress.refresh()


def figures_of_time(virtual: float, real: float) -> str:
    """`virtual 60.0 s, real 1.2 s, 50 times as fast`."""
    ratio = f", {virtual / real:.3g} times as fast" if real > 0 else ""
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
    """Run in this process. `after(result)` is called with what there is, however it ends."""
    from ..netsim.errors import BadScenario, SimError
    from ..netsim.scenario.run import Run

    shown = VirtualTime(scenario.sim.duration if until is None else until)
    file = open(trace, "wb") if trace is not None else None  # noqa: SIM115  closed below
    run: Run | None = None
    try:
        run = Run(
            scenario, seed, trace_file=file, progress=shown, clock=time.perf_counter, until=until
        )
        with shown.showing():
            run.go()
        return _finished(run, after)
    except BadScenario as error:
        raise refused(path, error) from None
    except SimError as error:
        _ended(run, f"failed: {error}", after)
        message, _, hint = str(error).partition("\nhint: ")
        raise CommandError("failed", message, hint=hint or _repeat(path, seed)) from None
    except BaseException as error:
        _ended(run, "interrupted" if _is_interrupt(error) else f"failed: {error!r}", after)
        raise
    finally:
        if file is not None:
            file.close()


def _repeat(path: Path, seed: int) -> str:
    return f"`shoal sim run {path} --seed {seed} --trace` repeats it and keeps every packet"


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
    """Keep what a run that was cut short has found."""
    if run is not None and after is not None:
        result = run.result()
        result.versions = versions()
        result.ended = why
        after(result)


class RunFolder:
    """What a run leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def trace(self) -> Path:
        return self.path / TRACE

    def make(self, scenario: "Scenario") -> None:
        """An empty run folder; an older run's in its place is replaced, nothing else is."""
        if self.path.exists():
            if not self.path.is_dir() or (
                any(self.path.iterdir()) and not (self.path / SCENARIO).exists()
            ):
                raise CommandError(
                    "failed", f"`{self.path}` is there and is no run folder",
                    hint="choose another with `--out DIR`",
                )  # fmt: skip
            for name in (RESULT, TRACE, REPORT):
                (self.path / name).unlink(missing_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / SCENARIO, scenario.text)

    def write(self, result: "Result", more: dict[str, Any]) -> None:
        """run.json, whole or not at all."""
        write_text(self.path / RESULT, json.dumps(asdict(result) | more, indent=1) + "\n")

    def report(self, result: "Result") -> Path:
        """report.html beside it."""
        from ..netsim.report.page import page

        write_text(self.path / REPORT, page(asdict(result)))
        return self.path / REPORT

    def read(self) -> tuple["Result", dict[str, Any]]:
        """The result, and what else run.json holds. Raises CommandError."""
        from ..netsim.scenario.result import Result

        path = self.path / RESULT
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            more = {name: data.pop(name, None) for name in ("hosts_given", "backend")}
            return Result.from_json(data), more
        except FileNotFoundError:
            raise CommandError(
                "failed", f"`{self.path}` is no run folder: it has no {RESULT}",
                hint="`shoal sim run FILE --out DIR` makes one",
            ) from None  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CommandError(
                "failed", f"`{path}` is damaged, or of another version",
                hint="`shoal sim run` again makes a new one",
            ) from None  # fmt: skip


def write_text(path: Path, text: str) -> None:
    """A file whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def print_result(result: "Result") -> None:
    """Figures and verdicts for a person."""
    import click

    click.echo(f"{render.safe(result.name)}, seed {result.seed}: "
               + figures_of_time(result.virtual, result.real))  # fmt: skip
    click.echo(f"{result.records} records, digest {result.digest}\n")
    rows = [(name, _value(value)) for name, value in result.metrics.items()]
    click.echo(render.fields(rows))
    if result.verdicts:
        click.echo()
    for verdict in result.verdicts:
        word, colour = ("met", "green") if verdict.met else ("failed", "red")
        found = "never" if verdict.found is None else f"{verdict.found:.4g}"
        click.echo(
            f"{render.coloured(f'{word:<6}', colour, sys.stdout)}  {verdict.text}  ({found})"
        )


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    keys = ("count", "p5", "p50", "p95", "max") if "p50" in value else tuple(value)
    return "  ".join(f"{key} {_value(value[key])}" for key in keys if key in value) or "none"


def as_json(result: "Result") -> dict[str, Any]:
    """A result without what only plots need."""
    return {name: value for name, value in asdict(result).items() if name not in BULKY}
