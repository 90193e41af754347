"""Limits on accepted connections."""

from contextlib import suppress

import pytest
import trio

from bench.worlds.transportnode import TransportNode
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.defaults import ACCEPT_PAUSE_S, REFUSALS_BURST, REFUSALS_PER_S
from shoal.transport.dial.accepting import Accepting
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.limits import (
    Arrivals,
    Crowd,
    CrowdEntry,
    HalfOpen,
    Limits,
    Sources,
)
from shoal.transport.rates import Rate, SourceRates
from tests.transport.swarmkey import SwarmKey


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve nothing for networks that were not seen lately."""
    monkeypatch.setattr("shoal.transport.defaults.KEPT_SHARE", 0)


def test_half_open_connections_are_counted_by_network() -> None:
    doors = HalfOpen(Limits(half_open=8, half_open_per_subnet=2, half_open_loopback=3))
    entry = doors.enter("192.0.2.1", 0.0)
    assert entry is not None and doors.enter("192.0.2.200", 0.0)
    assert doors.enter("192.0.2.3", 0.0) is None
    assert doors.enter("::ffff:192.0.2.3", 0.0) is None
    assert doors.enter("2001:db8::1", 0.0) and doors.enter("2001:db8::ffff:1", 0.0)
    assert doors.enter("2001:db8::2", 0.0) is None
    assert [bool(doors.enter("127.0.0.1", 0.0)) for _ in range(4)] == [True] * 3 + [False]
    doors.leave(entry)
    assert doors.enter("192.0.2.9", 0.0)


def test_arrivals_are_counted_by_network_and_in_all() -> None:
    limits = Limits(arrivals_burst=3, arrivals_per_s=1, all_arrivals_burst=8, all_arrivals_per_s=2)
    arrivals = Arrivals(limits)

    def allow(ip: str, now: float, *, new: bool = False) -> bool:
        return arrivals.allow(CrowdEntry(ip, new), now)

    one, two, three = "192.0.2.1", "198.51.100.1", "203.0.113.1"
    assert [allow(one, 0.0) for _ in range(4)] == [True, True, True, False]
    assert [allow(two, 0.0) for _ in range(4)] == [True, True, True, False]
    assert not allow(three, 0.0), "the rest is reserved for new networks"
    assert [allow(f"{n}.1.1.1", 0.0, new=True) for n in (60, 61, 62)] == [True, True, False]
    assert not allow(three, 1.0)
    assert allow(three, 1.5)


# A home has an IPv6 /56 or /48, which contains many /64.

HOME, SITE, PROVIDER = "2600:1:2:{:x}::1", "2600:1:2:{:x}00::1", "2600:1:{:x}::1"


def _taken(form: str) -> tuple[HalfOpen, int]:
    """Return the half-open connections that one owner gets, with eight from each network."""
    doors = HalfOpen(Limits())
    return doors, sum(doors.enter(form.format(n // 8), 0.0) is not None for n in range(8 * 256))


@pytest.mark.parametrize(("form", "most"), [(HOME, 16), (SITE, 32), (PROVIDER, 64)])
def test_one_owner_does_not_take_all_half_open_connections(form: str, most: int) -> None:
    doors, found = _taken(form)
    assert found == most
    for ip in ("192.0.2.1", "2600:7:8::1"):
        assert [bool(doors.enter(ip, 1.0)) for _ in range(9)] == [True] * 8 + [False]


@pytest.mark.usefixtures("by_64_bits_alone", "nothing_kept")
@pytest.mark.parametrize("form", [HOME, SITE, PROVIDER])
def test_where_64_bits_alone_are_counted_it_does(form: str) -> None:
    doors, found = _taken(form)
    assert found == 128
    assert not doors.enter("192.0.2.1", 1.0)


def _flooded(networks: int) -> HalfOpen:
    """Return the doors after a one-minute flood from some networks of different providers."""
    doors = HalfOpen(Limits())
    for second in range(60):
        for n in range(networks):
            for each in range(8):
                doors.enter(f"{60 + n}.1.{each}.1", float(second))
    return doors


def test_connections_are_reserved_for_networks_not_seen_lately() -> None:
    doors = _flooded(3)
    assert doors.count < 128
    assert doors.enter("192.0.2.1", 60.0)
    assert not doors.enter("192.0.2.1", 60.0), "its network was seen just now"
    assert doors.enter("2600:7:8::1", 60.0)


@pytest.mark.usefixtures("nothing_kept")
def test_without_reserved_connections_newcomers_are_shut_out() -> None:
    assert not _flooded(3).enter("192.0.2.1", 60.0)


def _newcomer_arrives() -> bool:
    """Return whether a newcomer gets in during a flood of handshakes from three providers."""
    doors, arrivals = HalfOpen(Limits()), Arrivals(Limits())
    for n in range(60 * 64 + 3):
        ip, now = f"{60 + n % 3}.1.{n // 3 % 200}.1", min(60.0, n / 64)
        entry = doors.enter(ip, now)
        if entry is not None:
            arrivals.allow(entry, now)
            doors.leave(entry)
    entry = doors.enter("192.0.2.1", 60.0)
    return entry is not None and arrivals.allow(entry, 60.0)


def test_arrivals_are_reserved_too() -> None:
    assert _newcomer_arrives()


@pytest.mark.usefixtures("nothing_kept")
def test_without_reserved_arrivals_no_newcomer_gets_in() -> None:
    assert not _newcomer_arrives()


def test_arrivals_from_this_machine_are_not_limited() -> None:
    arrivals = Arrivals(Limits(arrivals_burst=1))
    own = HalfOpen(Limits()).enter("127.0.0.1", 0.0)
    assert own is not None
    assert all(arrivals.allow(own, 0.0) for _ in range(1000))


def test_counted_connections_can_leave_again() -> None:
    sources = Sources(2, 8)
    for ip in ("2600:1:2:3::1", "2600:1:2:4::1", "192.0.2.1"):
        sources.add(ip)
    assert sources.fits("2600:1:2:3::1")
    for ip in ("2600:1:2:3::1", "2600:1:2:4::1", "192.0.2.1"):
        sources.remove(ip)
    assert len(sources) == 0


def test_invented_sources_use_no_memory_and_gain_nothing() -> None:
    rates = SourceRates(Rate(1, 0), Rate(50, 0), keys=10)
    assert sum(rates.take(f"60.{n % 200}.{n // 200}.1", 0.0) for n in range(1000)) == 50
    assert len(rates) == 10


async def _handshakes(world: World, limits: Limits) -> int:
    """Return how many of a hundred dials by a refused peer cost a handshake."""
    member = TransportNode(
        world.host("member"), b"m" * 32, admission=SwarmKey(b"k" * 16), limits=limits
    )
    foe = TransportNode(world.host("foe"), b"f" * 32, admission=OpenSwarm())
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


async def test_without_the_limiter_each_dial_costs_a_handshake(world: World) -> None:
    limits = Limits(arrivals_burst=1000, all_arrivals_burst=1000)
    assert await _handshakes(world, limits) == 100


def test_a_crowd_is_counted_in_all_and_by_network() -> None:
    crowd = Crowd(4, 2, 3)
    first = crowd.enter("192.0.2.1", 0.0)
    assert first is not None and crowd.enter("192.0.2.200", 0.0)
    assert crowd.enter("192.0.2.3", 0.0) is None
    assert crowd.enter("127.0.0.1", 0.0) and crowd.enter("::1", 0.0)
    assert crowd.count == 4
    assert crowd.enter("127.0.0.1", 0.0) is None  # four are in
    crowd.leave(first)
    assert crowd.enter("198.51.100.1", 0.0) is not None


def test_all_invalid_addresses_are_one_network() -> None:
    crowd = Crowd(9, 2, 3)
    assert crowd.enter("", 0.0) and crowd.enter("nonsense", 0.0)
    assert crowd.enter("more", 0.0) is None


def test_this_machine_may_be_counted_separately() -> None:
    crowd = Crowd(1, 1, 2, apart=True)
    assert crowd.enter("127.0.0.1", 0.0) and crowd.enter("127.0.0.1", 0.0)
    assert crowd.enter("192.0.2.1", 0.0) is not None
    assert crowd.enter("198.51.100.1", 0.0) is None


def _let_in(limits: Limits, per_s: int, seconds: int) -> int:
    """Return how many connections are accepted, each from a subnet of its own."""
    arrivals = Arrivals(limits)
    return sum(
        arrivals.allow(
            CrowdEntry(f"{11 + (n & 63)}.{n >> 12}.{n >> 6 & 63}.1", new=True), n / per_s
        )
        for n in range(per_s * seconds)
    )


def test_a_flood_from_everywhere_takes_a_twentieth_of_a_core() -> None:
    """At two milliseconds for each handshake, after the burst is used up."""
    assert _let_in(Limits(), 100, 60) <= 1024 + 60 * 0.05 / 0.002


def test_without_the_total_rate_a_flood_takes_all() -> None:
    assert _let_in(Limits(all_arrivals_per_s=1e9), 100, 60) == 6_000


def test_a_rush_of_honest_peers_gets_in() -> None:
    """All peers of a relay at once, some over two paths; 200 behind one router in a minute."""
    assert _let_in(Limits(), 1000, 1) == 1000
    arrivals = Arrivals(Limits())
    assert all(arrivals.allow(CrowdEntry("192.0.2.1", new=n == 0), n * 0.3) for n in range(200))


async def _held_open(world: World) -> list[str]:
    """Return the outcomes of two newcomers, over IPv4 and IPv6, at a node with 16 half-open places.

    Before them one home opens 32 connections and sends nothing, two from each /64.
    """
    limits = Limits(half_open=16, half_open_per_subnet=2)
    member = TransportNode(world.host("member", ipv6=True), b"m" * 32, limits=limits)
    await member.computer.start(member)
    four, six = member.computer.addresses()
    found: list[str] = []

    async def hold() -> None:
        with suppress(OSError):
            stream = await trio.open_tcp_stream(six, 4001)
            with suppress(trio.BrokenResourceError):
                await stream.receive_some()

    async def come(name: str, place: str) -> None:
        node = TransportNode(world.host(name, address=place), name.encode() * 8)
        await node.computer.start(node)
        try:
            await node.connect(member.peer, [member.address(four), member.address(six)], timeout=5)
        except DialFailed as error:
            found.append(error.code)
        else:
            found.append("in")

    async with trio.open_nursery() as nursery:
        for n in range(16):
            home = world.host(f"foe{n}", address=f"2600:99:1:1{n:02x}::1")
            for _ in range(2):
                nursery.start_soon(home.run, hold)
        await trio.sleep(2)
        await come("four", "198.51.100.7")
        await come("six!", "2600:77:1:2::1")
        nursery.cancel_scope.cancel()
    return found


async def test_half_open_connections_of_one_home_keep_no_peer_out(world: World) -> None:
    assert await _held_open(world) == ["in", "in"]


@pytest.mark.usefixtures("by_64_bits_alone", "nothing_kept")
async def test_without_the_bounds_they_do(world: World) -> None:
    found = await _held_open(world)
    assert "in" not in found


async def _accepted(world: World, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many connections a full node accepts in ten seconds, of eight hundred each
    second."""
    looks = 0
    let_in = Accepting.let_in

    def count(accepting: Accepting, address: str, now: float) -> CrowdEntry | None:
        nonlocal looks
        looks += 1
        return let_in(accepting, address, now)

    monkeypatch.setattr(Accepting, "let_in", count)
    member = TransportNode(world.host("member"), b"m" * 32, limits=Limits(half_open=0))
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


@pytest.mark.ci
async def test_without_the_pause_each_connection_is_accepted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.transport.defaults.REFUSALS_PER_S", 1e9)
    assert await _accepted(world, monkeypatch) > 4000
