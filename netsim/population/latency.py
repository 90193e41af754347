"""Latency between two sites: matrices of round trips, measured or computed.

This module reads two published formats: the PlanetLab matrix of uofa-rzhu3/NetLatency-Data (MIT),
and the pings of WonderNetwork as published by ConsenSys/wittgenstein (Apache-2.0). The built-in
matrix `core` is computed: the time that light in fibre needs for the great circle between two
cities, times a detour factor, plus a constant for both ends.

The quantiles of `core` differ from those of the pings between the same cities (2018) by 3 % at the
median, and by up to 12 % from the 5th to the 95th percentile. The round trip of a single pair
differs by 20 % at the median and by 47 % at the 90th percentile, because real routes follow cables
and contracts (most of all in Africa and South America). The median of `core` is 23 % above that of
PlanetLab, whose sites are universities. From the 75th percentile up, the two are within 8 %.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from ..errors import BadScenario
from .data import text, unknown

FIBRE_KM_PER_S: Final = 200_000.0
"""Speed of light in glass, which has a refractive index of about 1.5."""
DETOUR: Final = 1.9
"""Ratio of a route's length to the great circle between its ends."""
ENDS_MS: Final = 8.0
"""Part of a round trip that does not depend on the distance: routers and the routes in cities."""
EARTH_KM: Final = 6371.0  # mean radius
SAME_SITE_S: Final = 0.001
"""One-way latency, in seconds, between two hosts at one site. Access links are not included."""
MAX_SITES: Final = 2000
MAX_RTT_MS: Final = 10_000.0
UNITS_MS: Final = {"ms": 1.0, "s": 1000.0}
"""Milliseconds per unit, for each unit that the round trips in a file can have."""
UNSURE_BELOW: Final = 10.0
"""Values of a file that are all below this number could be seconds, or milliseconds within one
city. The unit must then be stated.
"""
_WONDER: Final = ["from", "to", "avg_ms", "pct_sol", "min_ms", "max_ms", "mdev_ms"]


@dataclass(frozen=True, slots=True)
class GeoSite:
    """A site, with the name of its region, which is empty if the data has no regions."""

    name: str
    region: str = ""


class LatencyMatrix:
    """One-way latencies between sites, in seconds. A site is identified by its row number.

    The latency between two sites is half of the mean of the two measured round trips.
    """

    def __init__(self, sites: Sequence[GeoSite], round_trips_ms: Sequence[Sequence[float]]) -> None:
        """Create the matrix. `round_trips_ms` has a row of milliseconds for each site."""
        self.sites = tuple(sites)
        """The sites, in the order of the rows."""
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
        """Return the latency from site `a` to site `b` in seconds. `World` calls this."""
        return self._rows[a][b]

    def regions(self) -> list[str]:
        """Return the names of the regions, in the order of their first sites."""
        return list(dict.fromkeys(site.region for site in self.sites))

    def of_region(self, region: str) -> list[int]:
        """Return the rows of the sites in a region."""
        return [row for row, site in enumerate(self.sites) if site.region == region]

    def row(self, name: str) -> int:
        """Return the row of a site by its name. Raises BadScenario if there is none."""
        for row, site in enumerate(self.sites):
            if site.name == name:
                return row
        raise unknown("site", name, [site.name for site in self.sites])

    def one_way(self) -> list[float]:
        """Return the latencies of all pairs of different sites, in seconds, sorted."""
        return sorted(s for a, row in enumerate(self._rows) for b, s in enumerate(row) if a != b)


def _milliseconds(item: str, line: int, unit: str = "ms") -> float:
    """Convert a text to a round trip in milliseconds. `unit` is the unit of the text.

    Raises BadScenario if it is not a number or is out of range.
    """
    try:
        value = float(item) * UNITS_MS[unit]
    except ValueError:
        word = {"ms": "milliseconds", "s": "seconds"}[unit]
        raise BadScenario(f"{item[:40]!r} is not a number of {word}", line=line) from None
    if not 0 <= value <= MAX_RTT_MS:  # also refuses NaN
        raise BadScenario(f"a round trip of {item[:40]} {unit} is out of range", line=line)
    return value


def _bounded(count: int, line: int) -> None:
    """Raise BadScenario if `count` sites are too many."""
    if count > MAX_SITES:
        raise BadScenario(f"the matrix has more than {MAX_SITES} sites", line=line)


def planetlab(lines: Iterable[str], unit: str = "") -> LatencyMatrix:
    """Parse the PlanetLab format: a square of round trips, separated by white space.

    Each line has the round trips of one site. `unit` is "ms", "s" or empty. If it is empty, the
    values are in milliseconds, but values that could also be seconds are refused. Raises
    BadScenario, with the line, if the file is malformed.
    """
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        items = line.split()
        if not items:
            continue
        _bounded(max(len(items), len(rows) + 1), number)
        if rows and len(items) != len(rows[0]):
            raise BadScenario(
                f"{len(items)} values, expected {len(rows[0])} as in the lines before", line=number
            )
        rows.append([_milliseconds(item, number, unit or "ms") for item in items])
    if not rows or len(rows) != len(rows[0]):
        wide = len(rows[0]) if rows else 0
        raise BadScenario(f"{len(rows)} lines of {wide} values: not a square", line=len(rows))
    longest = max(max(row) for row in rows)
    if not unit and 0 < longest < UNSURE_BELOW:
        raise BadScenario(
            f"the longest round trip is {longest:g}, which can be seconds or milliseconds",
            hint='set the unit in [world]: `latency_unit = "s"` or `latency_unit = "ms"`',
        )
    return LatencyMatrix([GeoSite(f"planetlab-{row}") for row in range(len(rows))], rows)


