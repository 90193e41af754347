"""Compares two runs and finds where they first differ; one of them may be a repetition."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BadTrace, RunFailed
from ..scenario.format.metrics import Metrics
from ..scenario.result import Result
from ..trace.file import first_difference
from .execute import Display, execute, make_strict, versions
from .folder import SCENARIO, TRACE, Inputs, RunFolder
from .read import read_scenario


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two traces first differ: the number of the record, the tasks behind it, and lines that
    show it.
    """

    record: int
    causes: list[str]
    difference: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two runs have the same packets; None if unknown."""

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
    """A run that was repeated: the digests of both runs, and their comparison."""

    digest: str
    before: str
    seed: int
    comparison: Comparison
    other_versions: dict[str, tuple[str, str]] = field(default_factory=dict)  # then, now
    metrics: Metrics | None = None  # of a repetition that was not compared

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        found: dict[str, object] = {
            "digest": self.digest, "before": self.before, "seed": self.seed,
            "other_versions": self.other_versions,
        }  # fmt: skip
        found |= self.comparison.as_json()
        return found if self.metrics is None else found | {"metrics": self.metrics}


def trace_of(path: Path) -> Path:
    """Return the trace that a person means: a file, or a run folder's. Raises RunFailed."""
    if path.is_dir():
        path = path / TRACE
    if not path.is_file():
        raise RunFailed(
            f"there is no trace `{path}`",
            hint="`shoal sim run FILE --trace` keeps one in its run folder",
        )
    return path


def difference(a: Path, b: Path) -> Comparison:
    """Find the first event that differs between two traces. Raises RunFailed."""
    try:
        with a.open("rb") as one, b.open("rb") as other:
            found = first_difference(one, other, names=(str(a), str(b)))
    except BadTrace as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise RunFailed(message, hint=hint or "`--trace` keeps a trace") from None
    if found is None:
        return Comparison(True, "the traces are the same, record by record")
    at = Divergence(found.index, list(found.causes), "\n".join(found.lines(str(a), str(b))))
    return Comparison(False, "the traces differ", at)


def replay(folder: Path, until: float | None, display: Display) -> Replay:
    """Run a folder's scenario and seed again, to a virtual time, and compare the runs.

    Raises SimError.
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
        until = before.virtual or None  # it was interrupted there
    inputs = Inputs(scenario, folder / SCENARIO, before.seed)
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


def _verdict(before: Result, again: Result, until: float | None, traced: bool) -> Comparison:
    if until is not None:
        message = f"ran to {again.virtual:g} s of {before.duration:g} s without a comparison"
        return Comparison(None, message)
    if again.digest == before.digest:
        return Comparison(True, f"the same {again.records} records")
    message = "the digests differ"
    if not traced:
        message += "; after a run with `--trace`, replay shows where"
    return Comparison(False, message)
