"""Runs a scenario in this process, and passes the result to a callback even if the run fails."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import cryptography
import trio

from ... import __version__
from ..determinism.reexec import reexec
from ..errors import BadScenario, CannotSimulate, RunFailed, SimError
from ..scenario.format.tables import Scenario
from ..scenario.result import RunResult
from ..scenario.run import Progress, ScenarioRun
from .folder import RunInputs, unwritable

After = Callable[[RunResult], None]
"""Function that is called with the result of a run, even if the run was interrupted or has failed.
"""


class Display(Protocol):
    """Interface to the user while a run is under way."""

    def note(self, text: str) -> None:
        """Show a sentence that is not part of the result."""

    def progress(self, seconds: float, what: str) -> AbstractContextManager[Progress]:
        """Return a context manager that shows progress while a run is under way.

        Entering it returns the function to call at each sample. `seconds` is the length of the run,
        and `what` the kind of its time: "virtual" or "real".
        """


def versions() -> dict[str, str]:
    """Return the versions of the software on which a run's packets depend, by name.

    Two runs can be expected to have the same packets only if all versions agree.
    """
    return {
        "shoal": __version__,
        "python": sys.version.split()[0],
        "trio": trio.__version__,
        "cryptography": cryptography.__version__,
    }


def make_strict(scenario: Scenario) -> None:
    """If the scenario is `strict`, restart this process with fixed hash seeds and addresses.

    Does nothing if this process has been restarted already. Raises CannotSimulate if the system
    refuses.
    """
    if not scenario.sim.strict:
        return
    try:
        reexec()
    except SimError as error:
        raise CannotSimulate(str(error)) from None


def execute(
    inputs: RunInputs,
    display: Display,
    *,
    trace: Path | None = None,
    until: float | None = None,
    after: After = lambda result: None,
) -> RunResult:
    """Run a scenario in this process. However the run ends, pass the result so far to `after`.

    If `trace` is given, every packet is written to this file. If `until` (virtual seconds) is
    given, the run stops then. Raises BadScenario if the scenario has an error that appears only
    when its world is built, and RunFailed if the run fails.
    """
    scenario = inputs.scenario
    file = None if trace is None else TraceFile(trace)
    run: ScenarioRun | None = None
    try:
        with display.progress(scenario.sim.duration if until is None else until, "virtual") as show:
            run = ScenarioRun(
                scenario, inputs.seed, trace_file=file, clock=time.perf_counter, until=until,
                progress=show if file is None else file.checking(show),
            )  # fmt: skip
            run.go()
        if file is not None:
            file.check()
        return _finish(run, "", after)
    except BadScenario as error:
        raise error.of(inputs.file) from None
    except SimError as error:
        if run is not None:
            _finish(run, f"failed: {error}", after)
        message, _, hint = str(error).partition("\nhint: ")
        hint = error.hint or hint or f"{_command(inputs)} repeats it and keeps every packet"
        raise RunFailed(message, hint=hint) from None
    except BaseException as error:
        if run is not None:
            why = "interrupted" if _is_interrupt(error) else f"failed: {_cause(error)}"
            _finish(run, why, after)
        raise
    finally:
        if file is not None:
            file.close()


class TraceFile:
    """Trace on disk, to which a run writes its records.

    A failed write raises no error at once, because the run would end in the middle of a packet.
    Instead `check`, called between two samples, raises the error.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._error: OSError | None = None

    def write(self, data: bytes, /) -> None:
        """Write data. Never raises an error; after a failed write, discards all further data."""
        if self._error is None:
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                self._error = error

    def check(self) -> None:
        """Raise RunFailed if a write has failed."""
        if self._error is not None:
            raise unwritable(self._path, self._error)

    def checking(self, show: Progress) -> Progress:
        """Return a progress callback that first checks this file and then calls `show`."""

        def look(now: float) -> None:
            """Check the file and show the progress."""
            self.check()
            show(now)

        return look

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _command(inputs: RunInputs) -> str:
    """Return the command that repeats the run with a trace."""
    return f"`shoal sim run {inputs.file} --seed {inputs.seed} --trace`"


def _cause(error: BaseException) -> str:
    """Describe the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return repr(error)


def _is_interrupt(error: BaseException) -> bool:
    """Return whether the error is a KeyboardInterrupt or a group that contains one."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _finish(run: ScenarioRun, ended: str, after: After) -> RunResult:
    """Complete the result of a run, pass it to `after` and return it.

    `ended` is the reason if the run ended early, otherwise empty.
    """
    result = run.result()
    result.versions = versions()
    result.ended = ended or result.ended
    after(result)
    return result
