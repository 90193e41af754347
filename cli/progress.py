"""Progress for a person: rich on a terminal, plain lines elsewhere. Always on standard error."""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import render

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status


WIDE = 72  # columns of a terminal where a bar fits beside the figures


class Bar:
    """Progress bar in bytes. Silent if standard error is not a terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Start to show the bar."""
        if sys.stderr.isatty():
            self._progress = _bar_on_terminal()
            self._task = self._progress.add_task(self._label, total=None)
            self._progress.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, total: int) -> None:
        """Show `done` bytes of `total`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)


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

    class Sizes(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(sizes(task.completed, task.total, task.speed if wide else None))

    columns = [TextColumn("{task.description}"), TaskProgressColumn(), Sizes(Column(no_wrap=True))]
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
    """Format `43.1 of 196.1 MiB, 7.4 MiB/s`; empty if the total is unknown."""
    if total is None:
        return ""
    rate = f", {render.size(speed)}/s" if speed is not None else ""
    return f"{render.size(done)} of {render.size(total)}{rate}"


class Waiting:
    """Status while waiting: one changing line on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._shown: Sequence[str] = ()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, *words: str) -> None:
        """Show the current state, one text for each thing that is waited for."""
        shown = [render.safe(word, 100) for word in words]
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(" · ".join(shown)))
        else:
            for word in shown:
                if word not in self._shown:
                    print(word, file=sys.stderr, flush=True)
        self._shown = shown
