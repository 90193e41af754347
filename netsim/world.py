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
from .light import Core, LightHost
from .nat.kinds import DUAL, build
from .network.dns import Resolver
from .network.gateway import Gateway, GatewayPlace
from .network.link import LinkSpec
from .network.network import Attachment, Latency, Network, Subnet
from .sockets.factory import SocketFactory, equip
from .streams import Streams
from .trace.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class World:
    """One simulated internet. The same seed and the same program give the same packets.

    `latency` is the seconds in one direction between any two sites, or a matrix
    (`population/latency.py`).
    """

    def __init__(
        self, seed: int = 0, *, trace: Trace | None = None, latency: Latency = 0.01
    ) -> None:
        self.seed = seed
        self.trace = trace
        self.fuzz = False  # draw the order of tasks that could run at the same instant
        self.patience = 30.0  # seconds of real time that a task may run without a checkpoint
        self.events = Events()
        self.streams = Streams(seed)
        self.network = Network(self.events, self.streams, trace)
        self.internet = Subnet(self.network, "internet", latency)
        self.internet.carries_groups = False
        self.names: dict[str, list[str]] = {}  # DNS
        self.hosts: dict[str, Host] = {}
        self.lights: dict[str, LightHost] = {}
        self.gateways: dict[str, Gateway] = {}
        self.at_end: list[Callable[[], None]] = []  # called when `main` has returned
        self._nursery: trio.Nursery | None = None
        self._addresses = 0
        self._redials = 1 << 21  # so that those addresses begin at 43.0.0.1 and 2600:20::
        self._scope: trio.CancelScope | None = None

    # Building.

    def host(
        self,
        name: str,
        *,
        address: str | None = None,
        behind: Gateway | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        ipv6: bool | None = None,
    ) -> Host:
        """Add a host on the internet, or on the inside of a gateway.

        A host behind a gateway shares the gateway's `link`; its own is that of the LAN. It also has
        an IPv6 address if `ipv6` is True, or if `ipv6` is None and its gateway has one.
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
        behind: Gateway | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        ipv6: bool | None = None,
    ) -> Attachment:
        """Add an interface ("eth1", …) to a host, with the arguments of `host`.

        Addresses that are not on a neighbouring subnet are reached through the first interface of
        their family.
        """
        name = f"eth{len(host.attachments)}"
        attachment = self._outside(behind).attach(host, name=name, link=link, site=site)
        self._assign(attachment, address, behind, ipv6)
        host.attachments.append(attachment)
        host.addresses_changed()
        self.names[host.name] = host.addresses()
        return attachment

    def _outside(self, behind: Gateway | None) -> Subnet:
        """Return the inside of a gateway, or the internet."""
        return behind.inside if behind is not None else self.internet

    def _assign(
        self, attachment: Attachment, address: str | None, behind: Gateway | None, ipv6: bool | None
    ) -> None:
        """Give an attachment its addresses, and route them to it."""
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
        """Check that a name is new: faults and random streams identify hosts and gateways by name.
        Raises ValueError.
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
        core: Core,
        *,
        address: str | None = None,
        behind: Gateway | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        port: int = defaults.LIGHT_PORT,
    ) -> LightHost:
        """Add a light host (`light.py`). A world with only light hosts needs no `run`, but
        `advance`.
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
        behind: Gateway | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        ipv6: bool = False,
        **knobs: object,
    ) -> Gateway:
        """Add a NAT or firewall (listed in `nat/kinds.py`) on the internet, or behind another one.

        With `ipv6` its inside also has global addresses, behind a firewall (RFC 6092).
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

        `again`: the owner had another address before. Such addresses have a range of their own, so
        that another host in the world changes no later address.
        """
        number = self._next_address(again)
        return f"{11 + (number >> 16)}.{number >> 8 & 255}.{number & 255}.1"

    def public_address6(self, *, again: bool = False) -> str:
        """Return an unused public IPv6 address, the first of a /64 of its own."""
        number = self._next_address(again)
        return f"2600:{number >> 16:x}:{number & 0xFFFF:x}::1"

    def public_prefix6(self, *, again: bool = False) -> str:
        """Return an unused public /64."""
        return str(IPv6Network(self.public_address6(again=again)).supernet(new_prefix=64))

    def _next_address(self, again: bool) -> int:
        if again:
            self._redials += 1
            return self._redials
        self._addresses += 1
        return self._addresses

    # Running.

    def run(self, main: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run `main` in virtual time until it returns. Raises NothingLeft if it never would."""
        shuffle = self.streams.get("", "schedule") if self.fuzz else None
        with strict(shuffle=shuffle, patience=self.patience) as collector:
            clock = SimClock(self.events, self._on_idle, collector.turn)
            return trio.run(self._main, main, args, clock=clock)

    def advance(self, until: float) -> None:
        """Run events up to the time `until`, without trio: for a world with only light hosts."""
        events = self.events
        begin, turns = events.now, defaults.ADVANCE_TURNS
        with deterministic_collection() as collector:
            for turn in range(1, turns + 1):
                events.run_until(begin + (until - begin) * turn / turns if turn < turns else until)
                collector.turn(events.count)

    async def _main(self, main: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
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
        if self._scope is not None:
            self._scope.cancel()
