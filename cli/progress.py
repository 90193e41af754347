"""Shows progress on standard error: with rich on a terminal, as plain lines elsewhere."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import defaults, render

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status


JOB_BAR = 20  # characters of a progress bar of a job
WIDE = 72  # columns that a terminal needs for a bar beside the figures


class ProgressDisplay(ABC):
    """Something that is shown on standard error within a `with` block."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def open(self) -> None:
        """Show it, without content yet."""

    @abstractmethod
    def close(self) -> None:
        """Remove it from the screen."""


class Bar(ProgressDisplay):
    """Progress bar that counts the bytes of one step after another. It shows nothing if standard
    error is not a terminal."""

    def __init__(self, *labels: str) -> None:
        """`labels` are those of the steps. Further steps have the last one."""
        self._label, *self._next = labels
        self._done = 0
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def open(self) -> None:
        if sys.stderr.isatty():
            self._progress = _bar_on_terminal()
            self._task = self._progress.add_task(self._label, total=None)
            self._progress.start()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, total: int) -> None:
        """Set the progress to `done` of `total` bytes. Fewer bytes than before are those of the
        next step."""
        if self._progress is not None and self._task is not None:
            if done < self._done:
                self._label = self._next.pop(0) if self._next else self._label
                self._progress.reset(self._task, description=self._label)
            self._progress.update(self._task, completed=done, total=total)
        self._done = done


def _bar_on_terminal() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    console = Console(stderr=True)
    wide = console.width >= WIDE

    class SizeColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(sizes(task.completed, task.total, task.speed if wide else None))

    columns = [
        TextColumn("{task.description}"),
        TaskProgressColumn(),
        SizeColumn(Column(no_wrap=True)),
    ]
    if wide:
        columns.insert(1, BarColumn(bar_width=None))
        columns.append(TimeRemainingColumn(compact=True))
    return Progress(
        *columns,
        console=console,
        transient=True,
        expand=True,
        redirect_stdout=sys.stdout.isatty(),  # otherwise piped output would go to the terminal
    )


def sizes(done: float, total: float | None, speed: float | None) -> str:
    """Format progress as `43.1 of 196.1 MiB, 7.4 MiB/s`. Returns "" if the total is unknown."""
    if total is None:
        return ""
    rate = f", {render.size(speed)}/s" if speed is not None else ""
    return f"{render.size(done)} of {render.size(total)}{rate}"


class WaitingStatus(ProgressDisplay):
    """Shows what the command waits for: as one changing line on a terminal, and elsewhere as a line
    for each change."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._shown: Sequence[str] = ()

    def open(self) -> None:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")
            self._status.start()

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, *words: str) -> None:
        """Show the current state. Each text describes one of the things that the command waits
        for."""
        shown = [render.safe(word, 100) for word in words]
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(" · ".join(shown)))
        else:
            for word in shown:
                if word not in self._shown:
                    print(word, file=sys.stderr, flush=True)
        self._shown = shown


class JobProgressDisplay(ProgressDisplay):
    """Shows the progress of jobs: as one changing line on a terminal, and elsewhere as one line
    every JOBS_PROGRESS_PAUSE seconds."""

    def __init__(self) -> None:
        self._waiting: WaitingStatus | None = None
        self._said = time.monotonic()

    def open(self) -> None:
        self._waiting = WaitingStatus()
        self._waiting.open()

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()

    def show(self, done: int, total: int, failed: int) -> None:
        """Show that `done` of `total` results have arrived, `failed` of which are errors."""
        pause = 0.0 if sys.stderr.isatty() else defaults.JOBS_PROGRESS_PAUSE
        if self._waiting is None or done == total or time.monotonic() - self._said < pause:
            return
        self._said = time.monotonic()
        self._waiting.show(results_done(done, total, failed))

    def show_rows(self, done: int, rows: int, failed: int) -> None:
        """Show that `done` of the `rows` rows of a job are done, `failed` of which are errors."""
        pause = 0.0 if sys.stderr.isatty() else defaults.JOBS_PROGRESS_PAUSE
        if self._waiting is None or rows == 1 or time.monotonic() - self._said < pause:
            return
        self._said = time.monotonic()
        self._waiting.show(rows_bar(done, rows, failed))

    def say(self, what: str) -> None:
        """Show a sentence immediately."""
        if self._waiting is not None:
            self._waiting.show(what)


def results_done(done: int, total: int, failed: int) -> str:
    """Format the numbers of results as text: `412 of 1000 results, 3 failed`."""
    return f"{done} of {render.count(total, 'result')}" + (f", {failed} failed" if failed else "")


def rows_bar(done: int, rows: int, failed: int) -> str:
    """Format the progress of a job: `[######..............] 30 %, 300 of 1000 rows, 3 failed`."""
    full = JOB_BAR * done // max(1, rows)
    share = f"[{'#' * full}{'.' * (JOB_BAR - full)}] {100 * done // max(1, rows)} %"
    return f"{share}, {done} of {rows} rows" + (f", {failed} failed" if failed else "")
