"""Runs a scenario in this process, and keeps what it measured however it ends."""

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
from ..scenario.result import Result
from ..scenario.run import Progress, Run
from .folder import Inputs, unwritable

After = Callable[[Result], None]
"""Called with the result, also with that of a run that was interrupted or failed."""


class Display(Protocol):
    """Shows what a run does while it is under way."""

    def note(self, text: str) -> None:
        """Show a sentence that is not part of the result."""

    def progress(self, seconds: float, what: str) -> AbstractContextManager[Progress]:
        """Show how much of `seconds` has passed; `what` is `virtual` or `real` time."""


def versions() -> dict[str, str]:
    """Return the versions that must agree for a run to be repeatable."""
    return {
        "shoal": __version__,
        "python": sys.version.split()[0],
        "trio": trio.__version__,
        "cryptography": cryptography.__version__,
    }


def make_strict(scenario: Scenario) -> None:
    """Restart this process with a fixed hash seed and addresses, if the scenario asks for it.

    Raises CannotSimulate if the system refuses.
    """
    if not scenario.sim.strict:
        return
    try:
        reexec()
    except SimError as error:
        raise CannotSimulate(str(error)) from None


def execute(
    inputs: Inputs,
    display: Display,
    *,
    trace: Path | None = None,
    until: float | None = None,
    after: After = lambda result: None,
) -> Result:
    """Run in this process. Calls `after` with the result so far, however the run ends.

    `trace` gets every packet; `until` is a virtual time in seconds. Raises SimError.
    """
    scenario = inputs.scenario
    file = None if trace is None else TraceFile(trace)
    run: Run | None = None
    try:
        with display.progress(scenario.sim.duration if until is None else until, "virtual") as show:
            run = Run(
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
    """A trace on disk. Errors are raised between two samples, where a run can end cleanly, and not
    in the middle of a packet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._error: OSError | None = None

    def write(self, data: bytes, /) -> None:
        """Write data. Never raises; after an error, further data is dropped."""
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
        """Return a progress callback that calls `show` and checks this file."""

        def look(now: float) -> None:
            self.check()
            show(now)

        return look

    def close(self) -> None:
        self._file.close()


def _command(inputs: Inputs) -> str:
    return f"`shoal sim run {inputs.file} --seed {inputs.seed} --trace`"


def _cause(error: BaseException) -> str:
    """Describe the innermost error of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return repr(error)


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _finish(run: Run, ended: str, after: After) -> Result:
    """Pass the result to `after` and return it; `ended` says why the run ended early."""
    result = run.result()
    result.versions = versions()
    result.ended = ended or result.ended
    after(result)
    return result
