"""Runs a scenario once and keeps the run in its folder."""

from dataclasses import dataclass
from pathlib import Path

from ..scenario.result import Result
from .execute import Display, execute, make_strict
from .export import export_run
from .folder import Inputs, Origin, RunFolder
from .kernel import run_in_kernel
from .read import read_scenario


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run and what to keep, as the options of `shoal sim run`."""

    file: Path
    seed: int | None = None  # None: the scenario's first
    out: Path | None = None
    backend: str = "sim"
    hosts: int | None = None
    trace: bool = False
    force: bool = False
    report: bool = True
    csv: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended, and the folder that keeps it."""

    folder: Path
    result: Result


def run(options: RunOptions, display: Display) -> Ran:
    """Run a scenario and keep it in a folder, also if it is interrupted. Raises SimError."""
    scenario = read_scenario(options.file, options.hosts)
    seed = scenario.sim.seeds[0] if options.seed is None else options.seed
    inputs = Inputs(scenario, options.file, seed, options.hosts, options.backend)
    folder = RunFolder(options.out or Path("runs") / f"{file_name(scenario.sim.name)}-{seed}")
    folder.claim(inputs, force=options.force)

    def keep(result: Result) -> None:
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


def _keep(folder: RunFolder, result: Result, options: RunOptions, display: Display) -> None:
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
    """Return a scenario's name in a form that suits a folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".-")[:64] or "run"
