"""Whole ladders on a simulated internet: who reaches whom, by which way, and what then happens.

Each rung has a test in which it is the only one left, and one that is red where the rung is off.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.daemons.town import Town, is_direct
from shoal.netsim.packet import TCP, UDP
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.errors import DialFailed
from shoal.transport.ladder import Rungs
from shoal.transport.link import Link
from shoal.transport.pipe import Way
from shoal.transport.punch import puncher
from shoal.transport.punch.preparing import Prepared
from shoal.transport.punch.sockets import Sockets

NO_UDP = frozenset((TCP, port) for port in range(65536))
NO_TCP = frozenset((UDP, port) for port in range(65536))
UNPUNCHED = {"punch_tcp": False, "punch_udp": False}


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
            await self.town.relay(host, everywhere=everywhere, rungs=rungs())

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
    out; `six`: they and the relays have IPv6; the rest are rungs."""
    street = Street(world)
    six = settings.pop("six", False)
    allow = settings.pop("allow", None)
    await street.relays(ipv6=six)
    ladder = rungs(**settings)
    a = await street.home("a", kinds[0], ladder, ipv6=six, allow=allow)
    b = await street.home("b", kinds[1], ladder, ipv6=six, allow=allow)
    await street.settle(a, b)
    return await way_of(a, b)


async def test_two_homes_meet_through_a_relay_and_then_directly(world: World) -> None:
    street = Street(world)
    await street.relays()
    a, b = await street.home("a", "linux-drop"), await street.home("b", "linux-drop")
    await street.settle(a, b)
    began = trio.current_time()
    link = await a.connect(b.peer)
    assert link.way is Way.RELAYED
    assert (await a.call(link, header={"n": 1})).header == {"n": 1}
    await until(lambda: link.way is not Way.RELAYED)
    assert trio.current_time() - began < 5
    assert (await a.call(link, header={"n": 2})).header == {"n": 2}


# The own network.


async def neighbours(world: World, ladder: Rungs) -> Link | None:
    street = Street(world)
    street.town.book = lambda peer: []  # type: ignore[method-assign]
    gateway = world.gateway("router")
    a = await street.town.node(world.host("a", behind=gateway), rungs=ladder)
    b = await street.town.node(world.host("b", behind=gateway), rungs=ladder)
    await trio.sleep(10)
    return a.endpoint.link(b.peer)


async def test_neighbours_find_each_other(world: World) -> None:
    link = await neighbours(world, Rungs())
    assert link is not None
    assert link.way is Way.LAN


async def test_neighbours_do_not_without_multicast(world: World) -> None:
    assert await neighbours(world, Rungs(lan=False)) is None


# Public addresses.


async def to_public(world: World, ladder: Rungs, **knobs: Any) -> tuple[str, str]:
    street = Street(world)
    a = await street.home("a", "linux-drop", ladder, **knobs)
    b = await street.town.node(world.host("b"), rungs=rungs())
    return await way_of(a, b)


async def test_a_public_address_over_tcp(world: World) -> None:
    assert await to_public(world, rungs(udp=False, relay=False)) == ("direct", "tcp")


async def test_not_over_tcp_without_dialling_it(world: World) -> None:
    ladder = rungs(udp=False, relay=False, direct=False)
    assert await to_public(world, ladder) == ("none", "no-way")


async def test_a_public_address_over_udp(world: World) -> None:
    assert await to_public(world, rungs(relay=False), allow=NO_TCP) == ("direct", "udp")


async def test_not_over_udp_without_a_udp_port(world: World) -> None:
    ladder = rungs(relay=False, udp=False)
    assert (await to_public(world, ladder, allow=NO_TCP))[0] == "none"


# A port that the router forwards.


async def to_mapped(world: World, **settings: bool) -> tuple[str, str]:
    street = Street(world)
    a = await street.home("a", "linux-drop", rungs(relay=False, **UNPUNCHED))
    ladder = rungs(relay=False, **{**UNPUNCHED, **settings})
    b = await street.home("b", "linux-drop", ladder, igd=True)
    await trio.sleep(10)
    return await way_of(a, b)


async def test_a_port_that_the_router_forwards(world: World) -> None:
    assert await to_mapped(world) == ("direct", "tcp")


async def test_no_port_without_asking_the_router(world: World) -> None:
    assert (await to_mapped(world, mapping=False))[0] == "none"


# Punching.


HOMES = ("linux-drop", "linux-drop")


async def test_tcp_is_punched_where_udp_is_blocked(world: World) -> None:
    assert await two_homes(world, HOMES, allow=NO_UDP) == ("punched", "tcp")


