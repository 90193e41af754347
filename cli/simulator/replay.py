"""`shoal sim replay` and `shoal sim diff`: compare two runs and find where they first differ."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import render
from ..errors import CommandError
from .folder import SCENARIO, TRACE, RunFolder
from .run import read_scenario, run_here, versions

if TYPE_CHECKING:
    from ...netsim.scenario.format.tables import Scenario

Found = dict[str, Any]
"""`same` is True, False, or None if unknown; the other fields explain it."""


def trace_of(path: Path) -> Path:
    """Return the trace that a person means: a file, or a run folder's. Raises CommandError."""
    if path.is_dir():
        path = path / TRACE
    if not path.is_file():
        raise CommandError(
            "failed", f"there is no trace `{path}`",
            hint="`shoal sim run FILE --trace` keeps one in its run folder",
        )  # fmt: skip
    return path


def difference(a: Path, b: Path) -> Found:
    """Find the first event that differs between two traces."""
    from ...netsim.errors import BadTrace
    from ...netsim.trace.file import first_difference

    try:
        with a.open("rb") as one, b.open("rb") as other:
            found = first_difference(one, other, names=(str(a), str(b)))
    except BadTrace as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise CommandError("failed", message, hint=hint or "`--trace` keeps a trace") from None
    if found is None:
        return {"same": True, "message": "the traces are the same, record by record"}
    return {
        "same": False,
        "message": "the traces differ",
        "record": found.index,
        "causes": list(found.causes),
        "difference": "\n".join(found.lines(str(a), str(b))),
    }


def replay(folder: Path, until: float | None, strictly: "Callable[[Scenario], None]") -> Found:
    """Run a folder's scenario and seed again, and compare the runs."""
    kept = RunFolder(folder)
    before, more = kept.read()
    if not (folder / SCENARIO).is_file():
        raise CommandError(
            "failed", f"`{folder}` is damaged: it has no {SCENARIO}",
            hint="`shoal sim run FILE --out DIR` makes a new one",
        )  # fmt: skip
    scenario = read_scenario(folder / SCENARIO, more["hosts_given"])
    if more["backend"] == "netns":
        raise CommandError(
            "failed", f"`{folder}` ran in a real kernel, where runs are not repeatable",
            hint="a run with `--backend sim` can be repeated",
        )  # fmt: skip
    strictly(scenario)
    if until is not None and until >= scenario.sim.duration:
        until = None
    if until is None and before.ended not in ("done", "stopped"):
        until = before.virtual or None  # it was interrupted there
    with tempfile.TemporaryDirectory(prefix="shoal-replay-") as scratch:
        trace = Path(scratch) / TRACE if kept.trace.is_file() else None
        again = run_here(scenario, folder / SCENARIO, before.seed, trace=trace, until=until)
        found: Found = {"digest": again.digest, "before": before.digest, "seed": before.seed}
        found["other_versions"] = {
            name: [old, versions()[name]]
            for name, old in before.versions.items()
            if versions().get(name) != old
        }
        if trace is not None and until is None and again.digest != before.digest:
            return found | difference(kept.trace, trace)
    return found | _verdict(before, again, until, trace is not None)


def _verdict(before: Any, again: Any, until: float | None, traced: bool) -> Found:
    if until is not None:
        message = f"ran to {again.virtual:g} s of {before.duration:g} s without a comparison"
        return {"same": None, "message": message, "metrics": asdict(again)["metrics"]}
    if again.digest == before.digest:
        return {"same": True, "message": f"the same {again.records} records"}
    message = "the digests differ"
    if not traced:
        message += "; after a run with `--trace`, replay shows where"
    return {"same": False, "message": message}


def words(found: Found) -> str:
    """Format the comparison for a person."""
    lines = []
    if "digest" in found:
        lines.append(f"seed {found['seed']}, digest {found['digest']}")
    lines.append(found["message"])
    if "difference" in found:
        lines.append(render.safe_text(found["difference"]))
    for name, (old, new) in found.get("other_versions", {}).items():
        lines.append(f"note: {name} was {old} then, and is {new} now")
    return "\n".join(lines)
