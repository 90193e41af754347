"""Runs several real daemons on this machine, as child processes that end with this process.

Each child watches a pipe whose other end only this process has. However this process ends, the pipe
then closes and the child stops by itself (`shoal node --parent-fd`).
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
from typing import TYPE_CHECKING

from . import defaults
from .client import request
from .endings import ENDINGS
from .errors import CommandError
from .lifecycle import DEMO_FILE, STAY

if TYPE_CHECKING:
    from ..node.control.messages.node import Status


class LocalNode:
    """One daemon: its data folder, its process, and the parent's end of its pipe."""

    def __init__(self, number: int, folder: Path, args: Sequence[str]) -> None:
        self.number = number
        self.data = folder / f"node-{number}"
        self._log = folder / f"node-{number}.log"
        theirs, self._pipe = os.pipe()
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "shoal.cli.main", "node", "--data", str(self.data),
                     "--parent-fd", str(theirs), "--api", "no",  # only one could have the port
                     "--no-measure",  # they would disturb each other
                     *args],  # -P: do not import from this folder
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs,),
                    start_new_session=True,  # this process handles Ctrl-C for all of them
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
        """Raise CommandError if the node's process has ended. The message has the end of its
        output.

        Waits up to `patience` seconds for the process to end.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
            raise CommandError(
                "failed",
                f"node {self.number} ended: {self.last_words()}",
                hint="run `shoal node` by itself to see its output",
            )

    def status(self) -> "Status | None":
        """Return the status of the node, or None if it does not answer yet. Raises CommandError if
        its process has ended."""
        from ..node.control.messages.node import GetStatus

        self.check_running()
        try:
            return request(self.data, GetStatus())
        except CommandError as error:
            if error.code != "not-running":
                raise
            return None

    def last_words(self) -> str:
        """Return the last error line of the node's output. Without an error line, return the last
        line."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        told = [line for line in lines if line.startswith("error: ")]
        return (told or lines or ["no output"])[-1].removeprefix("error: ")

    def leave_running(self) -> None:
        """Tell the node to continue after this process has ended, until `shoal stop` stops it."""
        os.write(self._pipe, STAY)
        self._close_pipe()

    def ask_to_stop(self) -> None:
        """Close the pipe, so that the node stops by itself."""
        self._close_pipe()

    def wait_stopped(self, deadline: float) -> None:
        """Wait for the process to end. If it still runs at `deadline` (monotonic, in seconds), kill
        it and its children."""
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
    """Several local daemons and the folder with their data, as a context manager. At the end of the
    block, the daemons are stopped and the folder is removed, unless `keep` was called."""

    def __init__(self) -> None:
        self.nodes: list[LocalNode] = []
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
        self._kept = False

    def __enter__(self) -> "LocalSwarm":
        return self

    def start(self, args: Sequence[str]) -> LocalNode:
        """Start one more daemon with these arguments, and return it.

        Ctrl-C takes effect only after the daemon has been registered here, so that the daemon is
        stopped in any case.
        """
        with _undisturbed(later=True):
            node = LocalNode(len(self.nodes) + 1, self.folder, args)
            self.nodes.append(node)
        return node

    def wait_for(
        self, ready: "Callable[[list[Status | None]], bool]",
        show: "Callable[[list[Status | None]], None]", deadline: float,
    ) -> "list[Status]":  # fmt: skip
        """Poll the statuses of all nodes until `ready` accepts them, and return them. `show` is
        called with the statuses of each poll.

        The status of a node that does not answer is None. Raises CommandError if the nodes are not
        ready at `deadline` (monotonic, in seconds).
        """
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
        """If a command in the block fails because a daemon has ended, raise an error with the
        daemon's last message instead."""
        try:
            yield
        except CommandError as error:
            for node in self.nodes:
                node.check_running(1.0 if error.code == "not-running" else 0.0)
            raise

    def keep(self) -> None:
        """Leave the daemons and their folder to the user, to be stopped with `shoal stop`."""
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
        """Remove the folder. Retry while a process that is ending still writes into it."""
        deadline = time.monotonic() + defaults.DEMO_STOP_TIMEOUT
        shutil.rmtree(self.folder, ignore_errors=True)
        while self.folder.exists() and time.monotonic() < deadline:
            time.sleep(defaults.POLL)
            shutil.rmtree(self.folder, ignore_errors=True)


def _behind(found: "list[Status | None]") -> str:
    """Describe the first node that does not serve yet."""
    for number, status in enumerate(found, 1):
        if status is None:
            return f"node {number} does not answer"
        if status.serving.phase != "serving":
            return f"node {number}: {status.serving.state}"
    return "they do not all know each other"


@contextmanager
def _undisturbed(*, later: bool = False) -> Iterator[None]:
    """Delay or ignore Ctrl-C and the other ending signals during the block, which takes a bounded
    time.

    With `later`, the first signal takes effect at the end of the block. Otherwise the signals have
    no effect.
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
