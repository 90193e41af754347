"""What a run yields: figures, verdicts, what happened, and how to tell two runs apart."""

from dataclasses import dataclass, field, fields
from typing import Any, Final

MOST_SAMPLES = 2000  # of a distribution that are kept for plots
MOST_DEEDS = 10_000  # of the faults' own timeline that are kept

_KINDS: Final[dict[str, Any]] = {
    "str": str, "int": int, "float": (int, float), "dict": dict, "list": list,
}  # fmt: skip


@dataclass(slots=True)
class Verdict:
    """One expectation, and what was found."""

    text: str
    met: bool
    found: float | None  # the metric, or after how many seconds the invariant held
    line: int = 0
    shown: str = ""  # what was found, for a person


@dataclass(slots=True)
class Happening:
    """A step or a departure: from when (seconds), until when if it ended, what, on whom."""

    at: float
    until: float | None
    what: str
    target: str


@dataclass(slots=True)
class HostFigures:
    """One host at the end."""

    name: str
    kind: str  # of gateway: "public", "linux-drop", …
    program: str
    site: int
    up: bool
    counters: dict[str, int]


@dataclass(slots=True)
class Result:
    """One run of a scenario. Plain values, so that it can be written as JSON."""

    name: str
    seed: int
    duration: float  # virtual seconds asked for
    virtual: float  # virtual seconds reached
    real: float  # seconds of this machine
    digest: str
    records: int
    ended: str  # "done", or why not: "interrupted"
    metrics: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    hosts: list[HostFigures] = field(default_factory=list)
    pairs: dict[str, Any] = field(default_factory=dict)  # what, classes, cells of [met, all]
    series: dict[str, list[float]] = field(default_factory=dict)  # by sample: at, sent, …
    happenings: list[Happening] = field(default_factory=list)
    deeds: list[tuple[float, str, str, str]] = field(default_factory=list)  # time, what, on whom
    verdicts: list[Verdict] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether every expectation was met, and the run came to its end."""
        return self.ended == "done" and all(verdict.met for verdict in self.verdicts)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Result":
        """A result that `dataclasses.asdict` has taken apart. Raises TypeError, KeyError."""
        data = dict(data)
        for item in fields(cls):
            if not isinstance(data[item.name], _KINDS[_form(item.type)]):
                raise TypeError(f"`{item.name}` is no {item.type}")
        data["hosts"] = [HostFigures(**item) for item in data["hosts"]]
        data["happenings"] = [Happening(**item) for item in data["happenings"]]
        data["verdicts"] = [Verdict(**item) for item in data["verdicts"]]
        return cls(**data)


def _form(annotation: Any) -> str:
    """`list` of `list[float]`."""
    return str(getattr(annotation, "__name__", annotation)).partition("[")[0]


def thinned(values: list[float]) -> list[float]:
    """Ascending, and evenly fewer where there are many; the ends stay."""
    ordered = sorted(values)
    if len(ordered) <= MOST_SAMPLES:
        return ordered
    step = (len(ordered) - 1) / (MOST_SAMPLES - 1)
    return [ordered[round(number * step)] for number in range(MOST_SAMPLES)]


def pair_matrix(what: str, pairs: list[tuple[str, str, bool]]) -> dict[str, Any]:
    """Pairs of classes and whether they met, as a matrix of [met, all] by class."""
    classes = sorted({name for a, b, _ in pairs for name in (a, b)})
    rank = {name: number for number, name in enumerate(classes)}
    cells = [[[0, 0] for _ in classes] for _ in classes]
    for a, b, met in pairs:
        for one, other in {(rank[a], rank[b]), (rank[b], rank[a])}:
            cells[one][other][0] += met
            cells[one][other][1] += 1
    return {"what": what, "classes": classes, "cells": cells}