async def test_not_without_punching_tcp(world: World) -> None:
    found = await two_homes(world, HOMES, allow=NO_UDP, punch_tcp=False)
    assert found == ("relayed", "circuit")


async def test_udp_is_punched_where_tcp_is_blocked(world: World) -> None:
    assert await two_homes(world, HOMES, allow=NO_TCP) == ("punched", "udp")


async def test_not_without_punching_udp(world: World) -> None:
    found = await two_homes(world, HOMES, allow=NO_TCP, punch_udp=False)
    assert found == ("relayed", "circuit")


STRICT = ("eim-apdf", "apdm-apdf")


async def test_the_port_of_a_symmetric_nat_is_found(world: World) -> None:
    assert await two_homes(world, STRICT) == ("punched", "udp")


async def test_not_without_searching_for_it(world: World) -> None:
    assert await two_homes(world, STRICT, prediction=False) == ("relayed", "circuit")


@pytest.mark.parametrize("aside", [True, False])
async def test_it_is_found_from_behind_a_router_that_an_early_packet_has_spoiled(
    world: World, monkeypatch: pytest.MonkeyPatch, aside: bool
) -> None:
    """The twin searches from the port that is seen elsewhere by then."""

    async def in_vain(mine: Prepared, sockets: Sockets | None) -> Prepared:
        return mine

    if not aside:
        monkeypatch.setattr(puncher, "set_aside", in_vain)
    street = Street(world)
    await street.relays()
    open_input = await street.home("a", "linux-accept")
    early, drawing = await street.home("b", "linux-drop"), await street.home("c", "apdm-apdf")
    await street.settle(open_input, early, drawing)
    await way_of(early, open_input)
    found = await way_of(drawing, open_input)
    assert found == (("punched", "udp") if aside else ("relayed", "circuit"))


# IPv6.


SYMMETRIC = ("apdm-apdf", "apdm-apdf")


async def test_ipv6_firewalls_are_punched_where_ipv4_cannot_be(world: World) -> None:
    way, medium = await two_homes(world, SYMMETRIC, six=True)
    assert medium in ("tcp6", "udp6")
    assert way in ("direct", "punched")


async def test_not_without_ipv6(world: World) -> None:
    assert await two_homes(world, SYMMETRIC, six=False) == ("relayed", "circuit")


# Relays.


async def test_a_relay_where_nothing_can_be_punched(world: World) -> None:
    assert await two_homes(world, HOMES, **UNPUNCHED) == ("relayed", "circuit")


async def test_nobody_is_reached_without_relays(world: World) -> None:
    assert (await two_homes(world, HOMES, relay=False))[0] == "none"


async def behind_campus(world: World, *, everywhere: bool) -> tuple[str, str]:
    """From a network that lets out TCP 80 and 443 only, to a home."""
    street = Street(world)
    await street.relays(everywhere=everywhere)
    a = await street.home("a", "udp-blocked", rungs(**UNPUNCHED))
    b = await street.home("b", "linux-drop", rungs(**UNPUNCHED))
    await street.settle(a, b)
    return await way_of(a, b)


async def test_a_relay_on_443_where_nothing_else_is_let_out(world: World) -> None:
    assert await behind_campus(world, everywhere=True) == ("relayed", "circuit")


async def test_not_by_relays_on_other_ports(world: World) -> None:
    assert (await behind_campus(world, everywhere=False))[0] == "none"


async def test_who_is_reached_has_a_place_at_a_relay_on_443_for_those_behind_a_campus(
    world: World,
) -> None:
    street = Street(world)
    await street.relays(everywhere=True)
    a = await street.home("a", "udp-blocked")
    b = await street.town.node(world.host("b"), rungs=rungs())
    await street.settle(a, b)
    assert b.ladder.relays.reachable
    assert len(b.ladder.relays.relays) == 1
    assert await way_of(a, b, 1.0) == ("relayed", "circuit")


class Campus(Street):
    """`a` gets out by TCP 443 alone, to the one relay that is there; nobody else knows that relay,
    nor does it know them but from the book."""

    async def meet(self, b: Climber, *, relays: Sequence[Climber] = ()) -> None:
        self.a = await self.home("a", "udp-blocked")
        self.b = b
        await self.settle(self.a, relays=self.town.relays[:1])
        await self.settle(b, relays=relays)
        assert self.town.relays[0].endpoint.link(b.peer) is None

    async def public(self, **only: bool) -> Climber:
        return await self.town.node(self.world.host("b"), rungs=rungs(**only))


