"""Real daemons as child processes for tests, which always end with the test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.cli.client import converse
from shoal.cli.errors import CommandError

START = 300.0  # seconds a daemon may take on a busy machine


WITH_TORCH = ["-m", "shoal.cli.main"]
WITHOUT_TORCH = [
    "-c",
    "import sys; sys.modules['torch'] = None; from shoal.cli.main import main; main()",
]


class Daemon:
    """A `shoal node` (or `join`) process. `torch=False` hides an installed torch from it."""

    def __init__(self, data: Path, *args: str, command: str = "node", torch: bool = True) -> None:
        self.data = data
        self.log = data.with_suffix(".log")
        if "--api" not in args:  # only one daemon of this machine could have the default port
            args = (*args, "--api", "no")
        if "--measure" not in args:  # it takes seconds of two cores
            args = (*args, "--no-measure")
        words = [*(WITH_TORCH if torch else WITHOUT_TORCH), *command.split(), *args]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words, "--data", str(data),
                 "--listen", "127.0.0.1", "--threads", "1"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        wait = bool(more.pop("wait", False))
        return converse(self.data, {"op": op, **more}, wait=wait)

    def wait_until(self, true: Callable[[dict[str, Any]], bool], limit: float = START) -> float:
        """Poll `status` until `true` accepts it; return the seconds it took."""
        began = time.monotonic()
        status: dict[str, Any] = {}
        while time.monotonic() - began < limit:
            assert self.process.poll() is None, self.log.read_text()
            try:
                status = self.ask("status")
                if true(status):
                    return time.monotonic() - began
            except CommandError as error:
                assert error.code == "not-running", error
            time.sleep(0.05)
        raise AssertionError(f"{json.dumps(status, indent=1)}\n{self.log.read_text()}")

    @property
    def address(self) -> str:
        return str(self.ask("status")["addresses"][0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(15)


@contextmanager
def daemons() -> Iterator[Callable[..., Daemon]]:
    """Yield a function that starts daemons. All are stopped at the end of the block."""
    started: list[Daemon] = []

    def start(data: Path, *args: str, command: str = "node", torch: bool = True) -> Daemon:
        started.append(Daemon(data, *args, command=command, torch=torch))
        return started[-1]

    try:
        yield start
    finally:
        for daemon in started:
            if daemon.process.poll() is None:
                daemon.process.terminate()
        for daemon in started:
            try:
                daemon.process.wait(12)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.process.pid, signal.SIGKILL)
                daemon.process.wait()


def shoal(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run one command as a process."""
    return subprocess.run(
        [sys.executable, "-m", "shoal.cli.main", *args],
        capture_output=True, text=True, timeout=START, **more,
    )  # fmt: skip
