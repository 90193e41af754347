"""`shoal sim`: runs, sweeps, repeats and compares simulated internets."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import options
from ..errors import CommandError
from ..options import Misused, example, json_option

if TYPE_CHECKING:
    from ...netsim.scenario.format.tables import Scenario
    from ...netsim.scenario.result import Result
    from ..simulator.folder import RunFolder


class _Value(click.ParamType[Any]):
    """A value with a unit, parsed as in a scenario."""

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
    cls=options.Commands,
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
    from ..simulator import run as simrun
    from ..simulator.folder import Inputs, RunFolder

    scenario = simrun.read_scenario(file, hosts)
    number = scenario.sim.seeds[0] if seed is None else seed
    folder = RunFolder(out or Path("runs") / f"{_file_name(scenario.sim.name)}-{number}")
    folder.claim(Inputs(scenario, number, hosts, backend), force=force)

    def keep(found: "Result") -> None:
        _keep(folder, found, hosts, backend, report=not no_report, as_csv=as_csv)

    if backend == "netns":
        from ..simulator.kernel import run_in_kernel

        result = run_in_kernel(scenario, file)
        folder.make(scenario)
        keep(result)
    else:
        _strictly(scenario)
        try:
            folder.make(scenario)
            traced = trace or scenario.sim.trace
            result = simrun.run_here(
                scenario, file, number, trace=folder.trace if traced else None, after=keep
            )
        finally:
            folder.discard()
    if as_json:
        click.echo(json.dumps({"folder": str(folder.path), **simrun.as_json(result)}))
    else:
        simrun.print_result(result)
        click.echo(f"\nkept in {folder.path}")
    _exit_unless_met(result.met)


def _keep(
    folder: "RunFolder",
    result: "Result",
    hosts: int | None,
    backend: str,
    *,
    report: bool,
    as_csv: bool,
) -> None:
    folder.write(result, {"hosts_given": hosts, "backend": backend})
    if report:
        folder.report(result)
    if as_csv:
        from ..simulator.export import export_run

        export_run(result, folder.place)
    note = folder.settle(result)
    if note:
        click.echo(f"note: {note}", err=True)
    if result.ended != "done":
        kept = f"; the figures so far are kept in {folder.path}" if folder.kept else ""
        click.echo(f"ended early, at virtual {result.virtual:.1f} s{kept}", err=True)


def _file_name(name: str) -> str:
    """Return a scenario's name in a form that suits a folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".-")[:64] or "run"


def _strictly(scenario: "Scenario") -> None:
    """Restart this process with a fixed hash seed and addresses, if the scenario asks for it."""
    if not scenario.sim.strict:
        return
    from ...netsim.determinism.reexec import reexec
    from ...netsim.errors import SimError

    try:
        reexec()
    except SimError as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise CommandError("cannot-simulate", message, hint=hint) from None


def _exit_unless_met(met: bool) -> None:
    if not met:
        raise click.exceptions.Exit(1)


@sim.command(
    short_help="Run a scenario with many seeds.",
    epilog=example("shoal sim sweep examples/scenarios/punch-home.toml --seeds 1..20 -j 2"),
)
@click.argument("file", type=_FILE)
@click.option("--seeds", type=_Value("seeds"), metavar="A..B",
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
    from ..simulator import folder as simfolder
    from ..simulator import run as simrun
    from ..simulator import summary as simsummary
    from ..simulator import sweep as simsweep

    if ray is not None and jobs is not None:
        raise click.UsageError("`-j` is for this machine: a Ray cluster knows its own cores")
    scenario = simrun.read_scenario(file, hosts)
    if ray is not None and scenario.sim.strict:
        raise CommandError(
            "cannot-simulate", "`strict` restarts processes, which a Ray cluster does not allow",
            hint="omit `--ray` or `strict`",
        )  # fmt: skip
    wanted = seeds or scenario.sim.seeds
    folder = out or Path("runs") / f"{_file_name(scenario.sim.name)}-sweep"
    kept = simsweep.SweepFile(folder, scenario, hosts, force=force)
    missing = [seed for seed in wanted if seed not in kept.lines]
    done = len(wanted) - len(missing)
    if done:
        click.echo(f"{done} of {len(wanted)} seeds are already done", err=True)
    if missing:
        lines = (
            simsweep.here(scenario, hosts, missing, jobs or os.cpu_count() or 1)
            if ray is None
            else simsweep.on_ray(ray, scenario, hosts, missing)
        )
        for line in lines:
            kept.add(line)
            done += 1
            simsummary.print_line(line, done, len(wanted), lambda text: click.echo(text, err=True))
    found = simsummary.summary([kept.lines[seed] for seed in wanted])
    simfolder.write_text(folder / simsweep.SUMMARY, json.dumps(found, indent=1) + "\n")
    click.echo(json.dumps(found) if as_json else simsummary.print_summary(found))
    if found["failed"]:
        first = found["failed"][0]
        more = "" if hosts is None else f" --hosts {hosts}"
        click.echo(f"`shoal sim run {file} --seed {first}{more}` repeats the first", err=True)
    _exit_unless_met(not found["failed"])


@sim.command(
    short_help="Repeat a run and compare.", epilog=example("shoal sim replay runs/first-1")
)
@click.argument("folder", metavar="DIR", type=_FILE)
@click.option("--until", type=_Value("period"), metavar="T",
              help="Stop at this virtual time, e.g. 41.2s.")  # fmt: skip
@json_option
def replay(folder: Path, until: float | None, as_json: bool) -> None:
    """Run the scenario and seed of a run folder again, and say whether the packets are the same.

    The exit code is 1 if they are not.
    """
    from ..simulator import replay as simreplay

    found = simreplay.replay(folder, until, _strictly)
    click.echo(json.dumps(found) if as_json else simreplay.words(found))
    _exit_unless_met(found["same"] is not False)


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
    from ..simulator import replay as simreplay

    found = simreplay.difference(simreplay.trace_of(a), simreplay.trace_of(b))
    click.echo(json.dumps(found) if as_json else simreplay.words(found))
    _exit_unless_met(bool(found["same"]))


@sim.command(short_help="Compare simulated NATs with real ones.",
             epilog=example("shoal sim calibrate"))  # fmt: skip
@click.option("--kernel", is_flag=True, help="Also probe this machine's kernel; needs root.")
@json_option
def calibrate(kernel: bool, as_json: bool) -> None:
    """Probe the simulated NATs and compare them with the answers of a real kernel.

    The stored answers come with shoal; with `--kernel`, this machine's kernel is probed as well.
    The exit code is 1 if an answer differs.
    """
    from ..simulator import kernel as simkernel

    found = simkernel.calibration(kernel)
    click.echo(json.dumps(found) if as_json else simkernel.words(found))
    _exit_unless_met(not found["differences"])


@sim.command(
    short_help="Write a run's report again.", epilog=example("shoal sim report runs/first-1")
)
@click.argument("folder", metavar="DIR", type=_FILE)
def report(folder: Path) -> None:
    """Write report.html of a run folder, as one file that includes its plots.

    Plots need matplotlib; without it, the report has only tables.
    """
    from ..simulator.folder import RunFolder

    target = RunFolder(folder)
    result, _ = target.read()
    click.echo(f"written: {target.report(result, kept=True)}")
    from ...netsim.report.plots import available

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
    from ..simulator.export import export as write

    for path in write(folder):
        click.echo(f"written: {path}")
