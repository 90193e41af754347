"""Several real daemons on this machine, as child processes that never outlive their purpose.

Each child watches a pipe whose other end only this process holds: when this process ends, by
whatever signal, the pipe closes and the child stops by itself (`shoal node --parent-fd`).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import defaults
from .client import request
from .endings import ENDINGS
from .errors import CommandError
from .lifecycle import DEMO_FILE, STAY


class LocalNode:
    """One daemon: its data folder, its process, our end of its pipe."""

    def __init__(self, number: int, folder: Path, args: Sequence[str]) -> None:
        self.number = number
        self.data = folder / f"node-{number}"
        self._log = folder / f"node-{number}.log"
        theirs, self._pipe = os.pipe()
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "shoal.cli.main", "node", "--data", str(self.data),
                     "--parent-fd", str(theirs), *args],  # -P: nothing here is imported
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs,),
                    start_new_session=True,  # Ctrl-C is ours to handle, for all of them
                )  # fmt: skip
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check_running(self, patience: float = 0.0) -> None:
        """Raises CommandError, with the node's last words, when its process has ended.

        It is given `patience` seconds to end.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
            raise CommandError(
                "failed",
                f"node {self.number} ended: {self.last_words()}",
                hint="run `shoal node` by itself to see what it says",
            )

    def status(self) -> dict[str, Any] | None:
        """The node's status; None while it does not answer yet. Raises when it has ended."""
        self.check_running()
        try:
            return request(self.data, "status")
        except CommandError as error:
            if error.code != "not-running":
                raise
            return None

    def last_words(self) -> str:
        """The error line of its output, or the last line."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        told = [line for line in lines if line.startswith("error: ")]
        return (told or lines or ["it said nothing"])[-1].removeprefix("error: ")

    def leave_running(self) -> None:
        """From now on it lives until it is stopped by command."""
        os.write(self._pipe, STAY)
        self._close_pipe()

    def ask_to_stop(self) -> None:
        """Close the pipe: the node stops by itself."""
        self._close_pipe()

    def wait_stopped(self, deadline: float) -> None:
        """Wait until monotonic `deadline`, then kill the process and its children."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


class LocalSwarm:
    """The daemons and their folder; a context manager that leaves nothing behind."""

    def __init__(self) -> None:
        self.nodes: list[LocalNode] = []
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
        self._kept = False

    def __enter__(self) -> "LocalSwarm":
        return self

    def start(self, args: Sequence[str]) -> LocalNode:
        """Start one more daemon with these arguments. Ctrl-C waits until the swarm knows it, and
        so can stop it."""
        with _undisturbed(later=True):
            node = LocalNode(len(self.nodes) + 1, self.folder, args)
            self.nodes.append(node)
        return node

    def wait_for(
        self, ready: Callable[[list[dict[str, Any] | None]], bool],
        show: Callable[[list[dict[str, Any] | None]], None], deadline: float,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Poll all nodes until `ready` says so; raises CommandError at monotonic `deadline`."""
        while True:
            found = [node.status() for node in self.nodes]
            show(found)
            if ready(found):
                return [status for status in found if status is not None]
            if time.monotonic() > deadline:
                raise CommandError(
                    "failed",
                    f"the daemons were not ready in time: {_behind(found)}",
                    hint="the machine may be busy: try again, or with `--nodes 2`",
                )
            time.sleep(defaults.POLL)

    @contextmanager
    def ends_explained(self) -> Iterator[None]:
        """A command that fails because a daemon ended is told what that daemon said."""
        try:
            yield
        except CommandError as error:
            for node in self.nodes:
                node.check_running(1.0 if error.code == "not-running" else 0.0)
            raise

    def keep(self) -> None:
        """Leave the daemons and their folder to the user; `shoal stop` ends them."""
        names = [node.data.name for node in self.nodes]
        (self.folder / DEMO_FILE).write_text(json.dumps({"nodes": names}))
        for node in self.nodes:
            node.leave_running()
        self._kept = True

    def __exit__(self, *_error: object) -> None:
        if self._kept:
            return
        with _undisturbed():
            for node in self.nodes:
                node.ask_to_stop()
            deadline = time.monotonic() + defaults.DEMO_STOP_TIMEOUT
            for node in self.nodes:
                node.wait_stopped(deadline)
            self._remove_folder()

    def _remove_folder(self) -> None:
        """Again where a process that is just ending still puts something into it."""
        deadline = time.monotonic() + defaults.DEMO_STOP_TIMEOUT
        shutil.rmtree(self.folder, ignore_errors=True)
        while self.folder.exists() and time.monotonic() < deadline:
            time.sleep(defaults.POLL)
            shutil.rmtree(self.folder, ignore_errors=True)


def _behind(found: list[dict[str, Any] | None]) -> str:
    """What the first node that does not serve says of itself."""
    for number, status in enumerate(found, 1):
        if status is None:
            return f"node {number} does not answer"
        if status["serving"]["phase"] != "serving":
            return f"node {number}: {status['serving']['state']}"
    return "they do not all know each other"


@contextmanager
def _undisturbed(*, later: bool = False) -> Iterator[None]:
    """Ctrl-C does not interrupt what is done here, which is bounded in time.

    The first one counts `later`, at the end, or never.
    """
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in ENDINGS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came and later:
        signal.raise_signal(came[0])
