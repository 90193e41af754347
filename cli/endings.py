"""Handles the signals that end a command: Ctrl-C, SIGTERM, and a closed terminal."""

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heeded() -> tuple[signal.Signals, ...]:
    """Return the signals that this process handles: all that end a command, except SIGHUP under
    `nohup`.

    A shell without job control makes its background commands ignore SIGINT as well. A program that
    has to clean up must not ignore SIGINT, so it is handled even then.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return ENDINGS[:2] if ignored else ENDINGS


@contextmanager
def endings_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on each signal that ends a command, so that `with` blocks clean up as
    after Ctrl-C.

    Of SIGTERM and SIGHUP, only the first one counts. A closed terminal sends SIGHUP several times,
    and the second one would interrupt the clean-up.
    """
    before = {number: signal.getsignal(number) for number in ENDINGS}

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in heeded()[1:]:
            signal.signal(number, lambda _number, _frame: None)
        signal.raise_signal(signal.SIGINT)  # trio may have a handler, and knows when it may raise

    for number in heeded():
        of_python = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if of_python else interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminal(io.FileIO):
    """An open terminal. Once it has been closed, output to it is discarded.

    Without this, the first line that a command prints while it shuts down would fail with EIO.
    """

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            discard(self.fileno())
            return memoryview(data).nbytes


def outlive_terminal() -> None:
    """Replace standard output and standard error by a `Terminal` each, if they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            raw = Terminal(stream.fileno(), "w", closefd=False)
            buffered = io.BufferedWriter(raw)
            text = io.TextIOWrapper(buffered, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, text)


def discard(descriptor: int) -> None:
    """Discard all further output to this file descriptor."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
