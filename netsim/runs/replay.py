"""Repeats runs, and compares two runs to find where they first differ."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BadTrace, RunFailed
from ..scenario.format.metrics import Metrics
from ..scenario.result import RunResult
from ..trace.file import first_difference
from .execute import Display, execute, make_strict, versions
from .folder import SCENARIO, TRACE, RunFolder, RunInputs
from .read import read_scenario


@dataclass(frozen=True, slots=True)
class Divergence:
    """First difference between two traces.

    `record` is the number of the differing record, from 0. `causes` names the tasks that caused the
    two records. `difference` shows the records around it.
    """

    record: int
    causes: list[str]
    difference: str


@dataclass(frozen=True, slots=True)
class PacketComparison:
    """Outcome of a comparison. `same` says whether two runs had the same packets, or is None if
    they were not compared.
    """

    same: bool | None
    message: str
    at: Divergence | None = None

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        found: dict[str, object] = {"same": self.same, "message": self.message}
        if self.at is not None:
            found |= {
                "record": self.at.record,
                "causes": self.at.causes,
                "difference": self.at.difference,
            }
        return found


@dataclass(frozen=True, slots=True)
class Replay:
    """A repeated run, and its comparison with the original run.

    `digest` is the digest of the repeated run, and `before` that of the original run.
    """

    digest: str
    before: str
    seed: int
    comparison: PacketComparison
    # Versions that have changed, by name: (at the original run, now).
    other_versions: dict[str, tuple[str, str]] = field(default_factory=dict)
    metrics: Metrics | None = None  # those of the repetition, if it stopped earlier

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        found: dict[str, object] = {
            "digest": self.digest, "before": self.before, "seed": self.seed,
            "other_versions": self.other_versions,
        }  # fmt: skip
        found |= self.comparison.as_json()
        return found if self.metrics is None else found | {"metrics": self.metrics}


def trace_of(path: Path) -> Path:
    """Return the path of a trace: `path` itself, or the trace in the run folder `path`.

    Raises RunFailed if there is no such file.
    """
    if path.is_dir():
        path = path / TRACE
    if not path.is_file():
        raise RunFailed(
            f"there is no trace `{path}`",
            hint="`shoal sim run FILE --trace` keeps one in its run folder",
        )
    return path


def difference(a: Path, b: Path) -> PacketComparison:
    """Find the first record that differs between two traces.

    Raises RunFailed if a file is not a trace or is truncated.
    """
    try:
        with a.open("rb") as one, b.open("rb") as other:
            found = first_difference(one, other, names=(str(a), str(b)))
    except BadTrace as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise RunFailed(message, hint=hint or "`--trace` keeps a trace") from None
    if found is None:
        return PacketComparison(True, "the traces are the same, record by record")
    at = Divergence(found.index, list(found.causes), "\n".join(found.lines(str(a), str(b))))
    return PacketComparison(False, "the traces differ", at)


def replay(folder: Path, until: float | None, display: Display) -> Replay:
    """Repeat the run in a folder, and compare the two runs.

    If `until` (virtual seconds) is given, the repetition stops at that time and is not compared.
    Raises SimError if the run cannot be repeated.
    """
    kept = RunFolder(folder)
    before, origin = kept.read()
    if not (folder / SCENARIO).is_file():
        raise RunFailed(
            f"`{folder}` is damaged: it has no {SCENARIO}",
            hint="`shoal sim run FILE --out DIR` makes a new one",
        )
    scenario = read_scenario(folder / SCENARIO, origin.hosts_given)
    if origin.backend == "netns":
        raise RunFailed(
            f"`{folder}` ran in a real kernel, where runs are not repeatable",
            hint="a run with `--backend sim` can be repeated",
        )
    make_strict(scenario)
    if until is not None and until >= scenario.sim.duration:
        until = None
    if until is None and before.ended not in ("done", "stopped"):
        until = before.virtual or None  # the original was interrupted at this time
    inputs = RunInputs(scenario, folder / SCENARIO, before.seed)
    with tempfile.TemporaryDirectory(prefix="shoal-replay-") as scratch:
        trace = Path(scratch) / TRACE if kept.trace.is_file() else None
        again = execute(inputs, display, trace=trace, until=until)
        if trace is not None and until is None and again.digest != before.digest:
            found = difference(kept.trace, trace)
        else:
            found = _verdict(before, again, until, trace is not None)
    now = versions()
    return Replay(
        again.digest, before.digest, before.seed, found,
        {name: (old, now[name]) for name, old in before.versions.items() if now[name] != old},
        again.metrics if until is not None else None,
    )  # fmt: skip


def _verdict(
    before: RunResult, again: RunResult, until: float | None, traced: bool
) -> PacketComparison:
    """Compare two runs by their digests, if the repetition was complete."""
    if until is not None:
        message = f"ran to {again.virtual:g} s of {before.duration:g} s without a comparison"
        return PacketComparison(None, message)
    if again.digest == before.digest:
        return PacketComparison(True, f"the same {again.records} records")
    message = "the digests differ"
    if not traced:
        message += "; after a run with `--trace`, replay shows where"
    return PacketComparison(False, message)
