"""Runs a scenario with many seeds, and stores a result line for each.

The next call runs only the seeds that are still missing.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ..errors import CannotSimulate
from .cluster import on_ray
from .folder import write_text
from .processes import on_this_machine
from .read import read_scenario
from .run import file_name
from .summary import SweepSummary, summarise
from .sweepfile import SeedLine, SweepFile

SUMMARY: Final = "sweep.json"


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of `shoal sim sweep`: what to run and where."""

    file: Path
    seeds: tuple[int, ...] = ()  # empty: those of the scenario
    jobs: int | None = None  # number of processes; None: one per core
    ray: str | None = None  # address of a Ray cluster; None: this machine
    out: Path | None = None
    hosts: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Progress of a sweep: the seeds done, their total number, and the latest result line."""

    done: int
    total: int
    line: SeedLine | None  # None at the start, if earlier calls have run some of the seeds


def sweep(options: SweepOptions, show: Callable[[SweepProgress], None]) -> SweepSummary:
    """Run the seeds that are missing. Return a summary of all seeds that the options ask for.

    `show` is called when each run ends, and once at the start if earlier calls have run some of the
    seeds. Raises SimError if the sweep cannot run, or its folder has another sweep.
    """
    scenario = read_scenario(options.file, options.hosts)
    if options.ray is not None and scenario.sim.strict:
        raise CannotSimulate(
            "`strict` restarts processes, which a Ray cluster does not allow",
            hint="omit `--ray` or `strict`",
        )
    wanted = options.seeds or scenario.sim.seeds
    folder = options.out or Path("runs") / f"{file_name(scenario.sim.name)}-sweep"
    kept = SweepFile(folder, scenario, options.hosts, force=options.force)
    missing = [seed for seed in wanted if seed not in kept.lines]
    done = len(wanted) - len(missing)
    if done:
        show(SweepProgress(done, len(wanted), None))
    if missing:
        lines = (
            on_this_machine(scenario, options.hosts, missing, options.jobs or os.cpu_count() or 1)
            if options.ray is None
            else on_ray(options.ray, scenario, options.hosts, missing)
        )
        for line in lines:
            done += 1
            kept.add(line)
            show(SweepProgress(done, len(wanted), line))
    found = summarise([kept.lines[seed] for seed in wanted])
    write_text(folder / SUMMARY, json.dumps(asdict(found), indent=1) + "\n")
    return found
