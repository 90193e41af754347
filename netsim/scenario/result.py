"""The result of a run: metrics, verdicts, events, and the digest that tells two runs apart."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypedDict

from .format.metrics import Metrics

MOST_SAMPLES = 2000  # maximum of samples of a distribution kept for plots
MOST_DEEDS = 10_000  # maximum of entries of the faults' timeline that are kept

_BULKY: Final = ("samples", "series", "deeds")  # fields that only plots need
_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "str": str, "int": int, "float": (int, float), "list": list,
}  # fmt: skip


@dataclass(slots=True)
class Verdict:
    """Verdict on one expectation, with the value found."""

    text: str
    met: bool
    found: float | None  # the metric, or the seconds until the invariant held
    line: int = 0
    shown: str = ""  # the value found, for a person


@dataclass(slots=True)
class Happening:
    """A step or a departure: start and end in seconds (None if it has no end), action, target."""

    at: float
    until: float | None
    what: str
    target: str


@dataclass(slots=True)
class HostFigures:
    """Figures of one host at the end."""

    name: str
    kind: str  # of gateway: "public", "linux-drop", …
    program: str
    site: int
    up: bool
    counters: dict[str, int]


class PairMatrix(TypedDict, total=False):
    """Pairs of hosts by class. `cells[a][b]` has two counts: pairs that met, and all pairs."""

    what: str
    classes: list[str]
    cells: list[list[list[int]]]


@dataclass(slots=True)
class Result:
    """Result of one run of a scenario. Plain values, so that it can be written as JSON."""

    name: str
    seed: int
    duration: float  # virtual seconds asked for
    virtual: float  # virtual seconds reached
    real: float  # seconds of this machine
    digest: str
    records: int
    ended: str  # "done", or the reason why not: "interrupted"
    metrics: Metrics = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    hosts: list[HostFigures] = field(default_factory=list)
    pairs: PairMatrix = field(default_factory=PairMatrix)
    series: dict[str, list[float]] = field(default_factory=dict)  # by sample: at, sent, …
    happenings: list[Happening] = field(default_factory=list)
    deeds: list[tuple[float, str, str, str]] = field(default_factory=list)  # time, action, target
    verdicts: list[Verdict] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether every expectation was met, and the run was complete."""
        return self.ended == "done" and all(verdict.met for verdict in self.verdicts)

    def brief(self) -> dict[str, object]:
        """Return the fields as JSON values, without those that only plots need."""
        return {name: value for name, value in asdict(self).items() if name not in _BULKY}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Result":
        """Return a result from the output of `dataclasses.asdict`. Raises TypeError, KeyError."""
        data = dict(data)
        for item in fields(cls):
            if not isinstance(data[item.name], _KINDS.get(_form(item.type), dict)):
                raise TypeError(f"`{item.name}` is not of type {item.type}")
        data["hosts"] = [HostFigures(**item) for item in data["hosts"]]
        data["happenings"] = [Happening(**item) for item in data["happenings"]]
        data["verdicts"] = [Verdict(**item) for item in data["verdicts"]]
        return cls(**data)


def _form(annotation: object) -> str:
    """Return `list` for `list[float]`."""
    return str(getattr(annotation, "__name__", annotation)).partition("[")[0]


def thinned(values: list[float]) -> list[float]:
    """Return the values sorted. If there are many, return an even sample with both extremes."""
    ordered = sorted(values)
    if len(ordered) <= MOST_SAMPLES:
        return ordered
    step = (len(ordered) - 1) / (MOST_SAMPLES - 1)
    return [ordered[round(number * step)] for number in range(MOST_SAMPLES)]


def pair_matrix(what: str, pairs: list[tuple[str, str, bool]]) -> PairMatrix:
    """Return a matrix by class: of the pairs of two classes, how many met, and how many exist."""
    classes = sorted({name for a, b, _ in pairs for name in (a, b)})
    rank = {name: number for number, name in enumerate(classes)}
    cells = [[[0, 0] for _ in classes] for _ in classes]
    for a, b, met in pairs:
        for one, other in {(rank[a], rank[b]), (rank[b], rank[a])}:
            cells[one][other][0] += met
            cells[one][other][1] += 1
    return {"what": what, "classes": classes, "cells": cells}
