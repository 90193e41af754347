"""Errors of the simulator."""

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path


class SimError(Exception):
    """Base class of the simulator's errors. `hint` says what to do; empty if nothing is known."""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RunFailed(SimError):
    """A run, or what is done with the folder of one, has failed."""


class CannotSimulate(SimError):
    """This machine, or a cluster, cannot run the scenario."""


class NoHost(SimError):
    """A task that belongs to no simulated host asked for a socket."""


class NotSimulated(SimError):
    """Code under simulation tried to use the real world (a thread, a process, a real socket)."""


class Stuck(SimError):
    """A task has run without a checkpoint for so long that virtual time stands still."""


class BadTrace(SimError):
    """The file is not a trace, or only the beginning of one."""


class NothingLeft(SimError):
    """Every task waits and no event is due, so nothing can ever happen again."""


class BadScenario(SimError):
    """A scenario asks for something impossible. `line` is its line in the file, or 0."""

    def __init__(self, message: str, *, line: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.line = line

    def of(self, path: Path) -> "BadScenario":
        """Return the error with the scenario's file and line in its message."""
        where = f"{path}:{self.line}" if self.line else str(path)
        hint = self.hint or "docs/spec/scenario.md describes scenario files"
        return BadScenario(f"{where}: {self.message}", hint=hint)


def nearest(word: str, known: Collection[str]) -> str:
    """Return a hint for an unknown `word`: the closest known words."""
    turned = [item for item in known if item == word[::-1]]  # `=>`
    close = turned or get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    if close:
        return f"did you mean `{close[0]}`?"
    listed = ", ".join(f"`{item}`" for item in sorted(known)[:12])
    more = ", …" if len(known) > 12 else ""
    return f"known are {listed}{more}" if known else "none is known here"
