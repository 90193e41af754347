"""Volunteers drawn from classes of NATs and links, and built into a world.

Each volunteer is drawn from its own stream, so that adding one changes no other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final, NotRequired, TypedDict, TypeVar

from ..errors import BadScenario
from ..host import Host
from ..light import Core, LightHost
from ..network.gateway import Gateway
from ..network.link import LinkSpec
from ..world import World
from . import latency, profiles
from .data import table, unknown

DEFAULT: Final = "home-volunteers-2026"
PUNCH: Final = ("open", "port", "late", "symmetric", "blocked")
Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Region:
    """A region: its share of the volunteers, and its clock against UTC in hours."""

    name: str
    share: float
    utc_hours: float


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of volunteers.

    `nat` and `carrier` are kinds of gateway, "" for none; `links` are profiles by share; `punch` is
    the class's ability to punch holes in theory (explained in the data file).
    """

    name: str
    share: float
    nat: str
    punch: str
    links: Mapping[str, float]
    carrier: str = ""
    forward: bool = False
    knobs: Mapping[str, Any] = field(default_factory=dict)
    carrier_knobs: Mapping[str, Any] = field(default_factory=dict)


class ClassEntry(TypedDict):
    """A class of volunteers in a data file; shares are in percent."""

    name: str
    percent: float
    nat: str
    punch: str
    links: dict[str, float]
    carrier: NotRequired[str]
    forward: NotRequired[bool]
    knobs: NotRequired[dict[str, object]]
    carrier_knobs: NotRequired[dict[str, object]]


@dataclass(frozen=True, slots=True)
class Population:
    """A mix of classes and regions. Shares are fractions of 1."""

    name: str
    regions: tuple[Region, ...]
    kinds: tuple[Kind, ...]
    ipv6: float
    bad_wifi: float


@dataclass(frozen=True, slots=True)
class Draw:
    """Drawn properties of one volunteer; `site` is a row of the latency matrix."""

    kind: Kind
    region: Region
    site: int
    link: str
    bad_wifi: bool
    ipv6: bool


@dataclass(slots=True)
class Volunteer:
    """A volunteer in a world. `gateways` are those in front of its host, the nearest first."""

    drawn: Draw
    host: Host | LightHost
    gateways: list[Gateway]

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def kind(self) -> str:
        """The name of its class."""
        return self.drawn.kind.name

    def __repr__(self) -> str:
        drawn = self.drawn
        return f"<volunteer {self.name}: {self.kind}, {drawn.link}, {drawn.region.name}>"


def names() -> list[str]:
    """Return the populations of the package."""
    return [DEFAULT]


@cache
def load(name: str = DEFAULT) -> Population:
    """Return a population of the package. Raises BadScenario with the nearest name."""
    if name not in names():
        raise unknown("population", name, names())
    return read(table(f"{name}.toml"))


def read(entry: Mapping[str, Any]) -> Population:
    """Read a population from its table. Raises BadScenario if shares or names do not fit."""
    regions = tuple(
        Region(name, item["percent"] / 100, item["utc_hours"])
        for name, item in entry["regions"].items()
    )
    kinds = tuple(_kind(item) for item in entry["class"])
    for what, shares in (
        ("regions", [region.share for region in regions]),
        ("classes", [kind.share for kind in kinds]),
    ):
        if abs(sum(shares) - 1) > 1e-6:
            raise BadScenario(f"the shares of the {what} sum up to {100 * sum(shares):g} %")
    return Population(
        entry["name"],
        regions,
        kinds,
        entry["ipv6_percent"] / 100,
        entry["bad_wifi_percent"] / 100,
    )


def _kind(item: ClassEntry) -> Kind:
    name = item["name"]
    if item["punch"] not in PUNCH:
        raise unknown(f"`punch` of class {name}", item["punch"], PUNCH)
    if abs(sum(item["links"].values()) - 100) > 1e-6:
        raise BadScenario(f"the links of class {name} do not sum up to 100 %")
    for link in item["links"]:
        profiles.link(link)
    return Kind(
        name,
        item["percent"] / 100,
        item["nat"],
        item["punch"],
        {link: share / 100 for link, share in item["links"].items()},
        item.get("carrier", ""),
        item.get("forward", False),
        item.get("knobs", {}),
        item.get("carrier_knobs", {}),
    )


