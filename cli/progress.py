"""Progress for a person: rich on a terminal, plain lines elsewhere. Always on standard error."""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import render

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status


class Bar:
    """Bytes done of a total. Silent where standard error is no terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._progress = _bar_on_terminal()
            self._task = self._progress.add_task(self._label, total=None)
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, total: int) -> None:
        """`done` bytes of `total`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)


def _bar_on_terminal() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class Waiting:
    """What is being waited for: one changing line on a terminal, else a line for each change."""

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
        """Where each of several things stands now."""
        shown = [render.safe(word, 100) for word in words]
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(" · ".join(shown)))
        else:
            for word in shown:
                if word not in self._shown:
                    print(word, file=sys.stderr, flush=True)
        self._shown = shown
