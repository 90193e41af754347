"""What goes wrong, on purpose: partitions, clogs, loss, crashes, sleep, clocks, links, gateways.

A fault on packets acts where a packet reaches its host: gateways on the way have seen it, and
their mappings live on. Every deed is written to `timeline`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from .errors import SimError
from .gateway import Gateway
from .host import Host
from .light import Core, LightHost
from .network import Attachment
from .packet import Packet
from .sleep import Dormitory
from .world import World

Computer = Host | LightHost
WAYS: Final = ("up", "down")
"""The directions of a link, as its host or gateway sees them."""


class Named(Protocol):
    """A host, a light host, a volunteer."""

    @property
    def name(self) -> str: ...


Names = Iterable[str | Named]


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done, to whom, and when, in seconds of the simulation."""

    time: float
    what: str
    who: tuple[str, ...]
    detail: str = ""


@dataclass(slots=True, eq=False)
class Rule:
    """What happens to packets from `origins` to `receivers`; a packet from outside of both, none.

    `loss` is a chance, 1.0 a cut; `delay` holds each back for so many seconds; `until` holds
    all until then.
    """

    origins: frozenset[str]
    receivers: frozenset[str]
    loss: float = 0.0
    delay: float = 0.0
    until: float = -inf


class Faults:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.timeline: list[Deed] = []
        self._rules: list[Rule] = []
        self._clogged: dict[str, float] = {}  # until when, by host
        self._healed = 0  # how often everything was
        self._random = world.streams.get("faults", "packets")
        self._order = world.streams.get("faults", "order")
        self._asleep = Dormitory()
        self._unplugged: set[str] = set()
        self._cuts: set[tuple[str, str]] = set()  # of a name, one direction
        world.at_end.append(self._asleep.release_all)

    # Packets.

    def partition(self, *groups: Names, oneway: bool = False) -> list[Rule]:
        """No packet passes between the groups; hosts in no group talk with everybody.

        With `oneway` only the first group's packets are lost. Returns what `heal` can end.
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
        """Packets from the ones to the others are lost by `chance`, in this direction."""
        ones, others = _names(origins), _names(receivers)
        rule = Rule(ones, others, loss=chance)
        return self._add("loss", ones | others, f"{chance:g}", [rule])

    def delay(self, origins: Names, receivers: Names, seconds: float) -> list[Rule]:
        """Packets from the ones to the others take so much longer, in this direction."""
        ones, others = _names(origins), _names(receivers)
        rule = Rule(ones, others, delay=seconds)
        return self._add("delay", ones | others, f"{seconds:g} s", [rule])

    def block(self, origins: Names, receivers: Names, seconds: float) -> list[Rule]:
        """Packets from the ones to the others are held for `seconds` from now, then all arrive."""
        ones, others = _names(origins), _names(receivers)
        rule = Rule(ones, others, until=self.now + seconds)
        return self._add("block", ones | others, f"{seconds:g} s", [rule])

    def clog(self, hosts: Names, seconds: float) -> None:
        """Whatever these hosts send or would receive is held for so long, then all arrives."""
        for name in sorted(_names(hosts)):
            self._clog((name, self.now + seconds, self._healed))

    def swizzle(self, hosts: Names, seconds: float) -> list[str]:
        """Clog a random part of the hosts one after the other, then unclog them in another order.

        It takes `seconds`; the second half unclogs. Returns who was chosen. FoundationDB's
        swizzle-clogging: it finds what depends on who comes back first.
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
        """End these rules; without any, all of them. What is held arrives when it was to."""
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
            return  # the rest of a swizzle that was ended
        self._clogged[name] = max(until, self._clogged.get(name, 0.0))
        self.note("clog", (name,), f"{until - self.now:g} s")
        self._hook()

    def _hook(self) -> None:
        """Packets are looked at only while there is something to look for."""
        self.world.network.interfere = self._judge if self._rules or self._clogged else None

    def _judge(self, packet: Packet, receiver: str) -> float:
        """`network.Interfere`: what happens to a packet that would arrive now."""
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

    # Computers.

    async def crash(self, *hosts: str | Computer) -> None:
        """Power off: no goodbye."""
        for host in map(self.computer, hosts):
            self.note("crash", (host.name,))
            if isinstance(host, LightHost):
                host.crash()
            else:
                host.up = False  # what is kept of a sleeping host ends without a word
                self._wake(host)
                await host.crash()

    async def restart(self, *hosts: str | Computer, core: Core | None = None) -> None:
        """Power on again, with the same disk; one that runs is crashed first."""
        for host in map(self.computer, hosts):
            if host.up:
                await self.crash(host)
            self.note("restart", (host.name,))
            if isinstance(host, LightHost):
                host.restart(core)
            else:
                await host.restart()

    def sleep(self, *hosts: str | Computer) -> None:
        """Suspend: no packet in or out, no task runs; its wall clock and all else goes on."""
        for host in map(self.computer, hosts):
            self.note("sleep", (host.name,))
            if isinstance(host, LightHost):
                host.crash()
                continue
            self._asleep.hold(host)
            self._connect(host)

    def resume(self, *hosts: str | Computer) -> None:
        """Wake up: everything that is due fires."""
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
        """Set the wall clock forward, or back."""
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
        """Pull the cable: nothing in, nothing out; of a gateway, that to the outside."""
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
        """Open or close the pipes of a host, as its sleep, its cable and its cuts say."""
        closed = item.name in self._unplugged
        closed = closed or (isinstance(item, Host) and item in self._asleep)
        for attachment in _plugs(item):
            attachment.up.cut = closed or (item.name, "up") in self._cuts
            attachment.down.cut = closed or (item.name, "down") in self._cuts

    def reboot(self, *gateways: str | Gateway, seconds: float = 0.0) -> None:
        """A gateway is off for `seconds`, and forgets what it has mapped."""
        for gateway in map(self.gateway, gateways):
            gateway.reboot(seconds)
            self.note("nat.reboot", (gateway.name,), f"{seconds:g} s")

    def redial(self, *gateways: str | Gateway) -> None:
        """A gateway comes back with another outer address, and another IPv6 prefix if it has one.

        DNS knows of it at once.
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

    # Whom a name means.

    @property
    def now(self) -> float:
        return self.world.events.now

    def computer(self, host: str | Computer) -> Computer:
        """A host or light host by name. Raises SimError."""
        if not isinstance(host, str):
            return host
        found: Computer | None = self.world.hosts.get(host) or self.world.lights.get(host)
        if found is None:
            raise SimError(f"there is no host `{host}`")
        return found

    def host(self, host: str | Host) -> Host:
        """A whole host by name. Raises SimError."""
        found = self.computer(host)
        if not isinstance(found, Host):
            raise SimError(f"{found.name} is a light host: it has no wall clock of its own")
        return found

    def gateway(self, gateway: str | Gateway) -> Gateway:
        """A gateway by name. Raises SimError."""
        if not isinstance(gateway, str):
            return gateway
        if gateway not in self.world.gateways:
            raise SimError(f"there is no gateway `{gateway}`")
        return self.world.gateways[gateway]

    def plugged(self, who: str | Computer | Gateway) -> Computer | Gateway:
        """A host or gateway by name. Raises SimError."""
        if isinstance(who, str) and who in self.world.gateways:
            return self.world.gateways[who]
        return who if isinstance(who, Gateway) else self.computer(who)

    def note(self, what: str, who: Iterable[str], detail: str = "") -> None:
        """Write a deed to the timeline."""
        self.timeline.append(Deed(self.now, what, tuple(who), detail))


def _names(items: Names) -> frozenset[str]:
    return frozenset(item if isinstance(item, str) else item.name for item in items)


def _plugs(item: Computer | Gateway) -> list[Attachment]:
    if isinstance(item, Gateway):
        return [item.wan]
    return [item.attachment] if isinstance(item, LightHost) else item.attachments
