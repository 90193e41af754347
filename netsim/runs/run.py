"""Runs a scenario once, and stores the run in a folder."""

from dataclasses import dataclass
from pathlib import Path

from ..scenario.result import RunResult
from .execute import Display, execute, make_strict
from .export import export_run
from .folder import Origin, RunFolder, RunInputs
from .kernel import run_in_kernel
from .read import read_scenario


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `shoal sim run`: what to run and what to store."""

    file: Path
    seed: int | None = None  # None: the first seed of the scenario
    out: Path | None = None
    backend: str = "sim"
    hosts: int | None = None
    trace: bool = False
    force: bool = False
    report: bool = True
    csv: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended, with the folder in which it is stored."""

    folder: Path
    result: RunResult


def run(options: RunOptions, display: Display) -> Ran:
    """Run a scenario and store the run in a folder, even if the run is interrupted.

    Raises SimError if the run fails, or if the folder has another run or other files.
    """
    scenario = read_scenario(options.file, options.hosts)
    seed = scenario.sim.seeds[0] if options.seed is None else options.seed
    inputs = RunInputs(scenario, options.file, seed, options.hosts, options.backend)
    folder = RunFolder(options.out or Path("runs") / f"{file_name(scenario.sim.name)}-{seed}")
    folder.claim(inputs, force=options.force)

    def keep(result: RunResult) -> None:
        """Store the result."""
        _keep(folder, result, options, display)

    if options.backend == "netns":
        result = run_in_kernel(scenario, options.file, display)
        folder.make(scenario)
        keep(result)
        return Ran(folder.path, result)
    make_strict(scenario)
    try:
        folder.make(scenario)
        trace = folder.trace if options.trace or scenario.sim.trace else None
        result = execute(inputs, display, trace=trace, after=keep)
    finally:
        folder.discard()
    return Ran(folder.path, result)


def _keep(folder: RunFolder, result: RunResult, options: RunOptions, display: Display) -> None:
    """Write the result to the folder, with a report and CSV files if the options request them.

    Then move the run to its final folder. Show a note if it replaced another run or ended early.
    """
    folder.write(result, Origin(options.hosts, options.backend))
    if options.report:
        folder.report(result)
    if options.csv:
        export_run(result, folder.place)
    if note := folder.settle(result):
        display.note(f"note: {note}")
    if result.ended != "done":
        kept = f"; the figures so far are kept in {folder.path}" if folder.kept else ""
        display.note(f"ended early, at virtual {result.virtual:.1f} s{kept}")


def file_name(name: str) -> str:
    """Convert a scenario's name to a valid name for a folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".-")[:64] or "run"
