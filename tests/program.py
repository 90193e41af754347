"""A program of these tests in a process of its own, which executes commands line by line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def say(answer: dict[str, Any]) -> None:
    """Print the result of a command, or at the start the identity of the program."""
    print(json.dumps(answer), flush=True)


class Program:
    """The process as a test sees it: a module of `tests` that reads commands from standard input,
    one JSON object per line, and answers each with one by `say`.
    """

    def __init__(self, module: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
        self.told = self._heard()
        self.peer = str(self.told["peer"])

    def do(self, what: str, **more: Any) -> dict[str, Any]:
        """Send it a command; return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
