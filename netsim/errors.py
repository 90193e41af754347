"""Errors of the simulator."""


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
