"""Errors of the simulator."""

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path


class SimError(Exception):
    """Base class of the simulator's errors. `hint` suggests what to do; it is empty if there is no
    suggestion.
    """

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RunFailed(SimError):
    """A run has failed, or an operation on the folder of a run has failed."""


class CannotSimulate(SimError):
    """This machine, or a cluster, cannot run the scenario."""


class NoHost(SimError):
    """A task that belongs to no simulated host requested a socket."""


class NotSimulated(SimError):
    """Code under simulation tried to use the real world (a thread, a process, a real socket)."""


class Stuck(SimError):
    """A task has run without a checkpoint for so long that virtual time stands still."""


class BadTrace(SimError):
    """A file is not a trace, or is only the beginning of a trace."""


class NothingLeft(SimError):
    """Every task waits and no event is scheduled, so that nothing can ever happen again."""


class BadScenario(SimError):
    """A scenario requests something impossible. `line` is the line number in its file, or 0 if
    unknown.
    """

    def __init__(self, message: str, *, line: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.line = line

    def of(self, path: Path) -> "BadScenario":
        """Return an error with the scenario's file and line added to the message."""
        where = f"{path}:{self.line}" if self.line else str(path)
        hint = self.hint or "docs/spec/scenario.md describes scenario files"
        return BadScenario(f"{where}: {self.message}", hint=hint)


def nearest(word: str, known: Collection[str]) -> str:
    """Return a hint for an unknown `word`: the most similar known word or, if none is similar, a
    list of known words.
    """
    turned = [item for item in known if item == word[::-1]]  # such as `=>` for `>=`
    close = turned or get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    if close:
        return f"did you mean `{close[0]}`?"
    listed = ", ".join(f"`{item}`" for item in sorted(known)[:12])
    more = ", …" if len(known) > 12 else ""
    return f"known are {listed}{more}" if known else "none is known here"
