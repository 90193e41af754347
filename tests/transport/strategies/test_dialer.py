"""Whole nodes on a simulated internet: which strategies connect them, and later changes.

Each strategy has a test in which it is the only one left, and a twin that fails without it.
"""

from functools import partial

import pytest
import trio

from bench.worlds.town import Town, is_direct
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind
from shoal.transport.errors import DialFailed
from shoal.transport.nat.punch import attempt, puncher
from shoal.transport.nat.punch.preparing import PreparedRound
from shoal.transport.nat.punch.sockets import Sockets
from tests.transport.homes import (
    HOMES,
    NO_TCP,
    NO_UDP,
    UNPUNCHED,
    Street,
    strategies,
    two_homes,
    until,
    way_of,
)


async def test_two_homes_meet_through_a_relay_and_then_directly(world: World) -> None:
    street = Street(world)
    await street.relays()
    a, b = await street.home("a", "linux-drop"), await street.home("b", "linux-drop")
    await street.settle(a, b)
    began = trio.current_time()
    link = await a.connect(b.peer)
    assert link.path_kind is PathKind.RELAYED
    assert (await a.call(link, header={"n": 1})).header == {"n": 1}
    await until(lambda: link.path_kind is not PathKind.RELAYED)
    assert trio.current_time() - began < 5
    assert (await a.call(link, header={"n": 2})).header == {"n": 2}


# A port that the router forwards.


async def to_mapped(world: World, **settings: bool) -> tuple[str, str]:
    street = Street(world)
    a = await street.home("a", "linux-drop", strategies(relay=False, **UNPUNCHED))
    dialer = strategies(relay=False, **{**UNPUNCHED, **settings})
    b = await street.home("b", "linux-drop", dialer, igd=True)
    await trio.sleep(10)
    return await way_of(a, b)


async def test_a_port_forwarded_by_the_router_is_used(world: World) -> None:
    assert await to_mapped(world) == ("direct", "tcp")


async def test_without_port_mapping_no_port_is_forwarded(world: World) -> None:
    assert (await to_mapped(world, mapping=False))[0] == "none"


# Punching.


async def test_tcp_is_punched_where_udp_is_blocked(world: World) -> None:
    assert await two_homes(world, HOMES, allow=NO_UDP) == ("punched", "tcp")


async def test_without_tcp_punching_they_stay_relayed(world: World) -> None:
    found = await two_homes(world, HOMES, allow=NO_UDP, punch_tcp=False)
    assert found == ("relayed", "circuit")


async def test_udp_is_punched_where_tcp_is_blocked(world: World) -> None:
    assert await two_homes(world, HOMES, allow=NO_TCP) == ("punched", "udp")


async def test_without_udp_punching_they_stay_relayed(world: World) -> None:
    found = await two_homes(world, HOMES, allow=NO_TCP, punch_udp=False)
    assert found == ("relayed", "circuit")


STRICT = ("eim-apdf", "apdm-apdf")


async def test_the_port_of_a_symmetric_nat_is_found(world: World) -> None:
    assert await two_homes(world, STRICT) == ("punched", "udp")


async def test_without_a_search_they_stay_relayed(world: World) -> None:
    assert await two_homes(world, STRICT, prediction=False) == ("relayed", "circuit")


@pytest.mark.parametrize("aside", [True, False])
async def test_a_search_works_although_an_early_packet_has_spoiled_a_port(
    world: World, monkeypatch: pytest.MonkeyPatch, aside: bool
) -> None:
    """The twin searches from the port that is seen elsewhere by then, and fails."""

    async def in_vain(mine: PreparedRound, sockets: Sockets | None) -> PreparedRound:
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
    path_kind, medium = await two_homes(world, SYMMETRIC, six=True)
    assert medium in ("tcp6", "udp6")
    assert path_kind in ("direct", "punched")


async def test_not_without_ipv6(world: World) -> None:
    assert await two_homes(world, SYMMETRIC, six=False) == ("relayed", "circuit")


@pytest.mark.parametrize("honest", [True, False])
async def test_a_relay_that_dialled_us_is_used_if_it_names_its_address(
    world: World, honest: bool
) -> None:
    """It must be the address at which it is seen: at another one no node may answer."""
    street = Street(world)
    await street.relays(1, everywhere=True)
    (relay,) = street.town.relays
    b = await street.town.node(world.host("b"), strategies=strategies())
    if not honest:
        b.dialer.book = lambda peer: [Address("99.9.9.9", 443, relay.peer)]
    await relay.connect(b.peer)
    await trio.sleep(5)
    assert bool(b.dialer.relays.relays) is honest


@pytest.mark.parametrize("through_a_hole", [True, False])
async def test_a_peer_accepted_through_a_hole_counts_as_punched(
    world: World, through_a_hole: bool
) -> None:
    town = Town(world)
    a = await town.node(world.host("a"), strategies=strategies(udp=False))
    b = await town.node(world.host("b"), strategies=strategies(udp=False))
    assert b.endpoint.accepting.punched == b.dialer.puncher.opened
    here = a.computer.addresses()[0], a.peer
    b.endpoint.accepting.register_punched(lambda peer, ip: through_a_hole and (ip, peer) == here)
    await a.connect(b.peer)
    await until(lambda: b.endpoint.link(a.peer))
    link = b.endpoint.link(a.peer)
    assert link is not None
    assert link.path_kind is (PathKind.PUNCHED if through_a_hole else PathKind.DIRECT)


# What follows.


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
    a = await street.home("a", "linux-drop", strategies(relay=False, **UNPUNCHED))
    b = await street.home("b", "linux-drop", strategies(**UNPUNCHED))
    await street.settle(a, b)
    private = [each for each in b.addresses() if each.host.startswith("192.168.")]
    assert private
    with pytest.raises(DialFailed, match="no address"):
        await a.connect(b.peer, [*private, *(each for each in a.addresses() if each.relay is None)])


async def test_ipv6_connects_them_though_no_relay_has_it(world: World) -> None:
    """Two stateful IPv6 firewalls, and only the homes themselves know their IPv6 addresses."""
    found = await two_homes(world, SYMMETRIC, six=True, relays_six=False)
    assert found == ("direct", "udp6")


async def test_without_checks_of_unvouched_addresses_they_stay_relayed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "unseen", lambda candidates, seen: [])
    found = await two_homes(world, SYMMETRIC, six=True, relays_six=False)
    assert found == ("relayed", "circuit")
