"""The hosts, gateways and programs of a scenario, built in a world."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BadScenario
from ..host import Host, Program
from ..network.gateway import SubnetRouter
from ..network.link import LinkSpec
from ..network.network import Latency
from ..population.mix import Draw, Volunteer, build, draws
from ..world import World
from .format import vocabulary
from .format.groups import PUBLIC, check_partitions, draw
from .format.links import link_spec
from .format.tables import HostTable, Scenario
from .programs import Echo, Idle, ProgramSettings, TransferProgram
from .programs.daemon import DaemonProgram, DaemonSettings
from .programs.echo import EchoSettings
from .programs.punch import HostDirectory, Introducer, Punch, PunchSettings, draw_pairs
from .programs.transfer import TransferSettings


@dataclass(slots=True)
class RunHost:
    """One host of a run, with its program."""

    host: Host
    kind: str  # the kind of its gateway, by which the report groups hosts
    gateway: SubnetRouter | None  # the gateway directly in front of the host
    program_name: str
    settings: ProgramSettings
    start: float  # when its program starts, in virtual seconds
    site: int = 0
    program: Program[object] = field(default_factory=Idle)


class Topology:
    """All hosts and gateways of a scenario. The constructor builds them in the world.

    `groups` maps each word that refers to several hosts to their names. `gateways` has the [[nat]]s
    by id, and each host's own gateway by the host's name.
    """

    def __init__(self, scenario: Scenario, world: World) -> None:
        self.scenario = scenario
        self.world = world
        self.members: dict[str, RunHost] = {}
        self.gateways: dict[str, SubnetRouter] = {}
        self.groups: dict[str, list[str]] = {}
        self.relays: list[Host] = []
        self.volunteers: list[Volunteer] = []
        """The volunteers of the scenario, drawn from its population."""
        self._replaced_links: dict[str, LinkSpec | None] = {}  # by host
        self._links = {link.id: link_spec(link) for link in scenario.links}
        self._build()

    def running(self, program: str) -> Iterator[RunHost]:
        """Yield the hosts on which the program named `program` is running now."""
        for member in self.members.values():
            if member.program_name == program and member.host.up and member.host.running:
                yield member

    def of(self, program: str) -> list[RunHost]:
        """Return every host whose program is named `program`, running or not."""
        return [item for item in self.members.values() if item.program_name == program]

    def hosts_of(self, words: tuple[str, ...]) -> list[RunHost]:
        """Return the hosts to which the words of a step refer, each host once."""
        names = {name: None for word in words for name in self.groups.get(word, [word])}
        return [self.members[name] for name in names]

    # Building.

    def _build(self) -> None:
        """Build the relays, the gateways, the hosts of the file and the population, with their
        programs.
        """
        for number in range(self.scenario.world.relays):
            self.relays.append(self.world.host(f"relay{number + 1}"))
        for nat in self.scenario.nats:
            behind = self.gateways.get(nat.behind)
            knobs: dict[str, Any] = nat.extra
            self.gateways[nat.id] = self.world.gateway(
                nat.id, nat.kind, behind=behind, link=self._link(nat.link), site=nat.site, **knobs
            )
        drawn = self._draw()
        for table in self.scenario.hosts:
            for name in table.names():
                self.members[name] = self._host(table, name)
        self._populate(drawn)
        for group in self.scenario.groups:
            changes: dict[str, Any] = dict(group.settings or {})
            for name in self.groups[group.name] if changes else ():
                member = self.members[name]
                member.settings = replace(member.settings, **changes)
        self._programs()

    def _draw(self) -> dict[str, Draw]:
        """Draw the population and the groups. Return the draws of the population, by host.

        Also records the access links that groups give to their hosts.
        """
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
        """Return the link with this name: a [[link]] or a profile; None for an empty name."""
        if not name:
            return None
        return self._links[name] if name in self._links else vocabulary.profile(name)

    def _host(self, table: HostTable, name: str) -> RunHost:
        """Build the host `name` of a [[host]], with its own gateway if it has one."""
        link = self._replaced_links.get(name) or self._link(table.link)
        gateway, kind = self._gateway(table, name, link)
        if gateway is None:
            host = self.world.host(name, link=link, site=table.site)
        else:
            own = table.nat in vocabulary.kinds()  # then the access link is the gateway's
            host = self.world.host(name, behind=gateway, link=None if own else link)
        host.wall_offset, host.wall_drift = table.clock, table.drift
        start = table.start or self._spread(name)
        assert table.settings is not None
        return RunHost(host, kind, gateway, table.program, table.settings, start, table.site)

    def _spread(self, name: str) -> float:
        """Draw the time, in seconds, at which a host without a fixed start begins."""
        luck = self.world.streams.get(name, "start")
        return luck.random() * self.scenario.world.spread

    def _gateway(
        self, table: HostTable, name: str, link: LinkSpec | None
    ) -> tuple[SubnetRouter | None, str]:
        """Return the gateway directly in front of a host, and its kind.

        Builds the gateway if it is the host's own. The gateway is None for a public host.
        """
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
        """Build the hosts that were drawn from the population."""
        table = self.scenario.world
        settings = table.settings
        self.volunteers = [
            build(self.world, name, one, link=self._replaced_links.get(name))
            for name, one in drawn.items()
        ]
        for one in self.volunteers:
            host = self.world.hosts[one.name]
            gateway = one.gateways[-1] if one.gateways else None
            if gateway is not None:
                self.gateways[one.name] = one.gateways[0]
            assert settings is not None
            self.members[one.name] = RunHost(
                host, one.kind, gateway, table.program, settings,
                self._spread(one.name), one.drawn.site,
            )  # fmt: skip

    # Programs.

    def _programs(self) -> None:
        """Create the program of each host."""
        for member in self.members.values():
            member.program = self._program(member)
        self._pair_up()
        for member in self.members.values():
            # A step can restart a host before its program has started for the first time.
            member.host.program = member.program

    def _program(self, member: RunHost) -> Program[object]:
        """Create a host's program.

        The programs of hosts that punch are created by `_pair_up` instead.
        """
        settings = member.settings
        match settings:
            case EchoSettings():
                return Echo(settings, self._targets(member, settings.to), self._where)
            case TransferSettings():
                return TransferProgram(settings, self._targets(member, settings.to), self._where)
            case DaemonSettings():
                names = self._first_public() if settings.to is None else settings.to
                others = [name for name in names if name != member.host.name]
                return DaemonProgram(settings, [self._listener(name) for name in others])
            case _:
                return member.program

    def _where(self, name: str) -> str:
        """Return the current address of a host."""
        return self.world.hosts[name].addresses()[0]

    def _listener(self, name: str) -> str:
        """Return the address, `host:port`, at which a daemon listens."""
        settings = self.members[name].settings
        assert isinstance(settings, DaemonSettings)
        return f"{self._where(name)}:{settings.port}"

    def _targets(self, member: RunHost, given: Sequence[str] | None) -> list[str]:
        """Return the names of the hosts to which a measuring program sends.

        If `given` is None, return the next host with the same program, or an empty list if no other
        host has this program. Otherwise return the names in `given`.
        """
        if given is not None:
            return list(given)
        names = [item.host.name for item in self.of(member.program_name)]
        after = names[(names.index(member.host.name) + 1) % len(names)]
        return [after] if after != member.host.name else []

    def _first_public(self) -> list[str]:
        """Return the name of the first daemon's host that has a public address, in a list.

        Raises BadScenario if there is none.
        """
        for member in self.of("daemon"):
            if member.gateway is None:
                return [member.host.name]
        raise BadScenario(
            "no daemon has a public address, so none can learn of the others",
            hint="add a [[host]] without `nat`, or set `bootstrap`",
        )

    def _pair_up(self) -> None:
        """Create the programs of the hosts that punch, and pair the hosts behind gateways."""
        members = [
            (item, item.settings)
            for item in self.of("punch")
            if isinstance(item.settings, PunchSettings)
        ]
        natted = [number for number, (item, _) in enumerate(members) if item.gateway is not None]
        rounds = max((settings.rounds for _, settings in members), default=0)
        luck = self.world.streams.get("scenario", "punch-pairs")
        partners = draw_pairs(natted, rounds, luck)
        meeting = HostDirectory(
            [item.host.name for item, _ in members],
            [host.name for host in self.relays],
            self._where,
        )
        for number, (item, settings) in enumerate(members):
            mine = [turn for turn in partners.get(number, []) if turn[0] < settings.rounds]
            stream = self.world.streams.get(item.host.name, "punch")
            item.program = Punch(settings, number, mine, meeting, stream)


def relay_program() -> Program[object]:
    """Return the program of the relays, which introduce hosts that punch."""
    return Introducer()


def latency(scenario: Scenario) -> Latency:
    """Return the latency between two sites in a form that `World` accepts: seconds or a matrix."""
    seconds = scenario.world.latency_seconds
    if seconds is not None:
        return seconds
    assert scenario.matrix is not None
    return scenario.matrix
