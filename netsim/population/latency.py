"""How long a packet takes between two places: matrices of measured round trips.

Two published formats are read: the PlanetLab matrix of uofa-rzhu3/NetLatency-Data (MIT), and the
pings of WonderNetwork as ConsenSys/wittgenstein publishes them (Apache-2.0). `core` is a part of
the latter that comes with the package.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from ..errors import BadScenario
from .data import text, unknown

SAME_SITE_S: Final = 0.001
"""One way between two hosts of one place; the access links come on top."""
MAX_SITES: Final = 2000
MAX_RTT_MS: Final = 10_000.0
_WONDER: Final = ["from", "to", "avg_ms", "pct_sol", "min_ms", "max_ms", "mdev_ms"]


@dataclass(frozen=True, slots=True)
class Site:
    """A place, and the region it lies in ("" where the data does not say)."""

    name: str
    region: str = ""


class Matrix:
    """Seconds one way between sites, by their row: half of the mean of both round trips."""

    def __init__(self, sites: Sequence[Site], round_trips_ms: Sequence[Sequence[float]]) -> None:
        self.sites = tuple(sites)
        self._rows = [
            [
                SAME_SITE_S if a == b else (row[b] + round_trips_ms[b][a]) / 4000
                for b in range(len(row))
            ]
            for a, row in enumerate(round_trips_ms)
        ]

    def __len__(self) -> int:
        return len(self.sites)

    def __call__(self, a: int, b: int) -> float:
        """Seconds from site `a` to site `b`; the form that `World(latency=…)` takes."""
        return self._rows[a][b]

    def regions(self) -> list[str]:
        """Their names, in order of appearance."""
        return list(dict.fromkeys(site.region for site in self.sites))

    def of_region(self, region: str) -> list[int]:
        """The rows of a region's sites."""
        return [row for row, site in enumerate(self.sites) if site.region == region]

    def row(self, name: str) -> int:
        """The row of a site. Raises BadScenario."""
        for row, site in enumerate(self.sites):
            if site.name == name:
                return row
        raise unknown("site", name, [site.name for site in self.sites])

    def one_way(self) -> list[float]:
        """Every pair's seconds, sorted: for quantiles."""
        return sorted(s for a, row in enumerate(self._rows) for b, s in enumerate(row) if a != b)


def _milliseconds(item: str, line: int) -> float:
    try:
        value = float(item)
    except ValueError:
        raise BadScenario(f"{item[:40]!r} is no number of milliseconds", line=line) from None
    if not 0 <= value <= MAX_RTT_MS:  # NaN is not, either
        raise BadScenario(f"a round trip of {item[:40]} ms cannot be", line=line)
    return value


def _bounded(count: int, line: int) -> None:
    if count > MAX_SITES:
        raise BadScenario(f"the matrix has more than {MAX_SITES} sites", line=line)


def planetlab(lines: Iterable[str]) -> Matrix:
    """The PlanetLab format: a square of milliseconds between white space, a line a site.

    Raises BadScenario with the line.
    """
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        items = line.split()
        if not items:
            continue
        _bounded(max(len(items), len(rows) + 1), number)
        if rows and len(items) != len(rows[0]):
            raise BadScenario(
                f"{len(items)} values where the lines before have {len(rows[0])}", line=number
            )
        rows.append([_milliseconds(item, number) for item in items])
    if not rows or len(rows) != len(rows[0]):
        wide = len(rows[0]) if rows else 0
        raise BadScenario(f"{len(rows)} lines of {wide} values: not a square", line=len(rows))
    return Matrix([Site(f"planetlab-{row}") for row in range(len(rows))], rows)


def _rows_of(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise BadScenario(f"this is no CSV: {error}", line=reader.line_num) from None


def wondernetwork(lines: Iterable[str]) -> Matrix:
    """The WonderNetwork format: `from,to,avg_ms,pct_sol,min_ms,max_ms,mdev_ms`, a line a pair.

    `from` is a city, `+` for a space; `to` is "City Country, Continent". A site is a city that
    pings; a pair measured in one direction counts for both, one never measured has the median of
    all. The region is the continent. Raises BadScenario with the line.
    """
    rows = _rows_of(lines)
    first, header = next(rows, (1, []))
    if header != _WONDER:
        raise BadScenario(f"the first line is not {','.join(_WONDER)}", line=first)
    pings: dict[str, dict[str, float]] = {}
    places: dict[str, None] = {}
    for line, row in rows:
        if len(row) != len(_WONDER):
            raise BadScenario(f"{len(row)} values where {len(_WONDER)} belong", line=line)
        pings.setdefault(row[0].replace("+", " "), {})[row[1]] = _milliseconds(row[2], line)
        places[row[1]] = None
        _bounded(max(len(pings), len(places)), line)
    return _from_pings(pings, places)


def _from_pings(pings: dict[str, dict[str, float]], places: Iterable[str]) -> Matrix:
    full: dict[str, str] = {}
    for place in places:
        words = place.split(",")[0].split(" ")
        heads = (" ".join(words[:end]) for end in range(len(words), 0, -1))
        city = next((head for head in heads if head in pings), None)
        if city is not None:
            full[city] = place
    if len(full) < 2:
        raise BadScenario("there are no two cities that ping each other")
    names = sorted(full)
    known = [ms for city in names for ms in pings[city].values()]
    median = sorted(known)[len(known) // 2]
    matrix = [
        [pings[a].get(full[b], pings[b].get(full[a], median)) if a != b else 0.0 for b in names]
        for a in names
    ]
    return Matrix([Site(city, full[city].rsplit(",", 1)[-1].strip()) for city in names], matrix)


def compact(lines: Iterable[str]) -> Matrix:
    """The package's own form: `site,region` and the round trips in ms to the sites before it."""
    sites: list[Site] = []
    rows: list[list[float]] = []
    for line, row in _rows_of(item for item in lines if not item.startswith("#")):
        if len(row) != 2 + len(sites):
            raise BadScenario(f"{len(row)} values where {2 + len(sites)} belong", line=line)
        _bounded(len(sites) + 1, line)
        sites.append(Site(row[0], row[1]))
        rows.append([_milliseconds(item, line) for item in row[2:]])
    square = [
        [rows[max(a, b)][min(a, b)] if a != b else 0.0 for b in range(len(sites))]
        for a in range(len(sites))
    ]
    return Matrix(sites, square)


FORMATS: Final[dict[str, Callable[[Iterable[str]], Matrix]]] = {
    "planetlab": planetlab,
    "wondernetwork": wondernetwork,
}
"""Published formats, for a file of the user's."""


def names() -> list[str]:
    """The matrices that come with the package."""
    return ["core"]


@cache
def matrix(name: str = "core") -> Matrix:
    """A matrix of the package by name. Raises BadScenario."""
    if name not in names():
        raise unknown("latency matrix", name, names())
    return compact(text("core.csv").splitlines())


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted `values` lies."""
    return values[min(len(values) - 1, math.floor(share * len(values)))]