async def test_a_public_node_is_reached_by_the_relay_of_who_gets_out_by_443_only(
    world: World,
) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public())
    assert not street.b.ladder.relays.relays
    assert await way_of(street.a, street.b, 1.0) == ("relayed", "circuit")
    await until(lambda: street.b.ladder.relays.relays)  # and others find it without asking


async def test_not_by_a_relay_that_looks_for_nobody(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    street.town.relays[0].ladder.relaying.fetch = None
    await street.meet(await street.public())
    assert (await way_of(street.a, street.b, 1.0))[0] == "none"


async def test_not_if_it_takes_no_circuits(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public(relay=False))
    assert (await way_of(street.a, street.b, 1.0))[0] == "none"


async def test_a_public_node_reaches_who_gets_out_by_443_only(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public())
    assert await way_of(street.b, street.a, 1.0) == ("relayed", "circuit")


async def test_a_home_whose_relays_are_on_other_ports_is_reached_by_443_only(
    world: World,
) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    host = world.host("other-relay")
    other = await street.town.relay(host, rungs=rungs())
    await street.meet(await street.home("b", "linux-drop"), relays=[other])
    assert await way_of(street.a, street.b, 1.0) == ("relayed", "circuit")


@pytest.mark.parametrize("honest", [True, False])
async def test_a_relay_that_came_by_itself_will_do_if_it_says_where_it_is(
    world: World, honest: bool
) -> None:
    """Where it is seen, that is: at any other address it may be that nobody answers."""
    street = Street(world)
    await street.relays(1, everywhere=True)
    (relay,) = street.town.relays
    b = await street.town.node(world.host("b"), rungs=rungs())
    if not honest:
        b.ladder.book = lambda peer: [Address("99.9.9.9", 443, relay.peer)]
    await relay.connect(b.peer)
    await trio.sleep(5)
    assert bool(b.ladder.relays.relays) is honest


@pytest.mark.parametrize("through_a_hole", [True, False])
async def test_who_is_accepted_through_a_hole_is_said_to_be_punched(
    world: World, through_a_hole: bool
) -> None:
    town = Town(world)
    a = await town.node(world.host("a"), rungs=rungs(udp=False))
    b = await town.node(world.host("b"), rungs=rungs(udp=False))
    assert b.endpoint.punched == b.ladder.puncher.opened
    here = a.computer.addresses()[0], a.peer
    b.endpoint.punched = lambda peer, ip: through_a_hole and (ip, peer) == here
    await a.connect(b.peer)
    await until(lambda: b.endpoint.link(a.peer))
    link = b.endpoint.link(a.peer)
    assert link is not None
    assert link.way is (Way.PUNCHED if through_a_hole else Way.DIRECT)


# What follows.


async def test_relays_splice_tcp_and_udp(world: World) -> None:
    street = Street(world)
    await street.relays()
    a = await street.home("a", "linux-drop", allow=NO_UDP)
    b = await street.home("b", "linux-drop", allow=NO_TCP)
    await street.settle(a, b)
    assert await way_of(a, b, 1.0) == ("relayed", "circuit")
    assert {leg.medium for relay in b.endpoint.links() for leg in relay.status.legs} >= {"udp"}


async def test_a_peer_that_is_met_again_at_once_is_punched_for_again(world: World) -> None:
    street = Street(world)
    await street.relays()
    a, b = await street.home("a", "linux-drop"), await street.home("b", "linux-drop")
    await street.settle(a, b)
    for one, other in ((a, b), (b, a)):
        link = await one.connect(other.peer)
        await until(partial(is_direct, link))
        link.close()
        await trio.sleep(1)


async def test_a_link_that_falls_back_to_a_relay_is_punched_for_again(world: World) -> None:
    street = Street(world)
    await street.relays()
    a, b = await street.home("a", "linux-drop"), await street.home("b", "linux-drop")
    await street.settle(a, b)
    link = await a.connect(b.peer)
    await until(lambda: is_direct(link))
    world.gateways["a-router"].redial(world.public_address(again=True))
    await until(lambda: not is_direct(link))
    await until(lambda: is_direct(link), 60)


async def test_private_addresses_of_strangers_are_not_dialled(world: World) -> None:
    street = Street(world)
    await street.relays()
    a = await street.home("a", "linux-drop", rungs(relay=False, **UNPUNCHED))
    b = await street.home("b", "linux-drop", rungs(**UNPUNCHED))
    await street.settle(a, b)
    private = [each for each in b.addresses() if each.host.startswith("192.168.")]
    assert private
    with pytest.raises(DialFailed, match="no address"):
        await a.connect(b.peer, [*private, *(each for each in a.addresses() if each.relay is None)])