def draw(population: Population, random: Random, places: latency.Matrix) -> Draw:
    """Draw a volunteer; every one takes the same number of draws, whatever the result."""
    kind = _choose(random, ((item, item.share) for item in population.kinds))
    region = _choose(random, ((item, item.share) for item in population.regions))
    link = _choose(random, kind.links.items())
    sites = places.of_region(region.name) or range(len(places))
    site = sites[int(random.random() * len(sites))]
    bad_wifi = random.random() < population.bad_wifi
    ipv6 = random.random() < population.ipv6
    return Draw(kind, region, site, link, bad_wifi and bool(kind.nat), ipv6)


def _choose(random: Random, shares: Iterable[tuple[Choice, float]]) -> Choice:
    items, weights = zip(*shares, strict=True)
    found: Choice = random.choices(items, weights)[0]
    return found


def populate(
    world: World,
    count: int,
    *,
    population: str | Population = DEFAULT,
    places: latency.Matrix | None = None,
    prefix: str = "v",
    core: Callable[[str], Core] | None = None,
) -> list[Volunteer]:
    """Draw volunteers and build them; with `core` (from a name to a core) they are light hosts.

    Their sites are rows of `places`, the package's matrix; `World(latency=latency.matrix())` uses
    it.
    """
    drawn = draws(world, count, population=population, places=places, prefix=prefix)
    return [
        build(world, name, one, core(name) if core is not None else None)
        for name, one in drawn.items()
    ]


def draws(
    world: World,
    count: int,
    *,
    population: str | Population = DEFAULT,
    places: latency.Matrix | None = None,
    prefix: str = "v",
) -> dict[str, Draw]:
    """Draw volunteers by name, as `populate` builds them."""
    drawn_from = load(population) if isinstance(population, str) else population
    places = places or latency.matrix()
    names = [f"{prefix}{index}" for index in range(count)]
    return {name: draw(drawn_from, world.streams.get(name, "population"), places) for name in names}


def build(
    world: World, name: str, drawn: Draw, core: Core | None = None, link: LinkSpec | None = None
) -> Volunteer:
    """Build one volunteer: its gateways, with the access link at the outermost, and its host.

    `link` replaces the access link that was drawn.
    """
    kind, access = drawn.kind, link or profiles.link(drawn.link)
    gateways: list[Gateway] = []
    if kind.carrier:
        gateways.append(
            world.gateway(
                f"{name}-carrier",
                kind.carrier,
                site=drawn.site,
                inside="100.64.0.0/24",
                ipv6=drawn.ipv6,
                **kind.carrier_knobs,
            )
        )
    if kind.nat:
        # The access link is between the home and the carrier's network.
        gateways.append(
            world.gateway(
                f"{name}-home",
                kind.nat,
                behind=gateways[-1] if gateways else None,
                link=access,
                site=drawn.site,
                ipv6=drawn.ipv6,
                **kind.knobs,
            )
        )
    nearest = gateways[-1] if gateways else None
    link = access if nearest is None else profiles.overlay("bad-wifi") if drawn.bad_wifi else None
    host: Host | LightHost
    if core is None:
        host = world.host(name, behind=nearest, link=link, site=drawn.site, ipv6=drawn.ipv6)
    else:
        host = world.light(name, core, behind=nearest, link=link, site=drawn.site)
    return Volunteer(drawn, host, gateways[::-1])


def punch_rate(population: Population) -> float:
    """Return the share of pairs without a forward, both behind NATs, that can reach each other in
    theory, once each knows the other's outer endpoint and both probe at the same time.
    """
    kinds = [kind for kind in population.kinds if kind.nat and not kind.forward]
    whole = sum(kind.share for kind in kinds)
    return sum(
        a.share * b.share / whole**2 for a in kinds for b in kinds if can_punch(a.punch, b.punch)
    )


def can_punch(a: str, b: str) -> bool:
    """Whether two volunteers can punch: RFC 4787's mappings against its filters, in terms of
    `Kind.punch`.
    """
    if "blocked" in (a, b):
        return False
    if "symmetric" not in (a, b):
        return True
    return "open" in (a, b)
