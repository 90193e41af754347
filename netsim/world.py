"""A world: the hosts, subnets and gateways of one simulation, and its run.

world = World(seed=7)
alice, bob = world.host("alice"), world.host("bob")

async def main() -> None:
    async with trio.open_nursery() as nursery:
        alice.start_soon(nursery, talk, bob)

world.run(main)
"""

from collections.abc import Awaitable, Callable
from ipaddress import IPv6Network
from typing import TypeVar, TypeVarTuple

import outcome
import trio

from . import defaults
from .clock import Events, SimClock
from .determinism.memory import deterministic_collection
from .determinism.strict import strict
from .errors import NothingLeft
from .host import Host
from .light import LightCore, LightHost
from .nat.kinds import DUAL, build
from .network.dns import Resolver
from .network.gateway import GatewayPlace, SubnetRouter
from .network.link import LinkSpec
from .network.network import Attachment, Latency, Network, Subnet
from .sockets.factory import SocketFactory, equip
from .streams import RandomStreams
from .trace.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class World:
    """One simulated internet. The same seed and the same program give the same packets.

    `latency` is the latency in seconds in one direction between any two sites, or a function that
    returns it for a pair of sites (`population/latency.py`).
    """

    def __init__(
        self, seed: int = 0, *, trace: Trace | None = None, latency: Latency = 0.01
    ) -> None:
        self.seed = seed
        self.trace = trace
        self.fuzz = False  # whether tasks that can run at the same instant run in random order
        self.patience = 30.0  # seconds of real time that a task may run without a checkpoint
        self.events = Events()
        self.streams = RandomStreams(seed)
        self.network = Network(self.events, self.streams, trace)
        self.internet = Subnet(self.network, "internet", latency)
        self.internet.carries_groups = False
        self.names: dict[str, list[str]] = {}  # DNS zone: addresses by name
        self.hosts: dict[str, Host] = {}
        self.lights: dict[str, LightHost] = {}
        """The light hosts of this world."""
        self.gateways: dict[str, SubnetRouter] = {}
        self.at_end: list[Callable[[], None]] = []  # called when `main` has returned
        self._nursery: trio.Nursery | None = None
        self._addresses = 0
        self._redials = 1 << 21  # replacement addresses begin after 43.0.0.1 and 2600:20::
        self._scope: trio.CancelScope | None = None

    # Building.

    def host(
        self,
        name: str,
        *,
        address: str | None = None,
        behind: SubnetRouter | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        ipv6: bool | None = None,
    ) -> Host:
        """Add a host to the internet, or to the inside of a gateway.

        `link` is the host's own link; behind a gateway, it is the link in the LAN, and the host
        also shares the gateway's link. The host gets an IPv6 address if `ipv6` is True, or if
        `ipv6` is None and its gateway has an IPv6 prefix.
        """
        self._check_new(name)
        host = Host(self.network, name, equip)
        self.plug(host, address=address, behind=behind, link=link, site=site, ipv6=ipv6)
        host.nursery = self._nursery
        self.hosts[name] = host
        return host

    def plug(
        self,
        host: Host,
        *,
        address: str | None = None,
        behind: SubnetRouter | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        ipv6: bool | None = None,
    ) -> Attachment:
        """Add an interface ("eth1", …) to a host. The other arguments are those of `host`.

        Packets to addresses outside the host's subnets leave through the first interface that has
        an address of the same family.
        """
        name = f"eth{len(host.attachments)}"
        attachment = self._outside(behind).attach(host, name=name, link=link, site=site)
        self._assign(attachment, address, behind, ipv6)
        host.attachments.append(attachment)
        host.addresses_changed()
        self.names[host.name] = host.addresses()
        return attachment

    def _outside(self, behind: SubnetRouter | None) -> Subnet:
        """Return the subnet inside the gateway `behind`, or the internet if there is no gateway."""
        return behind.inside if behind is not None else self.internet

    def _assign(
        self,
        attachment: Attachment,
        address: str | None,
        behind: SubnetRouter | None,
        ipv6: bool | None,
    ) -> None:
        """Assign addresses to an attachment, and route them to it."""
        subnet = attachment.subnet
        if address is None:
            address = behind.free_address() if behind is not None else self.public_address()
        subnet.assign(attachment, address)
        if ipv6 or (ipv6 is None and behind is not None and behind.prefix is not None):
            six = behind.free_address6() if behind is not None else self.public_address6()
            subnet.assign(attachment, six)
        if behind is not None:
            for each in attachment.addresses:
                behind.route(each)

    def _check_new(self, name: str) -> None:
        """Raise ValueError if a host or gateway has this name already. Faults and random streams
        identify hosts and gateways by name, so that names must be unique.
        """
        for what, known in (
            ("host", self.hosts),
            ("host", self.lights),
            ("gateway", self.gateways),
        ):
            if name in known:
                raise ValueError(f"the {what} `{name}` already exists")

    def light(
        self,
        name: str,
        core: LightCore,
        *,
        address: str | None = None,
        behind: SubnetRouter | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        port: int = defaults.LIGHT_PORT,
    ) -> LightHost:
        """Add a light host (`light.py`). If a world has only light hosts, call `advance` instead of
        `run`.
        """
        self._check_new(name)
        light = LightHost(self.network, name, core)
        attachment = self._outside(behind).attach(light, link=link, site=site)
        self._assign(attachment, address, behind, False)
        light.plug(attachment, port)
        self.lights[name] = light
        self.names[name] = attachment.addresses
        return light

    def gateway(
        self,
        name: str,
        kind: str = "linux-drop",
        *,
        behind: SubnetRouter | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        ipv6: bool = False,
        **knobs: object,
    ) -> SubnetRouter:
        """Add a NAT or firewall of this kind (see `nat/kinds.py`) to the internet, or to the inside
        of another gateway.

        If `ipv6` is True, the inside also has global IPv6 addresses, behind a firewall (RFC 6092).
        Raises ValueError if the name exists already, or if the kind or a knob is unknown.
        """
        self._check_new(name)
        address = behind.free_address() if behind is not None else self.public_address()
        if ipv6 or kind in DUAL:
            knobs["prefix"] = self.public_prefix6()
        place = GatewayPlace(self.network, name, self._outside(behind), address, link, site)
        gateway = build(kind, place, knobs)
        self.gateways[name] = gateway
        if self._nursery is not None:
            self._nursery.start_soon(gateway.serve, self._nursery)
        return gateway

    def public_address(self, *, again: bool = False) -> str:
        """Return an unused public IPv4 address.

        Set `again` to True for the replacement of an earlier address. Replacements come from a
        separate range, so that adding a host to the world does not change them.
        """
        number = self._next_address(again)
        return f"{11 + (number >> 16)}.{number >> 8 & 255}.{number & 255}.1"

    def public_address6(self, *, again: bool = False) -> str:
        """Return an unused public IPv6 address, which is the first in a /64 of its own. `again` has
        the same meaning as in `public_address`.
        """
        number = self._next_address(again)
        return f"2600:{number >> 16:x}:{number & 0xFFFF:x}::1"

    def public_prefix6(self, *, again: bool = False) -> str:
        """Return an unused public IPv6 /64. `again` has the same meaning as in `public_address`."""
        return str(IPv6Network(self.public_address6(again=again)).supernet(new_prefix=64))

    def _next_address(self, again: bool) -> int:
        """Return the next unused address number, from the separate range if `again` is True."""
        if again:
            self._redials += 1
            return self._redials
        self._addresses += 1
        return self._addresses

    # Running.

    def run(self, main: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run `main` in virtual time, and return its result. Raises NothingLeft if every task waits
        and no event is left, so that `main` would never return.
        """
        shuffle = self.streams.get("", "schedule") if self.fuzz else None
        with strict(shuffle=shuffle, patience=self.patience) as collector:
            clock = SimClock(self.events, self._on_idle, collector.turn)
            return trio.run(self._main, main, args, clock=clock)

    def advance(self, until: float) -> None:
        """Run events up to the time `until` (seconds) without trio. Use this for a world that has
        only light hosts.
        """
        events = self.events
        begin, turns = events.now, defaults.ADVANCE_TURNS
        with deterministic_collection() as collector:
            for turn in range(1, turns + 1):
                events.run_until(begin + (until - begin) * turn / turns if turn < turns else until)
                collector.turn(events.count)

    async def _main(self, main: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
        """Run `main` as trio's main task, with the simulated sockets, resolver and gateways."""
        trio.socket.set_custom_socket_factory(SocketFactory())
        trio.socket.set_custom_hostname_resolver(Resolver(self.names))
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as self._nursery:
                for host in self.hosts.values():
                    host.nursery = self._nursery
                for gateway in self.gateways.values():
                    await gateway.serve(self._nursery)
                try:  # raise its exception itself, not a group around it
                    result = await outcome.acapture(main, *args)
                finally:
                    for release in self.at_end:
                        release()
                self._nursery.cancel_scope.cancel()
            return result.unwrap()
        raise NothingLeft("every task waits, and no event is left that could wake one")

    def _on_idle(self) -> None:
        """Cancel the run, because nothing can happen any more."""
        if self._scope is not None:
            self._scope.cancel()
