"""Dials at addresses that others have named."""

from contextlib import suppress

import pytest
import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.aim import Aim
from shoal.transport.errors import DialFailed
from shoal.transport.identity import Identity, PeerId

RELAYS = [Identity.from_seed(bytes([200 + n]) * 32).peer for n in range(8)]
VICTIM = Address("203.0.112.7", 4001)


class Clock:
    at = 1000.0

    def now(self) -> float:
        return self.at


def miss(aim: Aim, address: Address) -> bool:
    """A dial in vain; whether it was made."""
    made = False
    with suppress(DialFailed), aim.at(address):
        made = True
        raise DialFailed("timeout", "nobody answers")
    return made


def test_so_many_may_fail_in_ten_minutes() -> None:
    clock = Clock()
    aim = Aim(clock.now, misses=5)
    assert [miss(aim, VICTIM) for _ in range(7)] == [True] * 5 + [False] * 2
    clock.at += 500
    assert not miss(aim, VICTIM)
    clock.at += 120
    assert miss(aim, VICTIM)


def test_all_ports_and_a_whole_64_are_one_target() -> None:
    aim = Aim(Clock().now, misses=2)
    assert miss(aim, Address("203.0.112.7", 1)) and miss(aim, Address("203.0.112.7", 2))
    assert not miss(aim, Address("203.0.112.7", 3))
    assert not miss(aim, Address("::ffff:203.0.112.7", 3))
    assert miss(aim, Address("2600::1", 1)) and miss(aim, Address("2600::2", 1))
    assert not miss(aim, Address("2600::3", 1))
    assert miss(aim, Address("203.0.112.8", 1))


def test_those_under_way_count() -> None:
    aim = Aim(Clock().now, misses=2)
    with aim.at(VICTIM), aim.at(VICTIM), pytest.raises(DialFailed), aim.at(VICTIM):
        pass


def test_who_answers_costs_nothing() -> None:
    aim = Aim(Clock().now, misses=2)
    for _ in range(10):
        with aim.at(VICTIM):
            pass
    assert miss(aim, VICTIM)


def test_quic_counts_for_more() -> None:
    aim = Aim(Clock().now, misses=9)
    udp = Address("203.0.112.7", 4001, transport="udp")
    assert [miss(aim, udp) for _ in range(3)] == [True, True, False]
    assert miss(aim, VICTIM) and not miss(aim, VICTIM)


@pytest.mark.parametrize("host", ["127.0.0.1", "192.168.1.1", "fd00::1", "seed.example"])
def test_the_own_network_and_names_are_not_counted(host: str) -> None:
    aim = Aim(Clock().now, misses=1)
    assert all(miss(aim, Address(host, 4001)) for _ in range(5))


async def storm(world: World, misses: int, *, circuits: bool = False) -> int:
    """Ten peers that all say to be at a victim's address, or that their relays are there, vanish:
    the packets that it gets."""
    victim, hits = world.host("victim"), 0
    ip, take = victim.addresses()[0], victim.take

    def count(packet: object) -> None:
        nonlocal hits
        hits += 1
        take(packet)  # type: ignore[arg-type]

    def book(peer: PeerId) -> list[Address]:
        if not circuits:
            return [Address(ip, 2000 + n, peer) for n in range(8)]
        relays = [Address(ip, 2000 + n, each) for n, each in enumerate(RELAYS)]
        return [relay.through(peer) for relay in relays if peer not in RELAYS]

    victim.take = count  # type: ignore[method-assign]
    member = Climber(world.host("member"), b"m" * 32, book=book)
    await member.computer.start(member)
    member.ladder.direct.aim = Aim(trio.current_time, misses=misses)
    foes = [Climber(world.host(f"foe{n}"), bytes([n + 10]) * 32) for n in range(10)]
    for foe in foes:
        await foe.computer.start(foe)
        await foe.connect(member.peer, [member.address()])
    for foe in foes:
        await foe.computer.crash()
    await trio.sleep(30)
    return hits


@pytest.mark.parametrize("circuits", [False, True])
async def test_a_swarm_is_not_aimed_at_a_victim(world: World, circuits: bool) -> None:
    assert 0 < await storm(world, 60, circuits=circuits) <= 60


@pytest.mark.parametrize("circuits", [False, True])
async def test_without_the_bound_it_is(world: World, circuits: bool) -> None:
    assert await storm(world, 1 << 30, circuits=circuits) > 120
