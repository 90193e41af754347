"""Counting at the door."""

from contextlib import suppress

import pytest
import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.world import World
from shoal.transport.accepting import Accepting
from shoal.transport.address import Address
from shoal.transport.defaults import ACCEPT_PAUSE_S, REFUSALS_BURST, REFUSALS_PER_S
from shoal.transport.errors import DialFailed
from shoal.transport.hello import OpenSwarm, SwarmKey
from shoal.transport.limits import Arrivals, Crowd, HalfOpen, Limits


def test_half_open_connections_are_counted_by_subnet() -> None:
    doors = HalfOpen(Limits(half_open=5, half_open_per_subnet=2, half_open_loopback=3))
    assert doors.enter("192.0.2.1") == doors.enter("192.0.2.200") == "192.0.2.0/24"
    assert doors.enter("192.0.2.3") is None
    assert doors.enter("::ffff:192.0.2.3") is None
    assert doors.enter("2001:db8::1") == doors.enter("2001:db8::ffff:1") == "2001:db8::/64"
    assert doors.enter("2001:db8::2") is None
    assert doors.enter("198.51.100.1") == "198.51.100.0/24"
    assert doors.enter("203.0.113.1") is None  # five in all
    assert [doors.enter("127.0.0.1") for _ in range(4)] == ["loopback"] * 3 + [None]
    doors.leave("192.0.2.0/24")
    assert doors.enter("192.0.2.9") == "192.0.2.0/24"


def test_arrivals_are_counted_by_subnet_and_in_all() -> None:
    limits = Limits(arrivals_burst=3, arrivals_per_s=1, all_arrivals_burst=5, all_arrivals_per_s=2)
    arrivals = Arrivals(limits)
    assert [arrivals.allow("one", 0.0) for _ in range(4)] == [True, True, True, False]
    assert [arrivals.allow("two", 0.0) for _ in range(3)] == [True, True, False]
    assert arrivals.allow("one", 1.0)
    assert not arrivals.allow("one", 1.0)
    assert arrivals.allow("two", 1.0)
    assert not arrivals.allow("three", 1.0)


def test_the_own_machine_s_are_not() -> None:
    arrivals = Arrivals(Limits(arrivals_burst=1))
    own = HalfOpen(Limits()).enter("127.0.0.1")
    assert own is not None
    assert all(arrivals.allow(own, 0.0) for _ in range(1000))


async def _handshakes(world: World, limits: Limits) -> int:
    """Of a hundred dials by somebody who is not let in, those that cost a handshake."""
    member = Climber(world.host("member"), b"m" * 32, admission=SwarmKey(b"k" * 16), limits=limits)
    foe = Climber(world.host("foe"), b"f" * 32, admission=OpenSwarm())
    done = 0
    for node in (member, foe):
        await node.computer.start(node)

    async def dial() -> str:
        try:
            await foe.endpoint.dial(Address(member.computer.addresses()[0], 4001), timeout=5)
        except DialFailed as error:
            return error.code
        return "in"

    for _ in range(100):
        done += await foe.within(dial) == "wrong-swarm"
    return done


async def test_a_flood_of_handshakes_is_turned_away(world: World) -> None:
    limits = Limits(arrivals_burst=10, arrivals_per_s=0.1)
    assert 10 <= await _handshakes(world, limits) <= 13


async def test_without_that_each_costs_one(world: World) -> None:
    limits = Limits(arrivals_burst=1000, all_arrivals_burst=1000)
    assert await _handshakes(world, limits) == 100


def test_a_crowd_is_counted_in_all_and_by_subnet() -> None:
    crowd = Crowd(4, 2, 3)
    first = crowd.enter("192.0.2.1")
    assert first is not None and crowd.enter("192.0.2.200") == first
    assert crowd.enter("192.0.2.3") is None
    assert crowd.enter("127.0.0.1") == crowd.enter("::1") == "loopback"
    assert crowd.enter("127.0.0.1") is None  # four are in
    crowd.leave(first)
    assert crowd.enter("198.51.100.1") is not None


def test_all_nonsense_is_one_subnet() -> None:
    crowd = Crowd(9, 2, 3)
    assert crowd.enter("") == crowd.enter("nonsense") == "unknown"
    assert crowd.enter("more") is None


def test_this_machine_may_be_counted_apart() -> None:
    crowd = Crowd(1, 1, 2, apart=True)
    assert crowd.enter("127.0.0.1") == crowd.enter("127.0.0.1") == "loopback"
    assert crowd.enter("192.0.2.1") is not None
    assert crowd.enter("198.51.100.1") is None


def _let_in(limits: Limits, per_s: int, seconds: int) -> int:
    """Connections accepted of so many, each from a subnet of its own."""
    arrivals = Arrivals(limits)
    return sum(
        arrivals.allow(f"10.{n >> 8 & 255}.{n & 255}.0/24", n / per_s)
        for n in range(per_s * seconds)
    )


def test_a_flood_from_everywhere_takes_a_twentieth_of_a_core() -> None:
    """At two milliseconds a handshake, once what may come at once has come."""
    assert _let_in(Limits(), 1000, 60) <= 1024 + 60 * 0.05 / 0.002


def test_without_that_it_takes_what_it_likes() -> None:
    assert _let_in(Limits(all_arrivals_per_s=1e9), 1000, 60) == 60_000


def test_a_rush_of_honest_ones_gets_in() -> None:
    """All peers of a relay at once, some by two ways; two hundred behind one router in a minute."""
    assert _let_in(Limits(), 1000, 1) == 1000
    arrivals = Arrivals(Limits())
    assert all(arrivals.allow("192.0.2.0/24", n * 0.3) for n in range(200))


async def _accepted(world: World, monkeypatch: pytest.MonkeyPatch) -> int:
    """Connections that a node looks at in ten seconds, of eight hundred a second for which it has
    no room."""
    looks = 0
    let_in = Accepting._let_in

    def count(accepting: Accepting, address: str, now: float) -> str | None:
        nonlocal looks
        looks += 1
        return let_in(accepting, address, now)

    monkeypatch.setattr(Accepting, "_let_in", count)
    member = Climber(world.host("member"), b"m" * 32, limits=Limits(half_open=0))
    foe = world.host("foe")
    await member.computer.start(member)

    async def knock() -> None:
        while True:
            with trio.move_on_after(0.5), suppress(OSError):
                stream = await trio.open_tcp_stream(member.computer.addresses()[0], 4001)
                await trio.sleep(0.01)
                await stream.aclose()

    async def flood() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(knock)

    with trio.move_on_after(10):
        await foe.run(flood)
    return looks


async def test_a_flood_that_is_turned_away_waits_in_the_kernel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_most = REFUSALS_BURST + 10 * (REFUSALS_PER_S + 1 / ACCEPT_PAUSE_S)
    assert await _accepted(world, monkeypatch) <= at_most * 1.01


async def test_without_that_each_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.transport.defaults.REFUSALS_PER_S", 1e9)
    assert await _accepted(world, monkeypatch) > 4000
