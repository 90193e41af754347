"""The golden tables: the results of real kernel NATs for every probe, and a comparison with them.

python -m shoal.netsim.netns.calibrate            # this kernel against the stored table
python -m shoal.netsim.netns.calibrate --write    # store what this kernel answers
"""

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from ..errors import CannotSimulate
from ..nat.probes import catalogue as probes
from ..nat.probes.lab import SimLab
from . import nft
from .lab import KernelLab, kernel
from .namespaces import KernelRefused, available, hint_of

GOLDEN: Final = Path(__file__).parents[1] / "nat" / "probes" / "golden" / "linux.json"
COMMAND: Final = "python -m shoal.netsim.netns.calibrate --write"

Table = dict[str, probes.Found]
"""Maps a kind of gateway to its results, which map the name of a result to its value."""

SLOW: Final = ("timers",)
"""Probes that spend most of their time waiting. Each runs in its own lab, in parallel with the
others.
"""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A probe that has different results in two tables, for one kind of gateway."""

    kind: str
    probe: str
    simulated: probes.Answer
    golden: probes.Answer

    def __str__(self) -> str:
        return f"{self.kind}: {self.probe} is {self.simulated!r}, in the kernel {self.golden!r}"


ABSENT: Final = "absent"
"""Result of a probe that is missing in one of two tables that are compared."""


def compare(
    simulated: Mapping[str, probes.Found], golden: Mapping[str, probes.Found]
) -> list[Mismatch]:
    """Return the differences between two tables, for the kinds that `simulated` has."""
    found = []
    for kind, answers in simulated.items():
        real = golden.get(kind, {})
        for probe in sorted(answers.keys() | real.keys()):
            ours, theirs = answers.get(probe, ABSENT), real.get(probe, ABSENT)
            if (ours, type(ours)) != (theirs, type(theirs)):
                found.append(Mismatch(kind, probe, ours, theirs))
    return found


def golden(path: Path = GOLDEN) -> Table:
    """Load the stored table."""
    table: Table = json.loads(path.read_text())["kinds"]
    return table


def simulate(kinds: Iterable[str] = tuple(nft.KINDS)) -> Table:
    """Return a table of the results that simulated NATs give for the same probes."""
    return {kind: SimLab(kind).run() for kind in kinds}


def calibrate(
    kinds: Iterable[str] = tuple(nft.KINDS), *, say: Callable[[str], None] = lambda _: None
) -> Table:
    """Probe NATs in this machine's kernel, and return their results. Takes half a minute.

    All kinds are probed at the same time. `say` receives messages about the progress. Raises
    KernelRefused if this machine does not support the kernel backend.
    """
    reason = available()
    if reason is not None:
        raise KernelRefused(reason)
    rest = tuple(name for name in probes.PROBES if name not in SLOW)
    groups = [(name,) for name in SLOW] + [rest]
    table: Table = {kind: {} for kind in kinds}
    with ExitStack() as stack:
        labs = [
            (stack.enter_context(KernelLab(kind)), kind, names)
            for kind in table
            for names in groups
        ]
        say(f"{len(labs)} labs are built")
        trio.run(_probe_all, labs, table, say)
    return {kind: dict(sorted(answers.items())) for kind, answers in table.items()}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Outcome of a comparison.

    `kinds` are the kinds of gateway that were compared, and `probes` is the number of results.
    `differences` has a line of text for each result that differs.
    """

    kinds: list[str]
    probes: int
    differences: list[str]
    kernel: str  # "probed" if this kernel was probed, otherwise "not asked for"


def calibration(kernel: bool, say: Callable[[str], None]) -> Calibration:
    """Compare the simulated NATs with the stored table. With `kernel`, compare this kernel as well.

    `say` receives messages about the progress. Raises CannotSimulate if this machine's kernel
    cannot be probed.
    """
    stored = golden()
    simulated = simulate(stored)
    differences = [str(item) for item in compare(simulated, stored)]
    if kernel:
        try:
            table = calibrate(tuple(stored), say=say)
        except KernelRefused as error:
            raise CannotSimulate(str(error), hint=hint_of(error)) from None
        differences += [
            f"{item.kind}: {item.probe} is {item.simulated!r} in this kernel, "
            f"stored {item.golden!r}"
            for item in compare(table, stored)
        ]
    count = sum(map(len, simulated.values()))
    return Calibration(sorted(stored), count, differences, "probed" if kernel else "not asked for")


async def _probe_all(
    labs: list[tuple[KernelLab, str, tuple[str, ...]]], table: Table, say: Callable[[str], None]
) -> None:
    """Run the probes of all labs in parallel, and add the results to `table`."""
    async with trio.open_nursery() as nursery:
        for lab, kind, names in labs:
            nursery.start_soon(_probe, lab, kind, names, table, say)


async def _probe(
    lab: KernelLab, kind: str, names: tuple[str, ...], table: Table, say: Callable[[str], None]
) -> None:
    """Run some probes in one lab, and add the results to `table`."""
    table[kind] |= await probes.run(lab, names)
    say(f"{kind}: {', '.join(names)}")


def write(table: Table, path: Path = GOLDEN) -> None:
    """Store results, with the versions of the kernel and of nftables.

    Results of kinds that are not in `table` are kept.
    """
    nftables = subprocess.run(["nft", "--version"], text=True, capture_output=True, check=True)
    document = {
        "command": COMMAND,
        "kernel": kernel(),
        "nftables": nftables.stdout.split()[1],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "timers": dict(probes.TIMERS),
        "kinds": {**(golden(path) if path.exists() else {}), **table},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Execute the command line that the module's docstring describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store this kernel's results")
    parser.add_argument("kinds", nargs="*", default=list(nft.KINDS), help="only these kinds")
    options = parser.parse_args()
    try:
        table = calibrate(options.kinds, say=lambda line: print(line, file=sys.stderr))
    except KernelRefused as error:
        sys.exit(f"error: {error}")
    if options.write:
        write(table)
        print(f"{len(table)} kinds written to {GOLDEN}")
        return
    differences = compare(table, golden())
    for difference in differences:
        print(f"{difference.kind}: {difference.probe} is {difference.simulated!r} here, "
              f"stored {difference.golden!r}")  # fmt: skip
    print(f"{len(differences)} differences in {len(table)} kinds")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