def _rows_of(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, row) of a CSV file. Raises BadScenario if it is not valid CSV."""
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise BadScenario(f"not valid CSV: {error}", line=reader.line_num) from None


def wondernetwork(lines: Iterable[str]) -> LatencyMatrix:
    """Parse the WonderNetwork format, which is CSV with one line for each pair of cities.

    The columns are `from,to,avg_ms,pct_sol,min_ms,max_ms,mdev_ms`. `from` is a city, with `+` in
    place of spaces; `to` is "City Country, Continent". Each city that sends pings is a site, and
    its region is the continent. If a pair was measured in one direction only, this value counts for
    both directions. A pair without a measurement gets the median of all. Raises BadScenario, with
    the line, if the file is malformed.
    """
    rows = _rows_of(lines)
    first, header = next(rows, (1, []))
    if header != _WONDER:
        raise BadScenario(f"the first line is not {','.join(_WONDER)}", line=first)
    pings: dict[str, dict[str, float]] = {}
    places: dict[str, None] = {}
    for line, row in rows:
        if len(row) != len(_WONDER):
            raise BadScenario(f"{len(row)} values, expected {len(_WONDER)}", line=line)
        pings.setdefault(row[0].replace("+", " "), {})[row[1]] = _milliseconds(row[2], line)
        places[row[1]] = None
        _bounded(max(len(pings), len(places)), line)
    return _from_pings(pings, places)


def _from_pings(pings: dict[str, dict[str, float]], places: Iterable[str]) -> LatencyMatrix:
    """Build a matrix from pings.

    `pings` maps each sending city to its round trips by destination. `places` are all destinations,
    in the form "City Country, Continent".
    """
    full: dict[str, str] = {}
    for place in places:
        words = place.split(",")[0].split(" ")
        heads = (" ".join(words[:end]) for end in range(len(words), 0, -1))
        city = next((head for head in heads if head in pings), None)
        if city is not None:
            full[city] = place
    if len(full) < 2:
        raise BadScenario("no two cities ping each other")
    names = sorted(full)
    known = [ms for city in names for ms in pings[city].values()]
    median = sorted(known)[len(known) // 2]
    matrix = [
        [pings[a].get(full[b], pings[b].get(full[a], median)) if a != b else 0.0 for b in names]
        for a in names
    ]
    return LatencyMatrix(
        [GeoSite(city, full[city].rsplit(",", 1)[-1].strip()) for city in names], matrix
    )


def cities(lines: Iterable[str]) -> LatencyMatrix:
    """Compute the latencies between cities, given as CSV: `name,region,latitude,longitude`.

    Latitude and longitude are in degrees. Lines that begin with `#` are comments. Raises
    BadScenario, with the line, if the file is malformed.
    """
    sites: list[GeoSite] = []
    places: list[tuple[float, float]] = []
    for line, row in _rows_of(item for item in lines if not item.startswith("#")):
        if len(row) != 4:
            raise BadScenario(f"{len(row)} values, expected 4", line=line)
        _bounded(len(sites) + 1, line)
        sites.append(GeoSite(row[0], row[1]))
        places.append((_degrees(row[2], 90, line), _degrees(row[3], 180, line)))
    return LatencyMatrix(sites, [[round_trip_ms(a, b) for b in places] for a in places])


def _degrees(item: str, most: int, line: int) -> float:
    """Convert a text to a number of degrees.

    Raises BadScenario if the text is not a number from -`most` to `most`.
    """
    try:
        value = float(item)
    except ValueError:
        value = math.nan
    if not -most <= value <= most:
        raise BadScenario(
            f"{item[:40]!r} is not a number of degrees from -{most} to {most}", line=line
        )
    return value


def round_trip_ms(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Compute the round trip between two sites, in milliseconds.

    `a` and `b` are (latitude, longitude) in degrees.
    """
    (north_a, east_a), (north_b, east_b) = (map(math.radians, place) for place in (a, b))
    # The haversine formula stays accurate for sites that are near each other.
    chord = math.sin((north_a - north_b) / 2) ** 2
    chord += math.cos(north_a) * math.cos(north_b) * math.sin((east_a - east_b) / 2) ** 2
    km = 2 * EARTH_KM * math.asin(math.sqrt(min(chord, 1.0)))
    return 2000 * km * DETOUR / FIBRE_KM_PER_S + ENDS_MS


FORMATS: Final[dict[str, Callable[..., LatencyMatrix]]] = {
    "cities": cities,
    "planetlab": planetlab,
    "wondernetwork": wondernetwork,
}
"""Parsers of the formats that a user's file can have."""
WITH_UNIT: Final = ("planetlab",)  # formats whose parser also takes the unit of the values


def names() -> list[str]:
    """Return the names of the built-in matrices."""
    return ["core"]


@cache
def matrix(name: str = "core") -> LatencyMatrix:
    """Return a built-in matrix by its name. Raises BadScenario if there is none."""
    if name not in names():
        raise unknown("latency matrix", name, names())
    return cities(text("cities.csv").splitlines())


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile `share` (0 to 1) of the sorted `values`, without interpolation."""
    return values[min(len(values) - 1, math.floor(share * len(values)))]
