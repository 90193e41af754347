"""The addresses that a node publishes, and those of a peer that it dials."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from shoal.transport.address import Address
from shoal.transport.host.seam import Interface
from shoal.transport.identity import Identity
from shoal.transport.nat.portmap.mapping import PortMapping
from shoal.transport.nat.reach.reachability import DialBackResult, Dialled, Ipv6, Reachability
from shoal.transport.nat.whereabouts import AddressSources, Whereabouts

ME, PEER, RELAY = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2, 3))
ANYWHERE = [("0.0.0.0", 4001), ("::", 4001)]


class World:
    """Fakes of all parts that are queried."""

    def __init__(self, *ips: str, listening: Sequence[tuple[str, int]] = ANYWHERE) -> None:
        self.ips = ips
        self.peer, self.port, self.udp_port = ME, 4001, 4001
        self.listening = list(listening)
        self.reachability = Reachability()
        self.mapping: PortMapping | None = None
        self.relays: list[Any] = []

    def interfaces(self) -> list[Interface]:
        return [Interface("eth0", ip, 24) for ip in self.ips]

    def addresses(self) -> list[Address]:
        return [Address("12.0.0.1", 4001, RELAY).through(ME)]

    def whereabouts(self) -> Whereabouts:
        me = cast(Any, self)
        return Whereabouts(me, me, AddressSources(me, me, me, me))

    def published(self) -> list[str]:
        found = self.whereabouts().addresses()
        return [f"{each.host} {each.transport} {each.port}" for each in found if not each.relay]


def dialled(ip: str, answer: DialBackResult, port: int = 4001, transport: str = "tcp") -> Dialled:
    return Dialled(transport, (ip, port), answer, 1)


def theirs(*ips: str) -> list[Address]:
    return [Address(ip, 4001, PEER) for ip in ips]


def test_port_443_is_published_where_it_is_listened_on() -> None:
    world = World("11.0.0.1", listening=[*ANYWHERE, ("0.0.0.0", 443)])
    assert world.published() == ["11.0.0.1 tcp 443", "11.0.0.1 udp 4001"]
    assert world.whereabouts().everywhere()
    assert not World("11.0.0.1").whereabouts().everywhere()


def test_port_443_of_a_home_is_not_published() -> None:
    world = World("192.168.1.2", listening=[*ANYWHERE, ("0.0.0.0", 443)])
    assert world.published() == []
    assert not world.whereabouts().everywhere()


def test_ipv6_is_published_unless_it_is_filtered() -> None:
    world = World("192.168.1.2", "2600::1", "fe80::1")
    assert world.published() == ["2600::1 tcp 4001"]
    world.reachability = Reachability(ipv6=Ipv6.FILTERED)
    assert world.published() == []


def test_where_peers_got_through_is_published() -> None:
    world = World("192.168.1.2")
    world.reachability = Reachability(
        dialled=(
            dialled("11.0.0.9", DialBackResult.REACHED, 7),
            dialled("11.0.0.9", DialBackResult.REACHED, 8, "udp"),
            dialled("11.0.0.9", DialBackResult.NOT_REACHED, 9),
        )
    )
    assert world.published() == ["11.0.0.9 tcp 7", "11.0.0.9 udp 8"]


def test_relays_come_last() -> None:
    assert World("11.0.0.1").whereabouts().addresses()[-1].relay is not None


@pytest.mark.parametrize(
    ("ips", "answers", "reachable"),
    [
        (("11.0.0.1",), (), True),
        (("11.0.0.1",), (dialled("11.0.0.1", DialBackResult.UNKNOWN),), True),
        (("11.0.0.1",), (dialled("11.0.0.1", DialBackResult.NOT_REACHED),), False),
        (("192.168.1.2",), (), False),
        # Global IPv6 alone: most peers could not use it.
        (("192.168.1.2", "2600::1"), (), False),
        (("192.168.1.2", "2600::1"), (dialled("2600::1", DialBackResult.REACHED),), False),
        # A full cone: the mapping ends when nothing holds it.
        (("192.168.1.2",), (dialled("11.0.0.9", DialBackResult.REACHED),), False),
    ],
)
def test_reachable_nodes(
    ips: tuple[str, ...], answers: tuple[Dialled, ...], *, reachable: bool
) -> None:
    world = World(*ips)
    world.reachability = Reachability(dialled=answers)
    assert world.whereabouts().reachable() is reachable


def test_a_mapped_port_is_reachable_once_a_peer_has_used_it() -> None:
    world = World("192.168.1.2")
    world.mapping = PortMapping("11.0.0.9", 4001, 4001, "pcp", 3600.0, "192.168.1.1")
    assert not world.whereabouts().reachable()
    world.reachability = Reachability(dialled=(dialled("11.0.0.9", DialBackResult.REACHED),))
    assert world.whereabouts().reachable()


def test_private_addresses_of_strangers_are_left_out() -> None:
    world = World("192.168.1.2")
    world.reachability = Reachability(udp_place=("11.0.0.9", 4001))
    where = world.whereabouts()
    mixed = theirs("192.168.1.7", "127.0.0.1", "11.0.0.5")
    assert where.dialable(mixed) == theirs("11.0.0.5")
    assert where.dialable(theirs("192.168.1.7")) == []


def test_private_addresses_behind_the_same_router_are_dialled() -> None:
    world = World("192.168.1.2")
    world.reachability = Reachability(udp_place=("11.0.0.9", 4001))
    same = theirs("192.168.1.7", "11.0.0.9")
    assert world.whereabouts().dialable(same) == same


def test_private_addresses_where_the_peer_answered_are_dialled() -> None:
    world = World("192.168.1.2")
    world.reachability = Reachability(udp_place=("11.0.0.9", 4001))
    found = world.whereabouts().dialable(theirs("192.168.1.7", "192.168.1.8"), ["192.168.1.7"])
    assert found == theirs("192.168.1.7")


def test_private_addresses_are_dialled_without_internet() -> None:
    near = theirs("192.168.1.7")
    assert World("192.168.1.2").whereabouts().dialable(near) == near
    loopback = World("11.0.0.1", listening=[("127.0.0.1", 4001)])
    assert loopback.whereabouts().dialable(theirs("127.0.0.1")) == theirs("127.0.0.1")
