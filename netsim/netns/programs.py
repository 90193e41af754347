"""Programs other than shoal that run in the namespace of a host."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from .namespaces import KernelRefused, Namespace

GRACE_S: Final = 2.0
"""Seconds that a program may take to end after SIGTERM before it is killed."""
TOLD_BYTES: Final = 1000
"""Bytes at the end of a program's output that error messages quote."""


class KernelProgram:
    """A program in a namespace. Its output goes to the file `log`.

    The kernel kills it when this process ends. `stop` ends it and its children earlier.
    """

    def __init__(
        self,
        space: Namespace,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = f"{Path(command[0]).name} on {space.name}"
        self.log = log
        with log.open("ab") as output:
            self._process = space.start(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The id of the process, which is also that of its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the program has not ended yet."""
        return self._process.poll() is None

    def output(self) -> str:
        """Return what the program has written so far."""
        return self.log.read_text(errors="replace")

    def check_running(self) -> None:
        """Raise KernelRefused, with the end of the program's output, if it has ended."""
        if not self.running:
            raise self._refusal(f"ended with status {self._process.returncode}")

    def finish(self, seconds: float) -> str:
        """Wait until the program ends, and return its output.

        Raises KernelRefused if it takes more than `seconds`, or if its exit status is not 0.
        """
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise self._refusal(f"did not end within {seconds:g} s") from None
        if status:
            raise self._refusal(f"ended with status {status}")
        return self.output()

    def tell_to_stop(self) -> None:
        """Send SIGTERM to the program and its children, without waiting for them."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)

    def stop(self, patience: float = GRACE_S) -> None:
        """End the program. If it still runs after `patience` seconds, kill it and its children."""
        self.tell_to_stop()
        deadline = time.monotonic() + patience
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        with suppress(ProcessLookupError):  # also children that outlive the program
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _refusal(self, what: str) -> KernelRefused:
        said = self.output().strip() or "nothing"
        return KernelRefused(f"{self.name} {what}; it said: {said[-TOLD_BYTES:]}")
