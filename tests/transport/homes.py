"""Homes behind routers of a simulated internet, and relays that know each other."""

from collections.abc import Callable, Sequence
from typing import Any

import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.daemons.town import Town, is_direct
from shoal.netsim.packet import TCP, UDP
from shoal.netsim.world import World
from shoal.transport.errors import DialFailed
from shoal.transport.ladder import Rungs

NO_UDP = frozenset((TCP, port) for port in range(65536))
NO_TCP = frozenset((UDP, port) for port in range(65536))
UNPUNCHED = {"punch_tcp": False, "punch_udp": False}
HOMES = ("linux-drop", "linux-drop")


async def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    with trio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.05)


def rungs(**only: bool) -> Rungs:
    """The own network is left out: no two nodes of these tests share one, unless they say so."""
    return Rungs(**{"lan": False, **only})


class Street:
    """A town of homes behind routers, and of relays that know each other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.town = Town(world)

    async def relays(self, count: int = 3, **settings: Any) -> None:
        for number in range(count):
            host = self.world.host(f"relay{number}", ipv6=settings.get("ipv6"))
            everywhere = settings.get("everywhere", False)
            relay = await self.town.relay(
                host, everywhere=everywhere, rungs=rungs(), web_port=everywhere
            )
            relay.ladder.relaying.member = lambda peer: 0.0  # all have been there for long

    async def home(self, name: str, nat: str, ladder: Rungs | None = None, **knobs: Any) -> Climber:
        gateway = self.world.gateway(f"{name}-router", nat, **knobs)
        return await self.town.node(self.world.host(name, behind=gateway), rungs=ladder or rungs())

    async def settle(self, *nodes: Climber, relays: Sequence[Climber] | None = None) -> None:
        """Everybody knows the relays, has a place where that is needed, and has been measured."""
        for node in nodes:
            await self.town.introduce(node, self.town.relays if relays is None else relays)
        await trio.sleep(15)


async def way_of(one: Climber, other: Climber, patience: float = 12.0) -> tuple[str, str]:
    """How they meet in the end: the way and the medium, or the code of why they do not."""
    try:
        link = await one.connect(other.peer)
    except DialFailed as error:
        return "none", error.code
    with trio.move_on_after(patience):
        await until(lambda: is_direct(link), patience + 1)
    assert (await one.call(link, header={"n": 1})).header == {"n": 1}
    leg = next(leg for leg in link.status.legs if leg.used)
    six = "6" if ":" in leg.address[0] else ""
    return str(leg.way), leg.medium + six


async def two_homes(world: World, kinds: tuple[str, str], **settings: Any) -> tuple[str, str]:
    """The way between two homes that have joined by three relays. `allow`: what their routers let
    out; `six`: they and the relays have IPv6; `relays_six`: whether the relays have it; the rest
    are rungs."""
    street = Street(world)
    six = settings.pop("six", False)
    relays_six = settings.pop("relays_six", six)
    allow = settings.pop("allow", None)
    await street.relays(ipv6=relays_six)
    ladder = rungs(**settings)
    a = await street.home("a", kinds[0], ladder, ipv6=six, allow=allow)
    b = await street.home("b", kinds[1], ladder, ipv6=six, allow=allow)
    await street.settle(a, b)
    return await way_of(a, b)
