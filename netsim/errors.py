"""Errors of the simulator."""

from collections.abc import Collection
from difflib import get_close_matches


class SimError(Exception):
    """Anything the simulator refuses."""


class NoHost(SimError):
    """A socket was asked for by a task that belongs to no simulated host."""


class NotSimulated(SimError):
    """Code under simulation reached for the real world (a thread, a process, a real socket)."""


class Stuck(SimError):
    """A task has kept the processor without giving way, so that virtual time stands still."""


class BadTrace(SimError):
    """A file that is no trace, or the beginning of one."""


class NothingLeft(SimError):
    """Every task waits and no event is due: nothing can ever happen again."""


class BadScenario(SimError):
    """A scenario says something that cannot be done. `line` is its line in the file, or 0."""

    def __init__(self, message: str, *, line: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.hint = hint


def nearest(word: str, known: Collection[str]) -> str:
    """What to tell who wrote `word` instead of one of those."""
    turned = [item for item in known if item == word[::-1]]  # `=>`
    close = turned or get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    if close:
        return f"did you mean `{close[0]}`?"
    listed = ", ".join(f"`{item}`" for item in sorted(known)[:12])
    more = ", …" if len(known) > 12 else ""
    return f"known are {listed}{more}" if known else "none is known here"
