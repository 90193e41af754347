"""`shoal sim`: runs, sweeps, repeats and compares simulated internets."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from .. import options as shared
from ..options import Misused, example, json_option


class _UnitValue(click.ParamType[Any]):
    """Type of a command-line value with a unit, which is parsed as in a scenario."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        from ...netsim.scenario.format import units

        try:
            return getattr(units, self.name)(value)
        except ValueError as error:
            raise Misused(str(error), None, context, parameter) from None


_FILE = click.Path(path_type=Path)
_HOSTS = click.option("--hosts", type=click.IntRange(1, 100_000), metavar="N",
                      help="Draw N hosts of the population (default: as in the file).")  # fmt: skip

_FORCE = click.option("--force", is_flag=True, help="Replace another run or sweep in that folder.")


@click.group(
    cls=shared.Commands,
    short_help="Simulate swarms on an internet in one process.",
    epilog=example("shoal sim run examples/scenarios/first.toml",
                   "shoal sim sweep examples/scenarios/punch-home.toml --seeds 1..20"),
)  # fmt: skip
def sim() -> None:
    """Run swarms of unmodified daemons on a simulated internet, in virtual time.

    A scenario is a TOML file (docs/spec/scenario.md). The guide is docs/netsim.md. The same
    scenario and seed give the same packets.
    """


@sim.command(short_help="Run a scenario once.",
             epilog=example("shoal sim run examples/scenarios/first.toml --seed 7"))  # fmt: skip
@click.argument("file", type=_FILE)
@click.option("--seed", type=click.IntRange(0), metavar="N",
              help="Seed; another one gives another run (default: the file's first).")  # fmt: skip
@click.option("--out", type=_FILE, metavar="DIR",
              help="Run folder (default: runs/NAME-SEED).")  # fmt: skip
@click.option("--backend", type=click.Choice(["sim", "netns"]), default="sim", show_default=True,
              help="Simulated, or real daemons in this kernel's network namespaces.")  # fmt: skip
@_HOSTS
@click.option("--trace", is_flag=True, help="Record every packet, like `trace = true`.")
@_FORCE
@click.option("--no-report", is_flag=True, help="Do not write report.html.")
@click.option("--csv", "as_csv", is_flag=True,
              help="Also write the figures as CSV, like `shoal sim export`.")  # fmt: skip
