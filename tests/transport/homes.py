"""Homes behind routers of a simulated internet, and relays that know each other."""

from collections.abc import Callable, Sequence
from typing import Any

import trio

from bench.worlds.town import Town, is_direct
from bench.worlds.transportnode import TransportNode
from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.world import World
from shoal.transport.errors import DialFailed
from shoal.transport.strategies.dialer import Strategies

NO_UDP = frozenset((TCP, port) for port in range(65536))
NO_TCP = frozenset((UDP, port) for port in range(65536))
UNPUNCHED = {"punch_tcp": False, "punch_udp": False}
HOMES = ("linux-drop", "linux-drop")


async def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    with trio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.05)


def strategies(**only: bool) -> Strategies:
    """Strategies without the local network, because nodes of most tests do not share one."""
    return Strategies(**{"lan": False, **only})


class Street:
    """Homes behind routers, and relays that know each other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.town = Town(world)

    async def relays(self, count: int = 3, **settings: Any) -> None:
        for number in range(count):
            host = self.world.host(f"relay{number}", ipv6=settings.get("ipv6"))
            everywhere = settings.get("everywhere", False)
            relay = await self.town.relay(
                host, everywhere=everywhere, strategies=strategies(), web_port=everywhere
            )
            relay.dialer.relaying.member = lambda peer: 0.0  # all have been there for long

    async def home(
        self, name: str, nat: str, dialer: Strategies | None = None, **knobs: Any
    ) -> TransportNode:
        gateway = self.world.gateway(f"{name}-router", nat, **knobs)
        return await self.town.node(
            self.world.host(name, behind=gateway), strategies=dialer or strategies()
        )

    async def settle(
        self, *nodes: TransportNode, relays: Sequence[TransportNode] | None = None
    ) -> None:
        """Introduce the relays to all nodes, and wait for reservations and measurements."""
        for node in nodes:
            await self.town.introduce(node, self.town.relays if relays is None else relays)
        await trio.sleep(15)


async def way_of(
    one: TransportNode, other: TransportNode, patience: float = 12.0
) -> tuple[str, str]:
    """Return the path kind and medium by which they meet, or the code of the failure."""
    try:
        link = await one.connect(other.peer)
    except DialFailed as error:
        return "none", error.code
    with trio.move_on_after(patience):
        await until(lambda: is_direct(link), patience + 1)
    assert (await one.call(link, header={"n": 1})).header == {"n": 1}
    path = next(path for path in link.status.paths if path.used)
    six = "6" if ":" in path.address[0] else ""
    return str(path.path_kind), path.medium + six


async def two_homes(world: World, kinds: tuple[str, str], **settings: Any) -> tuple[str, str]:
    """Return how two homes that have joined by three relays are connected. `allow` says what
    their routers let out, `six` whether homes and relays have IPv6, `relays_six` whether the relays
    have it. The other arguments are strategies."""
    street = Street(world)
    six = settings.pop("six", False)
    relays_six = settings.pop("relays_six", six)
    allow = settings.pop("allow", None)
    await street.relays(ipv6=relays_six)
    dialer = strategies(**settings)
    a = await street.home("a", kinds[0], dialer, ipv6=six, allow=allow)
    b = await street.home("b", kinds[1], dialer, ipv6=six, allow=allow)
    await street.settle(a, b)
    return await way_of(a, b)
