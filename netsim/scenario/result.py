"""Result of a run: metrics, verdicts, events, and a digest that differs if two runs differ."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypedDict

from .format.metrics import Metrics

MOST_SAMPLES = 2000  # measurements of a distribution that a result keeps, for plots
MOST_DEEDS = 10_000  # entries of the timeline of faults that a result keeps

_BULKY: Final = ("samples", "series", "deeds")  # fields that only plots need
_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "str": str, "int": int, "float": (int, float), "list": list,
}  # fmt: skip


@dataclass(slots=True)
class ExpectationVerdict:
    """Outcome of one expectation.

    `text` states the expectation, and `line` is its line in the file.
    """

    text: str
    met: bool
    found: float | None  # the metric, or the seconds until the invariant held; None: neither
    line: int = 0
    shown: str = ""  # `found`, formatted with its unit


@dataclass(slots=True)
class Happening:
    """A step of the scenario that was executed.

    `at` and `until` are its start and end in virtual seconds; `until` is None if it has no end.
    `what` is the action, and `target` names the hosts or groups as in the file.
    """

    at: float
    until: float | None
    what: str
    target: str


@dataclass(slots=True)
class HostFigures:
    """Figures of one host at the end of the run."""

    name: str
    kind: str  # the kind of its gateway: "linux-drop", …; "public" without one
    program: str
    site: int
    up: bool
    counters: dict[str, int]


class PairMatrix(TypedDict, total=False):
    """Counts of pairs of hosts, by the hosts' kinds of gateway.

    `what` is the verb for a pair that met, such as "linked". `cells[a][b]` has two counts for kinds
    number `a` and `b` of `classes`: pairs that met, and all pairs.
    """

    what: str
    classes: list[str]
    cells: list[list[list[int]]]


@dataclass(slots=True)
class RunResult:
    """Result of one run of a scenario, in plain values that can be written as JSON."""

    name: str
    seed: int
    duration: float  # virtual seconds that the scenario asks for
    virtual: float  # virtual seconds that have passed
    real: float  # seconds of real time that the run took
    digest: str
    records: int  # records of the trace that `digest` covers
    ended: str  # "done", or why the run is incomplete: "interrupted", "stopped" or "failed: …"
    metrics: Metrics = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    hosts: list[HostFigures] = field(default_factory=list)
    pairs: PairMatrix = field(default_factory=PairMatrix)
    # For each sampled figure (`sent`, `up`, …), its values at the times in `at`.
    series: dict[str, list[float]] = field(default_factory=dict)
    happenings: list[Happening] = field(default_factory=list)
    # The timeline of faults: (virtual seconds, action, names of hosts, detail).
    deeds: list[tuple[float, str, str, str]] = field(default_factory=list)
    verdicts: list[ExpectationVerdict] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether the run was complete and met every expectation."""
        return self.ended == "done" and all(verdict.met for verdict in self.verdicts)

    def brief(self) -> dict[str, object]:
        """Return the fields as JSON values, without the long ones that only plots need."""
        return {name: value for name, value in asdict(self).items() if name not in _BULKY}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RunResult":
        """Build a result from the output of `dataclasses.asdict`.

        Raises TypeError if a field has the wrong type, and KeyError if a field is missing.
        """
        data = dict(data)
        for item in fields(cls):
            if not isinstance(data[item.name], _KINDS.get(_form(item.type), dict)):
                raise TypeError(f"`{item.name}` is not of type {item.type}")
        data["hosts"] = [HostFigures(**item) for item in data["hosts"]]
        data["happenings"] = [Happening(**item) for item in data["happenings"]]
        data["verdicts"] = [ExpectationVerdict(**item) for item in data["verdicts"]]
        return cls(**data)


def _form(annotation: object) -> str:
    """Return the name of an annotated type without its parameters: `list` for `list[float]`."""
    return str(getattr(annotation, "__name__", annotation)).partition("[")[0]


def thinned(values: list[float]) -> list[float]:
    """Sort the values. If there are more than `MOST_SAMPLES`, return an evenly spaced selection.

    The selection includes the lowest and the highest value.
    """
    ordered = sorted(values)
    if len(ordered) <= MOST_SAMPLES:
        return ordered
    step = (len(ordered) - 1) / (MOST_SAMPLES - 1)
    return [ordered[round(number * step)] for number in range(MOST_SAMPLES)]


def pair_matrix(what: str, pairs: list[tuple[str, str, bool]]) -> PairMatrix:
    """Count pairs of hosts by the hosts' kinds of gateway.

    Each of `pairs` has the kinds of two hosts, and whether these hosts met. `what` is the verb for
    a pair that met, such as "linked".
    """
    classes = sorted({name for a, b, _ in pairs for name in (a, b)})
    rank = {name: number for number, name in enumerate(classes)}
    cells = [[[0, 0] for _ in classes] for _ in classes]
    for a, b, met in pairs:
        for one, other in dict.fromkeys(((rank[a], rank[b]), (rank[b], rank[a]))):
            cells[one][other][0] += met
            cells[one][other][1] += 1
    return {"what": what, "classes": classes, "cells": cells}