@json_option
def run(
    file: Path, seed: int | None, out: Path | None, backend: str, hosts: int | None, trace: bool,
    force: bool, no_report: bool, as_csv: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a scenario with one seed, and write its figures and a report to a folder.

    A folder with another run is refused; use `--out` or `--force`. A run with the same inputs is
    allowed, and replaces a run that had the same packets.

    The exit code is 1 if an expectation is not met. After Ctrl-C, the figures so far are kept.
    """
    from ...netsim.runs.run import RunOptions
    from ...netsim.runs.run import run as run_once
    from ..simulator import words
    from ..simulator.display import TerminalDisplay, command_errors

    options = RunOptions(
        file, seed, out, backend, hosts, trace, force, report=not no_report, csv=as_csv
    )
    with command_errors():
        ran = run_once(options, TerminalDisplay())
    if as_json:
        click.echo(json.dumps({"folder": str(ran.folder), **ran.result.brief()}))
    else:
        click.echo(f"{words.result(ran.result)}\n\nkept in {ran.folder}")
    _exit_unless(ran.result.met)


def _exit_unless(good: bool) -> None:
    if not good:
        raise click.exceptions.Exit(1)


@sim.command(
    short_help="Run a scenario with many seeds.",
    epilog=example("shoal sim sweep examples/scenarios/punch-home.toml --seeds 1..20 -j 2"),
)
@click.argument("file", type=_FILE)
@click.option("--seeds", type=_UnitValue("seeds"), metavar="A..B",
              help="Seeds, both ends included (default: as in the file).")  # fmt: skip
@click.option("-j", "jobs", type=click.IntRange(1, 1024), metavar="N",
              help="Processes (default: one per core).")  # fmt: skip
@click.option("--ray", metavar="ADDRESS", help="Run on this Ray cluster (`auto`: the local one).")
@click.option("--out", type=_FILE, metavar="DIR",
              help="Folder of the sweep (default: runs/NAME-sweep).")  # fmt: skip
@_HOSTS
@_FORCE
@json_option
def sweep(
    file: Path, seeds: tuple[int, ...] | None, jobs: int | None, ray: str | None,
    out: Path | None, hosts: int | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a scenario with many seeds at once, and write a line for each to sweep.jsonl.

    Repeat the command to run the seeds that are missing. A folder with the sweep of another
    scenario is refused; use `--out` or `--force`. The exit code is 1 if a seed failed.
    """
    from dataclasses import asdict

    from ...netsim.runs.sweep import SweepOptions
    from ...netsim.runs.sweep import sweep as sweep_seeds
    from ..simulator import words
    from ..simulator.display import command_errors

    if ray is not None and jobs is not None:
        raise click.UsageError("`-j` is for this machine: a Ray cluster knows its own cores")
    options = SweepOptions(file, seeds or (), jobs, ray, out, hosts, force)
    try:
        with command_errors():
            found = sweep_seeds(options, lambda now: click.echo(words.progress(now), err=True))
    except KeyboardInterrupt:
        click.echo("interrupted; the same command runs the seeds that are missing", err=True)
        raise
    click.echo(json.dumps(asdict(found)) if as_json else words.summary(found))
    if found.failed:
        more = "" if hosts is None else f" --hosts {hosts}"
        first = f"`shoal sim run {file} --seed {found.failed[0]}{more}`"
        click.echo(f"{first} repeats the first", err=True)
    _exit_unless(not found.failed)


@sim.command(
    short_help="Repeat a run and compare.", epilog=example("shoal sim replay runs/first-1")
)
@click.argument("folder", metavar="DIR", type=_FILE)
@click.option("--until", type=_UnitValue("period"), metavar="T",
              help="Stop at this virtual time, e.g. 41.2s.")  # fmt: skip
@json_option
def replay(folder: Path, until: float | None, as_json: bool) -> None:
    """Run the scenario and seed of a run folder again, and say whether the packets are the same.

    The exit code is 1 if they are not.
    """
    from ...netsim.runs.replay import replay as repeat
    from ..simulator import words
    from ..simulator.display import TerminalDisplay, command_errors

    with command_errors():
        found = repeat(folder, until, TerminalDisplay())
    click.echo(json.dumps(found.as_json()) if as_json else words.replay(found))
    _exit_unless(found.comparison.same is not False)


@sim.command(short_help="Find where two runs first differ.",
             epilog=example("shoal sim diff runs/first-1 runs/first-2"))  # fmt: skip
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@json_option
def diff(a: Path, b: Path, as_json: bool) -> None:
    """Show the first event that differs between two runs, with the events before it and its task.

    A and B are run folders made with `--trace`, or their trace.msgpack. The exit code is 1 if
    they differ.
    """
    from ...netsim.runs.replay import difference, trace_of
    from ..simulator import words
    from ..simulator.display import command_errors

    with command_errors():
        found = difference(trace_of(a), trace_of(b))
    click.echo(json.dumps(found.as_json()) if as_json else words.comparison(found))
    _exit_unless(bool(found.same))


@sim.command(short_help="Compare simulated NATs with real ones.",
             epilog=example("shoal sim calibrate"))  # fmt: skip
@click.option("--kernel", is_flag=True, help="Also probe this machine's kernel; needs root.")
@json_option
def calibrate(kernel: bool, as_json: bool) -> None:
    """Probe the simulated NATs and compare them with the answers of a real kernel.

    The stored answers come with shoal; with `--kernel`, this machine's kernel is probed as well.
    The exit code is 1 if an answer differs.
    """
    from dataclasses import asdict

    from ...netsim.netns.calibrate import calibration
    from ..simulator import words
    from ..simulator.display import TerminalDisplay, command_errors

    with command_errors():
        found = calibration(kernel, TerminalDisplay().step)
    click.echo(json.dumps(asdict(found)) if as_json else words.calibration(found))
    _exit_unless(not found.differences)


@sim.command(
    short_help="Write a run's report again.", epilog=example("shoal sim report runs/first-1")
)
@click.argument("folder", metavar="DIR", type=_FILE)
def report(folder: Path) -> None:
    """Write report.html of a run folder, as one file that includes its plots.

    Plots need matplotlib; without it, the report has only tables.
    """
    from ...netsim.report.plots import available
    from ...netsim.runs.folder import RunFolder
    from ..simulator.display import command_errors

    with command_errors():
        target = RunFolder(folder)
        result, _ = target.read()
        click.echo(f"written: {target.report(result, kept=True)}")
    if not available():
        click.echo(f"hint: `{sys.executable} -m pip install matplotlib` adds plots", err=True)


@sim.command(
    short_help="Write the figures of a run as CSV.",
    epilog=example("shoal sim export runs/first-1", "shoal sim export runs/punch-home-sweep"),
)
@click.argument("folder", metavar="DIR", type=_FILE)
def export(folder: Path) -> None:
    """Write the figures of a run or a sweep as CSV files into its folder.

    A run gives metrics.csv, series.csv (over time), samples.csv (for the distributions) and
    hosts.csv. A sweep gives sweep.csv, with one row for each seed. Units are seconds, bytes per
    second and fractions of one.
    """
    from ...netsim.runs.export import export as write
    from ..simulator.display import command_errors

    with command_errors():
        for path in write(folder):
            click.echo(f"written: {path}")
