"""Injection of faults into a simulation: partitions, delayed and lost packets, crashes, sleep,
wrong clocks, and failures of links and gateways.

A fault of packets takes effect when a packet arrives at its destination host. Gateways on the way
have already forwarded the packet, so that it has renewed their mappings. Each action is recorded in
`timeline`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from .errors import SimError
from .host import Host
from .light import LightCore, LightHost
from .network.gateway import SubnetRouter
from .network.network import Attachment
from .network.packet import Packet
from .sleep import Dormitory
from .world import World

Computer = Host | LightHost
WAYS: Final = ("up", "down")
"""Directions of a link, as seen from its host or gateway."""


class Named(Protocol):
    """Object with a name, such as a host or a light host."""

    @property
    def name(self) -> str: ...


Names = Iterable[str | Named]


@dataclass(frozen=True, slots=True)
class Deed:
    """Entry of the timeline: one action, such as "partition" or "heal".

    `time` is the simulated time in seconds, `what` the action, and `targets` the names of its hosts
    or gateways.
    """

    time: float
    what: str
    targets: tuple[str, ...]
    detail: str = ""


@dataclass(slots=True, eq=False)
class Rule:
    """Fault that affects only packets from the hosts `origins` to the hosts `receivers`.

    `loss` is the probability that a packet is lost; a partition has 1.0. `delay` is added to the
    delay of each packet, in seconds. Packets that arrive before the time `until` are delayed until
    then.
    """

    origins: frozenset[str]
    receivers: frozenset[str]
    loss: float = 0.0
    delay: float = 0.0
    until: float = -inf


class Faults:
    """Injects faults into one world, and ends them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.timeline: list[Deed] = []
        self._rules: list[Rule] = []
        self._clogged: dict[str, float] = {}  # name of a clogged host: time of the end
        self._healed = 0  # number of times that all faults were ended
        self._random = world.streams.get("faults", "packets")
        self._order = world.streams.get("faults", "order")
        self._asleep = Dormitory()
        self._unplugged: set[str] = set()
        self._cuts: set[tuple[str, str]] = set()  # (name of the host or gateway, direction)
        world.at_end.append(self._asleep.release_all)

    # Packets.

    def partition(self, *groups: Names, oneway: bool = False) -> list[Rule]:
        """Partition groups of hosts from each other. Hosts in no group still reach every host.

        If `oneway` is True, only packets from the first group to the others are lost. Returns the
        rules, which `heal` can end. Raises SimError if there are fewer than two groups, or if they
        overlap.
        """
        sets = [_names(group) for group in groups]
        if len(sets) < 2:
            raise SimError("a partition needs two groups or more")
        whole = frozenset().union(*sets)
        if sum(map(len, sets)) > len(whole):
            raise SimError("the groups of a partition have hosts in common")
        sources = sets[:1] if oneway else sets
        rules = [Rule(group, whole - group, loss=1.0) for group in sources]
        detail = " | ".join(" ".join(sorted(group)) for group in sets)
        return self._add("partition", whole, detail + (" one-way" if oneway else ""), rules)

    def loss(self, origins: Names, receivers: Names, chance: float) -> list[Rule]:
        """Lose packets from `origins` to `receivers` with probability `chance`, in this direction
        only.
        """
        ones, others = _names(origins), _names(receivers)
        rule = Rule(ones, others, loss=chance)
        return self._add("loss", ones | others, f"{chance:g}", [rule])

    def delay(self, origins: Names, receivers: Names, seconds: float) -> list[Rule]:
        """Delay packets from `origins` to `receivers` by `seconds`, in this direction only."""
        ones, others = _names(origins), _names(receivers)
        rule = Rule(ones, others, delay=seconds)
        return self._add("delay", ones | others, f"{seconds:g} s", [rule])

    def block(self, origins: Names, receivers: Names, seconds: float) -> list[Rule]:
        """Hold back all packets from `origins` to `receivers` for `seconds`. Then all of them
        arrive.
        """
        ones, others = _names(origins), _names(receivers)
        rule = Rule(ones, others, until=self.now + seconds)
        return self._add("block", ones | others, f"{seconds:g} s", [rule])

    def clog(self, hosts: Names, seconds: float) -> None:
        """Hold back all packets to and from these hosts for `seconds`. Then all of them arrive."""
        for name in sorted(_names(hosts)):
            self._clog((name, self.now + seconds, self._healed))

    def swizzle(self, hosts: Names, seconds: float) -> list[str]:
        """Clog a random subset of the hosts, one after the other, and unclog them in another order.
        Return the names of the chosen hosts.

        Clogging takes the first half of `seconds`, and unclogging the second half. The method is
        FoundationDB's swizzle-clogging, which finds code that depends on the order in which hosts
        become reachable again.
        """
        names = sorted(_names(hosts))
        chosen = self._order.sample(names, self._order.randint(1, len(names)))
        back = self._order.sample(chosen, len(chosen))
        step = seconds / 2 / len(chosen)
        for index, name in enumerate(chosen):
            until = self.now + seconds / 2 + (back.index(name) + 1) * step
            self.world.events.at(self.now + index * step, self._clog, (name, until, self._healed))
        return chosen

    def heal(self, *rules: Rule) -> None:
        """End these rules, or all faults of packets if no rule is given. Packets that are delayed
        already still arrive at their delayed time.
        """
        self._rules = [rule for rule in self._rules if rules and rule not in rules]
        if not rules:
            self._clogged.clear()
            self._healed += 1
        self.note("heal", (), f"{len(rules)} rules" if rules else "everything")
        self._hook()

    def _add(
        self, what: str, targets: frozenset[str], detail: str, rules: list[Rule]
    ) -> list[Rule]:
        """Activate rules, record them in the timeline, and return them."""
        self._rules += rules
        self.note(what, sorted(targets), detail)
        self._hook()
        return rules

    def _clog(self, item: tuple[str, float, int]) -> None:
        """Clog a host, given (its name, end time in seconds, value of `_healed` at planning).

        Do nothing if `heal` has ended all faults since the clog was planned.
        """
        name, until, healed = item
        if healed != self._healed:
            return  # part of a swizzle that `heal` has ended
        self._clogged[name] = max(until, self._clogged.get(name, 0.0))
        self.note("clog", (name,), f"{until - self.now:g} s")
        self._hook()

    def _hook(self) -> None:
        """Make the network call `_judge` for each packet while any fault of packets is active."""
        self.world.network.interfere_by(self._judge if self._rules or self._clogged else None)

    def _judge(self, packet: Packet, receiver: str) -> float:
        """Return the delay in seconds of a packet that would arrive now, or a negative number to
        drop it (see `network.Interfere`).
        """
        now, origin = self.now, packet.origin
        until, extra = now, 0.0
        for rule in self._rules:
            if origin in rule.origins and receiver in rule.receivers:
                if rule.loss and self._random.random() < rule.loss:
                    return -1.0
                extra += rule.delay
                until = max(until, rule.until)
        if self._clogged:
            until = max(until, self._clog_of(origin), self._clog_of(receiver))
        return until - now + extra

    def _clog_of(self, name: str) -> float:
        """Return the time in seconds until which a host is clogged. If the host is not clogged,
        the time is not after `now`.
        """
        until = self._clogged.get(name, 0.0)
        if until and until <= self.now:
            del self._clogged[name]
        return until

    # Faults of computers.

    async def crash(self, *hosts: str | Computer) -> None:
        """Cut the power of hosts, so that their programs cannot say goodbye to peers. Return once
        the programs have ended.
        """
        for host in map(self.computer, hosts):
            self.note("crash", (host.name,))
            if isinstance(host, LightHost):
                host.crash()
            else:
                # Off first, so that the tasks of a sleeping host end without sending anything.
                host.up = False
                self._wake(host)
                await host.crash()

    async def restart(self, *hosts: str | Computer, core: LightCore | None = None) -> None:
        """Power hosts on again, with the same disks. Hosts that are running are crashed first.
        `core` is a new core for light hosts.
        """
        for host in map(self.computer, hosts):
            if host.up:
                await self.crash(host)
            self.note("restart", (host.name,))
            if isinstance(host, LightHost):
                host.restart(core)
            else:
                await host.restart()

    def sleep(self, *hosts: str | Computer) -> None:
        """Suspend hosts. They send and receive no packets and run no tasks, while wall clocks and
        all other hosts continue.
        """
        for host in map(self.computer, hosts):
            self.note("sleep", (host.name,))
            if isinstance(host, LightHost):
                host.crash()
                continue
            self._asleep.hold(host)
            self._connect(host)

    def resume(self, *hosts: str | Computer) -> None:
        """Wake suspended hosts. Timers that expired during the sleep fire now."""
        for host in map(self.computer, hosts):
            self.note("resume", (host.name,))
            if isinstance(host, LightHost):
                host.restart()
            else:
                self._wake(host)

    def _wake(self, host: Host) -> None:
        if host in self._asleep:
            self._asleep.release(host)
            self._connect(host)

    def asleep(self, host: str | Computer) -> bool:
        """Return whether a host is suspended."""
        found = self.computer(host)
        return found in self._asleep if isinstance(found, Host) else not found.up

    def step_clock(self, *hosts: str | Host, seconds: float) -> None:
        """Set the wall clocks of hosts forward by `seconds`, or back if it is negative."""
        for host in map(self.host, hosts):
            host.wall_offset += seconds
            self.note("clock", (host.name,), f"{seconds:+g} s")

    def drift_clock(self, *hosts: str | Host, rate: float) -> None:
        """Make the wall clocks of hosts gain `rate` seconds per second from now on (20e-6 is a poor
        quartz).
        """
        for host in map(self.host, hosts):
            host.wall_offset -= self.now * (rate - host.wall_drift)
            host.wall_drift = rate
            self.note("drift", (host.name,), f"{rate:+g}")

    # Links and gateways.

    def link_down(self, *targets: str | Computer | SubnetRouter) -> None:
        """Unplug the cables of hosts, so that no packet passes. A gateway loses its cable to the
        outside.
        """
        for item in map(self.plugged, targets):
            self._unplugged.add(item.name)
            self.note("link.down", (item.name,))
            self._connect(item)

    def link_up(self, *targets: str | Computer | SubnetRouter) -> None:
        """Plug the cables back in."""
        for item in map(self.plugged, targets):
            self._unplugged.discard(item.name)
            self.note("link.up", (item.name,))
            self._connect(item)

    def cut(self, target: str | Computer | SubnetRouter, way: str, *, cut: bool = True) -> None:
        """Cut one direction of a link ("up" or "down"), or mend it if `cut` is False. Raises
        SimError if the direction or the host does not exist.
        """
        if way not in WAYS:
            raise SimError(f"a link has no direction `{way}`: it is {' or '.join(WAYS)}")
        item = self.plugged(target)
        (self._cuts.add if cut else self._cuts.discard)((item.name, way))
        self._connect(item)
        self.note("cut" if cut else "mend", (item.name,), way)

    def _connect(self, item: Computer | SubnetRouter) -> None:
        """Open or close the pipes of a host or gateway, depending on its sleep, its cable and its
        cuts.
        """
        closed = item.name in self._unplugged
        closed = closed or (isinstance(item, Host) and item in self._asleep)
        for attachment in _plugs(item):
            attachment.up.cut = closed or (item.name, "up") in self._cuts
            attachment.down.cut = closed or (item.name, "down") in self._cuts

    def reboot(self, *gateways: str | SubnetRouter, seconds: float = 0.0) -> None:
        """Switch gateways off for `seconds`. They lose their mappings."""
        for gateway in map(self.gateway, gateways):
            gateway.reboot(seconds)
            self.note("nat.reboot", (gateway.name,), f"{seconds:g} s")

    def redial(self, *gateways: str | SubnetRouter) -> None:
        """Give gateways a new outer address, and a new IPv6 prefix if they have one.

        DNS lists the new addresses of their hosts at once.
        """
        for gateway in map(self.gateway, gateways):
            outer = gateway.outer
            world = self.world
            address = world.public_address(again=True) if outer is None else outer.free_address()
            prefix = world.public_prefix6(again=True) if gateway.prefix is not None else None
            gateway.redial(address, prefix)
            for plug in gateway.inside.members.values():
                host = self.world.hosts.get(plug.owner.name)
                if host is not None and host.name in self.world.names:
                    self.world.names[host.name] = host.addresses()
            self.note("redial", (gateway.name,), f"{address} {prefix or ''}".rstrip())

    # Names of hosts and gateways.

    @property
    def now(self) -> float:
        return self.world.events.now

    def computer(self, host: str | Computer) -> Computer:
        """Return the host or light host with this name. Raises SimError if there is none."""
        if not isinstance(host, str):
            return host
        found: Computer | None = self.world.hosts.get(host) or self.world.lights.get(host)
        if found is None:
            raise SimError(f"there is no host `{host}`")
        return found

    def host(self, host: str | Host) -> Host:
        """Return the host with this name. Raises SimError if there is none, or if it is a light
        host, which has no wall clock.
        """
        found = self.computer(host)
        if not isinstance(found, Host):
            raise SimError(f"{found.name} is a light host: it has no wall clock of its own")
        return found

    def gateway(self, gateway: str | SubnetRouter) -> SubnetRouter:
        """Return the gateway with this name. Raises SimError if there is none."""
        if not isinstance(gateway, str):
            return gateway
        if gateway not in self.world.gateways:
            raise SimError(f"there is no gateway `{gateway}`")
        return self.world.gateways[gateway]

    def plugged(self, target: str | Computer | SubnetRouter) -> Computer | SubnetRouter:
        """Return the gateway, host or light host with this name. Raises SimError if there is
        none.
        """
        if isinstance(target, str) and target in self.world.gateways:
            return self.world.gateways[target]
        return target if isinstance(target, SubnetRouter) else self.computer(target)

    def note(self, what: str, targets: Iterable[str], detail: str = "") -> None:
        """Append an action to the timeline."""
        self.timeline.append(Deed(self.now, what, tuple(targets), detail))


def _names(items: Names) -> frozenset[str]:
    return frozenset(item if isinstance(item, str) else item.name for item in items)


def _plugs(item: Computer | SubnetRouter) -> list[Attachment]:
    """Return the attachments whose cables a fault unplugs: all of a host, or the outer one of a
    gateway.
    """
    if isinstance(item, SubnetRouter):
        return [item.wan]
    return [item.attachment] if isinstance(item, LightHost) else item.attachments
