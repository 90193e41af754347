"""The hosts and gateways of a scenario, built into a world, with their programs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..errors import BadScenario
from ..host import Host, Program
from ..network.gateway import Gateway
from ..network.link import LinkSpec
from ..network.network import Latency
from ..population.mix import Draw, Volunteer, build, draws
from ..world import World
from .daemons import DaemonProgram
from .format import vocabulary
from .format.groups import PUBLIC, check_partitions, draw
from .format.links import link_spec
from .format.tables import HostTable, Scenario
from .programs import Echo, Idle, Transfer
from .programs.punch import Punch, Relay, draw_pairs


@dataclass(slots=True)
class Member:
    """One host of the run."""

    host: Host
    kind: str  # of its gateway, by which the report groups hosts
    gateway: Gateway | None
    program_name: str
    settings: Any
    start: float  # seconds
    site: int = 0
    program: Program[object] = field(default_factory=Idle)


class Topology:
    """All hosts and gateways of a scenario. `groups` are the words that a step can use for several
    hosts.
    """

    def __init__(self, scenario: Scenario, world: World) -> None:
        self.scenario = scenario
        self.world = world
        self.members: dict[str, Member] = {}
        self.gateways: dict[str, Gateway] = {}
        self.groups: dict[str, list[str]] = {}
        self.relays: list[Host] = []
        self.volunteers: list[Volunteer] = []
        self._replaced_links: dict[str, LinkSpec | None] = {}  # by host
        self._links = {link.id: link_spec(link) for link in scenario.links}
        self._build()

    def running(self, program: str) -> Iterator[Member]:
        """Yield the hosts whose program of that name is running now."""
        for member in self.members.values():
            if member.program_name == program and member.host.up and member.host.running:
                yield member

    def of(self, program: str) -> list[Member]:
        """Return every host with a program of that name."""
        return [item for item in self.members.values() if item.program_name == program]

    def hosts_of(self, words: tuple[str, ...]) -> list[Member]:
        """Return the hosts that a step's words mean, each once."""
        names = {name: None for word in words for name in self.groups.get(word, [word])}
        return [self.members[name] for name in names]

    # Building.

    def _build(self) -> None:
        for number in range(self.scenario.world.relays):
            self.relays.append(self.world.host(f"relay{number + 1}"))
        for nat in self.scenario.nats:
            behind = self.gateways.get(nat.behind)
            self.gateways[nat.id] = self.world.gateway(
                nat.id, nat.kind, behind=behind, link=self._link(nat.link), site=nat.site,
                **nat.extra,
            )  # fmt: skip
        drawn = self._draw()
        for table in self.scenario.hosts:
            for name in table.names():
                self.members[name] = self._host(table, name)
        self._populate(drawn)
        for group in self.scenario.groups:
            for name in self.groups[group.name] if group.settings else ():
                member = self.members[name]
                member.settings = replace(member.settings, **group.settings)
        self._programs()

    def _draw(self) -> dict[str, Draw]:
        """Draw the population and the groups, and note which access links these replace."""
        world = self.scenario.world
        drawn: dict[str, Draw] = {}
        if world.hosts:
            drawn = draws(
                self.world, world.hosts, population=world.population, places=self.scenario.matrix
            )
            self.groups["population"] = list(drawn)
        kinds = {
            name: frozenset({one.kind.name, one.kind.nat or PUBLIC, one.kind.carrier})
            for name, one in drawn.items()
        }
        nats = {nat.id: nat.kind for nat in self.scenario.nats}
        for table in self.scenario.hosts:
            words = (table.nat, table.behind) if table.nat else (PUBLIC,)
            found = frozenset(nats.get(word, word) for word in words if word)
            kinds.update(dict.fromkeys(table.names(), found))
            if table.count > 1:
                self.groups[table.name] = table.names()
        named = [name for table in self.scenario.hosts for name in table.names()]
        self.groups["all"] = [*named, *drawn]
        self.groups |= draw(self.scenario.groups, self.groups, kinds, self.world.streams)
        check_partitions(self.scenario, self.groups)
        for group in self.scenario.groups:
            if group.link:
                replaced = dict.fromkeys(self.groups[group.name], self._link(group.link))
                self._replaced_links.update(replaced)
        return drawn

    def _link(self, name: str) -> LinkSpec | None:
        if not name:
            return None
        return self._links[name] if name in self._links else vocabulary.profile(name)

    def _host(self, table: HostTable, name: str) -> Member:
        link = self._replaced_links.get(name) or self._link(table.link)
        gateway, kind = self._gateway(table, name, link)
        if gateway is None:
            host = self.world.host(name, link=link, site=table.site)
        else:
            own = table.nat in vocabulary.kinds()  # then the access link is the gateway's
            host = self.world.host(name, behind=gateway, link=None if own else link)
        host.wall_offset, host.wall_drift = table.clock, table.drift
        start = table.start or self._spread(name)
        return Member(host, kind, gateway, table.program, table.settings, start, table.site)

    def _spread(self, name: str) -> float:
        luck = self.world.streams.get(name, "start")
        return luck.random() * self.scenario.world.spread

    def _gateway(
        self, table: HostTable, name: str, link: LinkSpec | None
    ) -> tuple[Gateway | None, str]:
        kinds = {nat.id: nat.kind for nat in self.scenario.nats}
        if not table.nat:
            return None, PUBLIC
        if table.nat in self.gateways:
            return self.gateways[table.nat], kinds[table.nat]
        behind = self.gateways.get(table.behind)
        gateway = self.world.gateway(
            f"{name}/gateway", table.nat, behind=behind, link=link, site=table.site
        )
        self.gateways[name] = gateway
        return gateway, f"{table.nat} in {kinds[table.behind]}" if table.behind else table.nat

    def _populate(self, drawn: dict[str, Draw]) -> None:
        """Build the hosts drawn from a population."""
        table = self.scenario.world
        self.volunteers = [
            build(self.world, name, one, link=self._replaced_links.get(name))
            for name, one in drawn.items()
        ]
        for one in self.volunteers:
            host = self.world.hosts[one.name]
            gateway = one.gateways[-1] if one.gateways else None
            if gateway is not None:
                self.gateways[one.name] = one.gateways[0]
            self.members[one.name] = Member(
                host, one.kind, gateway, table.program, table.settings,
                self._spread(one.name), one.drawn.site,
            )  # fmt: skip

    # Programs.

    def _programs(self) -> None:
        for member in self.members.values():
            build = _PROGRAMS.get(member.program_name)
            if build is not None:
                member.program = build(self, member)
        self._pair_up()
        for member in self.members.values():
            member.host.program = member.program  # for a restart before its first start

    def _where(self, name: str) -> str:
        return self.world.hosts[name].addresses()[0]

    def _targets(self, member: Member) -> list[str]:
        """Return the targets of a measuring program: the given ones, or the next host with the same
        program.
        """
        if member.settings.to is not None:
            return list(member.settings.to)
        names = [item.host.name for item in self.of(member.program_name)]
        after = names[(names.index(member.host.name) + 1) % len(names)]
        return [after] if after != member.host.name else []

    def _echo(self, member: Member) -> Program[object]:
        return Echo(member.settings, self._targets(member), self._where)

    def _transfer(self, member: Member) -> Program[object]:
        return Transfer(member.settings, self._targets(member), self._where)

    def _daemon(self, member: Member) -> Program[object]:
        given = member.settings.to
        names = self._first_public() if given is None else given
        others = [name for name in names if name != member.host.name]
        bootstrap = [f"{self._where(name)}:{self.members[name].settings.port}" for name in others]
        return DaemonProgram(member.settings, bootstrap)

    def _first_public(self) -> list[str]:
        for member in self.of("daemon"):
            if member.gateway is None:
                return [member.host.name]
        raise BadScenario(
            "no daemon has a public address, so none can learn of the others",
            hint="add a [[host]] without `nat`, or set `bootstrap`",
        )

    def _pair_up(self) -> None:
        """Give hosts behind gateways partners for punching."""
        members = self.of("punch")
        names = [member.host.name for member in members]
        natted = [number for number, item in enumerate(members) if item.gateway is not None]
        rounds = max((item.settings.rounds for item in members), default=0)
        luck = self.world.streams.get("scenario", "punch-pairs")
        relays = [host.name for host in self.relays]
        partners = draw_pairs(natted, rounds, luck)
        for number, item in enumerate(members):
            mine = [turn for turn in partners.get(number, []) if turn[0] < item.settings.rounds]
            stream = self.world.streams.get(item.host.name, "punch")
            item.program = Punch(item.settings, number, mine, names, relays, self._where, stream)


_PROGRAMS: Final[dict[str, Callable[[Topology, Member], Program[object]]]] = {
    "udp-echo": Topology._echo,
    "tcp-transfer": Topology._transfer,
    "daemon": Topology._daemon,
}


def relay_program() -> Program[object]:
    """Return the program of the relays."""
    return Relay()


def latency(scenario: Scenario) -> Latency:
    """Return the latency between two sites, as `World` takes it."""
    seconds = scenario.world.latency_seconds
    if seconds is not None:
        return seconds
    assert scenario.matrix is not None
    return scenario.matrix
