"""Injects faults: partitions, held and lost packets, crashes, sleep, wrong clocks, and failures of
links and gateways.

A fault on packets acts when a packet reaches its destination host. Gateways on the way have already
seen the packet, so it keeps their mappings alive. Every action is recorded in `timeline`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from .errors import SimError
from .host import Host
from .light import Core, LightHost
from .network.gateway import Gateway
from .network.network import Attachment
from .network.packet import Packet
from .sleep import Dormitory
from .world import World

Computer = Host | LightHost
WAYS: Final = ("up", "down")
"""The directions of a link, as its host or gateway sees them."""


class Named(Protocol):
    """A host, a light host or a volunteer."""

    @property
    def name(self) -> str: ...


Names = Iterable[str | Named]


@dataclass(frozen=True, slots=True)
class Deed:
    """One injected fault or its end: the action, its hosts, and its simulated time in seconds."""

    time: float
    what: str
    who: tuple[str, ...]
    detail: str = ""


@dataclass(slots=True, eq=False)
class Rule:
    """Effect on packets from `origins` to `receivers`; a packet whose ends are not in both is
    unaffected.

    `loss` is a probability, 1.0 for a partition; `delay` adds that many seconds to each packet;
    `until` holds all packets until that time.
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
        self._clogged: dict[str, float] = {}  # by host: until when
        self._healed = 0  # how often all faults were healed
        self._random = world.streams.get("faults", "packets")
        self._order = world.streams.get("faults", "order")
        self._asleep = Dormitory()
        self._unplugged: set[str] = set()
        self._cuts: set[tuple[str, str]] = set()  # name, direction
        world.at_end.append(self._asleep.release_all)

    # Packets.

    def partition(self, *groups: Names, oneway: bool = False) -> list[Rule]:
        """Partition groups of hosts; hosts in no group can talk to all.

        With `oneway` only the first group's packets are lost. Returns rules that `heal` can end.
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
        """Drop packets from `origins` to `receivers` with probability `chance`, in this direction
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
        """Hold packets from `origins` to `receivers` for `seconds` from now; then all arrive."""
        ones, others = _names(origins), _names(receivers)
        rule = Rule(ones, others, until=self.now + seconds)
        return self._add("block", ones | others, f"{seconds:g} s", [rule])

    def clog(self, hosts: Names, seconds: float) -> None:
        """Hold all packets that these hosts send or would receive for `seconds`; then all
        arrive.
        """
        for name in sorted(_names(hosts)):
            self._clog((name, self.now + seconds, self._healed))

    def swizzle(self, hosts: Names, seconds: float) -> list[str]:
        """Clog a random subset of the hosts one after the other, then unclog them in another order.

        It takes `seconds`; the second half unclogs. Returns the chosen hosts. This is
        FoundationDB's swizzle-clogging: it finds code that depends on the order in which hosts come
        back.
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
        """End these rules, or all if none are given. Held packets arrive when they were due to."""
        self._rules = [rule for rule in self._rules if rules and rule not in rules]
        if not rules:
            self._clogged.clear()
            self._healed += 1
        self.note("heal", (), f"{len(rules)} rules" if rules else "everything")
        self._hook()

    def _add(self, what: str, who: frozenset[str], detail: str, rules: list[Rule]) -> list[Rule]:
        self._rules += rules
        self.note(what, sorted(who), detail)
        self._hook()
        return rules

    def _clog(self, item: tuple[str, float, int]) -> None:
        name, until, healed = item
        if healed != self._healed:
            return  # a later part of a swizzle that was healed
        self._clogged[name] = max(until, self._clogged.get(name, 0.0))
        self.note("clog", (name,), f"{until - self.now:g} s")
        self._hook()

    def _hook(self) -> None:
        """Inspect packets only while a fault needs it."""
        self.world.network.interfere = self._judge if self._rules or self._clogged else None

    def _judge(self, packet: Packet, receiver: str) -> float:
        """Return the fate of a packet that would arrive now (`network.Interfere`)."""
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
        until = self._clogged.get(name, 0.0)
        if until and until <= self.now:
            del self._clogged[name]
        return until

    # Faults of computers.

    async def crash(self, *hosts: str | Computer) -> None:
        """Cut the power of hosts, without a goodbye."""
        for host in map(self.computer, hosts):
            self.note("crash", (host.name,))
            if isinstance(host, LightHost):
                host.crash()
            else:
                # the remaining tasks of a sleeping host end without sending anything
                host.up = False
                self._wake(host)
                await host.crash()

    async def restart(self, *hosts: str | Computer, core: Core | None = None) -> None:
        """Power hosts on again, with the same disk; crash those that are running first."""
        for host in map(self.computer, hosts):
            if host.up:
                await self.crash(host)
            self.note("restart", (host.name,))
            if isinstance(host, LightHost):
                host.restart(core)
            else:
                await host.restart()

    def sleep(self, *hosts: str | Computer) -> None:
        """Suspend hosts: they send and receive no packets and run no tasks. Wall clocks and all
        other hosts continue.
        """
        for host in map(self.computer, hosts):
            self.note("sleep", (host.name,))
            if isinstance(host, LightHost):
                host.crash()
                continue
            self._asleep.hold(host)
            self._connect(host)

    def resume(self, *hosts: str | Computer) -> None:
        """Wake hosts up. Timers that expired during the sleep fire now."""
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
        """Whether a host is suspended."""
        found = self.computer(host)
        return found in self._asleep if isinstance(found, Host) else not found.up

    def step_clock(self, *hosts: str | Host, seconds: float) -> None:
        """Set the wall clock forward or back."""
        for host in map(self.host, hosts):
            host.wall_offset += seconds
            self.note("clock", (host.name,), f"{seconds:+g} s")

    def drift_clock(self, *hosts: str | Host, rate: float) -> None:
        """Let the wall clock gain `rate` seconds per second from now on (20e-6: a poor quartz)."""
        for host in map(self.host, hosts):
            host.wall_offset -= self.now * (rate - host.wall_drift)
            host.wall_drift = rate
            self.note("drift", (host.name,), f"{rate:+g}")

    # Links and gateways.

    def link_down(self, *who: str | Computer | Gateway) -> None:
        """Pull the cable, so that no packet passes. A gateway loses the cable to the outside."""
        for item in map(self.plugged, who):
            self._unplugged.add(item.name)
            self.note("link.down", (item.name,))
            self._connect(item)

    def link_up(self, *who: str | Computer | Gateway) -> None:
        """Put the cable back."""
        for item in map(self.plugged, who):
            self._unplugged.discard(item.name)
            self.note("link.up", (item.name,))
            self._connect(item)

    def cut(self, who: str | Computer | Gateway, way: str, *, cut: bool = True) -> None:
        """Cut one direction of a link, "up" or "down", or mend it. Raises SimError."""
        if way not in WAYS:
            raise SimError(f"a link has no direction `{way}`: it is {' or '.join(WAYS)}")
        item = self.plugged(who)
        (self._cuts.add if cut else self._cuts.discard)((item.name, way))
        self._connect(item)
        self.note("cut" if cut else "mend", (item.name,), way)

    def _connect(self, item: Computer | Gateway) -> None:
        """Open or close a host's pipes according to its sleep, its cable and its cuts."""
        closed = item.name in self._unplugged
        closed = closed or (isinstance(item, Host) and item in self._asleep)
        for attachment in _plugs(item):
            attachment.up.cut = closed or (item.name, "up") in self._cuts
            attachment.down.cut = closed or (item.name, "down") in self._cuts

    def reboot(self, *gateways: str | Gateway, seconds: float = 0.0) -> None:
        """Switch gateways off for `seconds`; they forget their mappings."""
        for gateway in map(self.gateway, gateways):
            gateway.reboot(seconds)
            self.note("nat.reboot", (gateway.name,), f"{seconds:g} s")

    def redial(self, *gateways: str | Gateway) -> None:
        """Give gateways another outer address, and another IPv6 prefix if they have one.

        DNS lists it at once.
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
        """Return a host or light host by name. Raises SimError."""
        if not isinstance(host, str):
            return host
        found: Computer | None = self.world.hosts.get(host) or self.world.lights.get(host)
        if found is None:
            raise SimError(f"there is no host `{host}`")
        return found

    def host(self, host: str | Host) -> Host:
        """Return a whole host by name. Raises SimError."""
        found = self.computer(host)
        if not isinstance(found, Host):
            raise SimError(f"{found.name} is a light host: it has no wall clock of its own")
        return found

    def gateway(self, gateway: str | Gateway) -> Gateway:
        """Return a gateway by name. Raises SimError."""
        if not isinstance(gateway, str):
            return gateway
        if gateway not in self.world.gateways:
            raise SimError(f"there is no gateway `{gateway}`")
        return self.world.gateways[gateway]

    def plugged(self, who: str | Computer | Gateway) -> Computer | Gateway:
        """Return a host or gateway by name. Raises SimError."""
        if isinstance(who, str) and who in self.world.gateways:
            return self.world.gateways[who]
        return who if isinstance(who, Gateway) else self.computer(who)

    def note(self, what: str, who: Iterable[str], detail: str = "") -> None:
        """Write an action to the timeline."""
        self.timeline.append(Deed(self.now, what, tuple(who), detail))


def _names(items: Names) -> frozenset[str]:
    return frozenset(item if isinstance(item, str) else item.name for item in items)


def _plugs(item: Computer | Gateway) -> list[Attachment]:
    if isinstance(item, Gateway):
        return [item.wan]
    return [item.attachment] if isinstance(item, LightHost) else item.attachments
