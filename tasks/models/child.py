"""Converting process: `python -m shoal.tasks.models.child FD FOLDER KIND SOURCE OPTIONS…`.

Reads a model file, writes it as a Hugging Face folder below FOLDER, and reports on the socket FD.
The files are untrusted: its memory is limited, and nothing in them is executed. It owns the folder
that it writes: it keeps it until the daemon hangs up, and then removes it. If the daemon hangs up
earlier, it stops.
"""

import argparse
import fcntl
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ...dht.errors import ModelError
from ...transport.errors import ShoalError
from .frames import IMPORTED, NOTES, ConversionProgress, framed

MEMORY: Final = 6 << 30  # bytes of address space
PROGRESS_S: Final = 0.1  # seconds between two reports
_TEXT: Final = 2000  # characters of a text in a report
_LOCK: Final = ".lock"


class HungUp(BaseException):
    """The daemon has closed the socket."""


class Reports:
    """Sends reports to the daemon. Raises HungUp where it has closed the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._last = 0.0

    def progress(self, done: int, total: int) -> None:
        """Report progress, at most every PROGRESS_S seconds."""
        if (now := time.monotonic()) - self._last >= PROGRESS_S or done == total:
            self._last = now
            self.send(ConversionProgress("progress", done, total))

    def send(self, message: ConversionProgress) -> None:
        try:
            self._connection.sendall(framed(message))
        except OSError:
            raise HungUp from None


def main() -> int:
    """Convert, report, wait until the daemon hangs up, and return the exit status."""
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides when to end
    signal.signal(signal.SIGTERM, _stop)
    with suppress(ValueError, OSError):  # macOS has no limit for address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with socket.socket(fileno=arguments.descriptor) as connection, suppress(HungUp):
        imported = threading.Event()
        threading.Thread(target=_watch, args=(connection, imported), daemon=True).start()
        with _own_folder(arguments.folder) as folder:
            reports = Reports(connection)
            outcome = _outcome(arguments, folder, reports)
            try:  # the daemon may hang up as soon as it has the outcome
                reports.send(outcome)
                while True:
                    signal.pause()
            finally:
                if imported.is_set():  # a download stays otherwise, so that it can continue
                    _remove_downloads(arguments.folder)
    return 0


def _remove_downloads(folder: Path) -> None:
    from .hub import remove_downloads  # late, because most conversions need no HTTP

    remove_downloads(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shoal.tasks.models.child")
    parser.add_argument("descriptor", type=int, help="a connected Unix socket")
    parser.add_argument("folder", type=Path, help="where the converted model is written")
    parser.add_argument("kind", help="what the source is")
    parser.add_argument("source", help="a path, a root or a name")
    parser.add_argument("options", nargs="*")
    return parser.parse_args()


def _stop(_number: int, _frame: object) -> None:
    raise HungUp


def _watch(connection: socket.socket, imported: threading.Event) -> None:
    """Interrupt the main thread when the daemon hangs up, whatever it waits for."""
    with suppress(OSError):
        while data := connection.recv(1):
            if data == IMPORTED:
                imported.set()
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """Create a folder that is removed at the end, and remove those that killed processes left.

    A folder whose lock file is locked belongs to a process that runs.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in parent.iterdir():
        with suppress(OSError), open(left / _LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as name:
        with open(Path(name) / _LOCK, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            folder = Path(name) / "model"
            folder.mkdir()
            yield folder


def _outcome(arguments: argparse.Namespace, folder: Path, reports: Reports) -> ConversionProgress:
    """Convert the source, and return the report of success or failure."""
    from .kinds import KINDS

    try:
        name, notes = KINDS[arguments.kind](arguments, folder, reports.progress)
        return ConversionProgress(
            "done", notes=tuple(map(_clean, notes[:NOTES])), name=_clean(str(name))
        )
    except ModelError as error:
        return _failed(error.code, error.message, error.hint)
    except ShoalError as error:
        return _failed(getattr(error, "code", "bad-model"), error.message, error.hint)
    except MemoryError:
        hint = "end other programs, or convert it on a machine with more memory"
        return _failed("too-large", "converting the model takes too much memory", hint)
    except Exception as error:  # noqa: BLE001  (the only place: it processes untrusted files)
        what = f"{type(error).__name__}: {error}"
        hint = "download it again; if the error stays, its publisher made a mistake"
        return _failed("bad-model", f"the model cannot be converted: {what}", hint)


def _failed(code: str, message: str, hint: str | None) -> ConversionProgress:
    return ConversionProgress("failed", code=code, message=_clean(message), hint=_clean(hint or ""))


def _clean(text: str) -> str:
    """Return a text that is safe to print, of limited length."""
    return "".join(c if c.isprintable() else "?" for c in text[:_TEXT])


if __name__ == "__main__":
    sys.exit(main())
