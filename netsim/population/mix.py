"""Draws volunteers from classes with NATs and links, and builds them in a world.

Each volunteer is drawn with a random generator of its own. Adding one therefore changes no other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final, NotRequired, TypedDict, TypeVar

from ..errors import BadScenario
from ..host import Host
from ..light import LightCore, LightHost
from ..network.gateway import SubnetRouter
from ..network.link import LinkSpec
from ..world import World
from . import latency, profiles
from .data import table, unknown

DEFAULT: Final = "home-volunteers-2026"
PUNCH: Final = ("open", "port", "late", "symmetric", "blocked")  # see the population's TOML file
Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Region:
    """A region, its share of the volunteers, and the difference of its local time from UTC in
    hours.
    """

    name: str
    share: float
    utc_hours: float


@dataclass(frozen=True, slots=True)
class VolunteerKind:
    """A class of volunteers.

    `nat` is the kind of gateway at home, and `carrier` that of the carrier's gateway in front of
    it; either is empty if there is none. `knobs` and `carrier_knobs` are the settings of these
    gateways. `links` has the share of each link profile. `punch` is the ability of the class to
    punch holes in theory, as explained in the data file. `forward`: the host can open a port of its
    gateway.
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
    """A class of volunteers in a data file. Shares are in percent."""

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
    """A mix of classes and regions. Shares are from 0 to 1.

    `ipv6` is the share of volunteers with IPv6, and `bad_wifi` that of hosts with bad Wi-Fi.
    """

    name: str
    regions: tuple[Region, ...]
    kinds: tuple[VolunteerKind, ...]
    ipv6: float
    bad_wifi: float


@dataclass(frozen=True, slots=True)
class Draw:
    """Properties that were drawn for one volunteer. `site` is a row of the latency matrix."""

    kind: VolunteerKind
    region: Region
    site: int
    link: str
    bad_wifi: bool
    ipv6: bool


@dataclass(slots=True)
class Volunteer:
    """A volunteer in a world. `gateways` are those in front of its host, with the nearest first."""

    drawn: Draw
    host: Host | LightHost
    gateways: list[SubnetRouter]

    @property
    def name(self) -> str:
        """The name of the volunteer's host."""
        return self.host.name

    @property
    def kind(self) -> str:
        """The name of the volunteer's class."""
        return self.drawn.kind.name

    def __repr__(self) -> str:
        drawn = self.drawn
        return f"<volunteer {self.name}: {self.kind}, {drawn.link}, {drawn.region.name}>"


def names() -> list[str]:
    """Return the names of the built-in populations."""
    return [DEFAULT]


@cache
def load(name: str = DEFAULT) -> Population:
    """Return a built-in population by its name.

    Raises BadScenario, with a hint at the nearest name, if there is none.
    """
    if name not in names():
        raise unknown("population", name, names())
    return read(table(f"{name}.toml"))


def read(entry: Mapping[str, Any]) -> Population:
    """Build a population from the content of a data file.

    Raises BadScenario if shares do not add up to 100 %, or a name is unknown.
    """
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


def _kind(item: ClassEntry) -> VolunteerKind:
    """Build a class from its entry. Raises BadScenario if shares or names are wrong."""
    name = item["name"]
    if item["punch"] not in PUNCH:
        raise unknown(f"`punch` of class {name}", item["punch"], PUNCH)
    if abs(sum(item["links"].values()) - 100) > 1e-6:
        raise BadScenario(f"the links of class {name} do not sum up to 100 %")
    for link in item["links"]:
        profiles.link(link)
    return VolunteerKind(
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


def draw(population: Population, random: Random, places: latency.LatencyMatrix) -> Draw:
    """Draw the properties of one volunteer. `places` is the latency matrix.

    The number of random values used does not depend on the result.
    """
    kind = _choose(random, ((item, item.share) for item in population.kinds))
    region = _choose(random, ((item, item.share) for item in population.regions))
    link = _choose(random, kind.links.items())
    sites = places.of_region(region.name) or range(len(places))
    site = sites[int(random.random() * len(sites))]
    bad_wifi = random.random() < population.bad_wifi
    ipv6 = random.random() < population.ipv6
    return Draw(kind, region, site, link, bad_wifi and bool(kind.nat), ipv6)


def _choose(random: Random, shares: Iterable[tuple[Choice, float]]) -> Choice:
    """Choose one of several items. `shares` has each item with its weight."""
    items, weights = zip(*shares, strict=True)
    found: Choice = random.choices(items, weights)[0]
    return found


def populate(
    world: World,
    count: int,
    *,
    population: str | Population = DEFAULT,
    places: latency.LatencyMatrix | None = None,
    prefix: str = "v",
    core: Callable[[str], LightCore] | None = None,
) -> list[Volunteer]:
    """Draw `count` volunteers and build them in a world.

    Their names are `prefix` and a number. Their sites are rows of `places`, by default the built-in
    matrix; the world should then have `latency=latency.matrix()`. If `core` is given, the
    volunteers are light hosts, and `core` returns the core (protocol logic without I/O) of each by
    its name.
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
    places: latency.LatencyMatrix | None = None,
    prefix: str = "v",
) -> dict[str, Draw]:
    """Draw `count` volunteers.

    Return their properties by name. `populate` builds the same volunteers.
    """
    drawn_from = load(population) if isinstance(population, str) else population
    places = places or latency.matrix()
    names = [f"{prefix}{index}" for index in range(count)]
    return {name: draw(drawn_from, world.streams.get(name, "population"), places) for name in names}


def build(
    world: World,
    name: str,
    drawn: Draw,
    core: LightCore | None = None,
    link: LinkSpec | None = None,
) -> Volunteer:
    """Build one volunteer: its gateways and its host.

    The access link belongs to the home's gateway, or to the host if it has none. `link` replaces
    the access link that was drawn. If `core` is given, the host is a light host with this core.
    """
    kind, access = drawn.kind, link or profiles.link(drawn.link)
    gateways: list[SubnetRouter] = []
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
    """Compute the share of pairs of volunteers that can punch holes to each other in theory.

    Only volunteers behind a NAT without an open port count. The theory assumes that each of the two
    knows the other's outer endpoint and that both send probes at the same time.
    """
    kinds = [kind for kind in population.kinds if kind.nat and not kind.forward]
    whole = sum(kind.share for kind in kinds)
    return sum(
        a.share * b.share / whole**2 for a in kinds for b in kinds if can_punch(a.punch, b.punch)
    )


def can_punch(a: str, b: str) -> bool:
    """Return whether two volunteers can punch holes, given the `punch` of their classes.

    This follows from how their NATs map and filter (RFC 4787, sections 4 and 5).
    """
    if "blocked" in (a, b):
        return False
    if "symmetric" not in (a, b):
        return True
    return "open" in (a, b)
