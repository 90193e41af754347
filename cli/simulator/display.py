"""Shows the progress of simulations on standard error, and converts their errors into errors of
commands."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from ...netsim.errors import BadScenario, CannotSimulate, SimError
from ..errors import CommandError
from .words import figures_of_time

if TYPE_CHECKING:
    from rich.progress import Progress

SHOWN_EVERY: Final = 0.1  # seconds of real time between two updates of the progress


@contextmanager
def command_errors() -> Iterator[None]:
    """Convert each error of the simulator that the block raises into a CommandError."""
    try:
        yield
    except SimError as error:
        code = "failed"
        if isinstance(error, BadScenario | CannotSimulate):
            code = "bad-scenario" if isinstance(error, BadScenario) else "cannot-simulate"
        message, _, hint = error.message.partition("\nhint: ")
        raise CommandError(code, message, hint=error.hint or hint or None) from None


class TerminalDisplay:
    """Display of a run on the terminal of the command; implements `netsim.runs.execute.Display`."""

    def note(self, text: str) -> None:
        click.echo(text, err=True)

    @contextmanager
    def progress(self, seconds: float, what: str) -> Iterator[Callable[[float], None]]:
        shown = RunTime(seconds, what)
        with shown.showing():
            yield shown

    def step(self, text: str) -> None:
        """Print a line, if standard error is a terminal. Programs that read the output do not need
        it."""
        if sys.stderr.isatty():
            click.echo(text, err=True)


class RunTime:
    """Progress of a run, shown as one changing line on a terminal, and not at all elsewhere."""

    def __init__(self, seconds: float, what: str = "virtual") -> None:
        self._what = what
        self._seconds = seconds
        self._began = time.monotonic()
        self._shown = 0.0
        self._progress: Progress | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the progress until the end of the block."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn(self._what), BarColumn(), TextColumn("{task.description}")
        console = Console(stderr=True)
        # The display is refreshed explicitly, so that no thread draws it while a simulation runs.
        self._progress = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._task = self._progress.add_task("", total=self._seconds)
        with self._progress:
            yield

    def __call__(self, passed: float) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._shown < SHOWN_EVERY:
            return
        self._shown = now
        real = self._what == "real"
        words = f"{passed:.1f} s" if real else figures_of_time(passed, now - self._began)
        self._progress.update(self._task, completed=passed, description=words)
        self._progress.refresh()
