"""Limits on dials to addresses that peers have named."""

from collections import Counter
from contextlib import ExitStack, nullcontext, suppress

import msgpack
import pytest
import trio

from bench.worlds.transportnode import TransportNode
from shoal.netsim.host import Host
from shoal.netsim.network.packet import UDP as UDP_NUMBER
from shoal.netsim.network.packet import Packet
from shoal.netsim.world import World
from shoal.state import defaults
from shoal.state.membership.record import MemberRecord, seal_record
from shoal.transport.address import Address
from shoal.transport.dial.aim import FailedDialLimiter
from shoal.transport.errors import DialFailed
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Reply
from shoal.transport.nat.vouching import AddressVouching
from shoal.transport.networks import Nearness
from shoal.transport.strategies.dialer import Strategies

RELAYS = [Identity.from_seed(bytes([200 + n]) * 32).peer for n in range(8)]
VICTIM, UDP = (
    Address("203.0.112.7", 4001),
    Address("203.0.112.7", 4001, transport="udp"),
)


class Clock:
    at = 1000.0

    def now(self) -> float:
        return self.at


def miss(aim: FailedDialLimiter, address: Address) -> bool:
    """Make a dial that fails. Return whether it was allowed."""
    made = False
    with suppress(DialFailed), aim.at(address):
        made = True
        raise DialFailed("timeout", "nobody answers")
    return made


def test_failures_in_ten_minutes_are_bounded() -> None:
    clock = Clock()
    aim = FailedDialLimiter(clock.now, strange=5)
    assert [miss(aim, VICTIM) for _ in range(7)] == [True] * 5 + [False] * 2
    clock.at += 500
    assert not miss(aim, VICTIM)
    clock.at += 120
    assert miss(aim, VICTIM)


def test_all_ports_and_a_whole_64_are_one_target() -> None:
    aim = FailedDialLimiter(Clock().now, strange=2)
    assert miss(aim, Address("203.0.112.7", 4001)) and miss(aim, Address("203.0.112.7", 4002))
    assert not miss(aim, Address("203.0.112.7", 4003))
    assert not miss(aim, Address("::ffff:203.0.112.7", 4003))
    assert miss(aim, Address("2600::1", 4001)) and miss(aim, Address("2600::2", 4001))
    assert not miss(aim, Address("2600::3", 4001))
    assert miss(aim, Address("203.0.112.8", 4001))


def test_dials_under_way_count() -> None:
    aim = FailedDialLimiter(Clock().now, strange=2)
    with aim.at(VICTIM), aim.at(VICTIM), pytest.raises(DialFailed), aim.at(VICTIM):
        pass


@pytest.mark.parametrize("start", ["203.0.112.", "2600:0:0:"])
def test_dials_under_way_count_in_larger_networks_too(start: str) -> None:
    """A liar's records name many addresses in the network of one victim."""
    end = "::1" if ":" in start else ""
    addresses = [Address(f"{start}{number}{end}", 4001) for number in range(1, 40)]
    addresses = [each for each in addresses for _ in range(8)]
    aim, one_by_one = FailedDialLimiter(Clock().now), FailedDialLimiter(Clock().now)
    at_once = 0
    with ExitStack() as stack:
        for each in addresses:
            with suppress(DialFailed):
                stack.enter_context(aim.at(each))
                at_once += 1
    assert at_once == sum(miss(one_by_one, each) for each in addresses) <= 96


def test_no_new_target_is_dialled_if_no_more_can_be_remembered() -> None:
    aim = FailedDialLimiter(Clock().now, memory=4)
    assert miss(aim, VICTIM) and miss(aim, Address("198.51.100.7", 4001))
    assert not miss(aim, Address("192.0.2.7", 4001))
    assert not miss(aim, Address("198.51.100.8", 4001))
    assert miss(aim, VICTIM), "one that is remembered"


def test_a_peer_that_answers_costs_nothing() -> None:
    aim = FailedDialLimiter(Clock().now, misses=2)
    for _ in range(10):
        with aim.at(VICTIM):
            pass
    assert miss(aim, VICTIM)


def test_more_dials_may_fail_where_a_peer_has_answered() -> None:
    aim = FailedDialLimiter(Clock().now, misses=9, strange=2)
    aim.answered(VICTIM.host)
    assert [miss(aim, UDP) for _ in range(3)] == [True, True, False], "one by QUIC counts as four"
    assert miss(aim, VICTIM) and not miss(aim, VICTIM)


def test_quic_may_fail_once_in_two_minutes_where_no_peer_has_answered() -> None:
    clock = Clock()
    aim = FailedDialLimiter(clock.now)
    assert miss(aim, UDP) and not miss(aim, UDP)
    clock.at += 119
    assert not miss(aim, UDP)
    clock.at += 4
    assert miss(aim, UDP)


def test_peers_cannot_name_ports_of_system_services() -> None:
    aim = FailedDialLimiter(Clock().now)
    for host in ("203.0.112.7", "192.168.1.1", "127.0.0.1", "seed.example"):
        assert not any(miss(aim, Address(host, port)) for port in (1, 22, 80, 999, 1023))
        assert miss(aim, Address(host, 443)) and miss(aim, Address(host, 1024))


def test_the_owner_may_name_any_port() -> None:
    aim = FailedDialLimiter(Clock().now, misses=9, strange=2)
    bootstrap = Address("203.0.112.7", 80)
    aim.give(bootstrap)
    assert sum(miss(aim, bootstrap) for _ in range(20)) == 9
    assert not miss(aim, Address("203.0.112.7", 81))


@pytest.mark.parametrize("host", ["127.0.0.1", "seed.example"])
def test_loopback_and_names_are_not_counted(host: str) -> None:
    aim = FailedDialLimiter(Clock().now, strange=1)
    assert all(miss(aim, Address(host, 4001)) for _ in range(50))


def test_a_home_network_is_not_scanned() -> None:
    clock = Clock()
    aim = FailedDialLimiter(clock.now, strange=2)
    homes = [Address(f"192.168.1.{n}", 4001) for n in range(1, 255)]
    assert sum(miss(aim, each) for each in homes) == 16
    assert miss(aim, homes[0]) and not miss(aim, homes[0])
    aim.answered("192.168.1.200")
    assert all(miss(aim, homes[199]) for _ in range(9)), "a peer may come back to its old address"
    clock.at += 601
    assert miss(aim, homes[100])


def test_memory_is_bounded() -> None:
    aim = FailedDialLimiter(Clock().now)
    for n in range(5000):
        aim.answered(f"11.{n >> 8}.{n & 255}.1")
    assert len(aim._answered) == 4096 and aim.is_known(Address("11.19.100.1", 4001))


async def storm(world: World, misses: int, *, circuits: bool = False) -> int:
    """Return the packets that a victim gets after ten peers vanish, which all claim to be at its
    address, or that their relays are."""
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
    member = TransportNode(world.host("member"), b"m" * 32, book=book)
    await member.computer.start(member)
    member.endpoint.aim = FailedDialLimiter(trio.current_time, misses=misses, strange=misses)
    foes = [TransportNode(world.host(f"foe{n}"), bytes([n + 10]) * 32) for n in range(10)]
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
async def test_without_the_bound_a_swarm_is_aimed_at_a_victim(world: World, circuits: bool) -> None:
    assert await storm(world, 1 << 30, circuits=circuits) > 60


# Records of members that do not exist.


class _Victim:
    """A machine without a server, which counts packets by sender."""

    def __init__(self, computer: Host) -> None:
        self.ip = computer.addresses()[0]
        self.connections: Counter[str] = Counter()
        self.datagram_bytes: Counter[str] = Counter()
        self._take = computer.take
        computer.take = self._count  # type: ignore[method-assign]

    def _count(self, packet: Packet) -> None:
        if packet.proto == UDP_NUMBER:
            self.datagram_bytes[packet.origin] += packet.size
        else:
            self.connections[packet.origin] += 1  # it refuses all of them: each packet is one
        self._take(packet)


def _ghosts(ip: str, tcp: int, udp: int, count: int) -> bytes:
    """Return records of members that claim an address, as peers hand them on."""
    told = []
    for n in range(count):
        ghost = Identity.from_seed(bytes([50 + n]) * 32)
        places = [f"/ip4/{ip}/tcp/{tcp + each}" for each in range(4)]
        places += [f"/ip4/{ip}/udp/{udp - each}/quic-v1" for each in range(4)]
        record = MemberRecord(ghost.peer, seq=1, addresses=tuple(places))
        told.append((Nearness.PUBLIC, 0, seal_record(ghost, record)))
    return bytes(msgpack.packb(told))


async def haunted(world: World, tcp: int, udp: int, seconds: float = 20) -> _Victim:
    """Return what a victim receives in some seconds from two daemons with default options.

    A liar hands the ghosts' records to one of them and vouches for each ghost.
    """
    victim = _Victim(world.host("victim"))
    first = await world.host("first").start(engine=False)
    second = await world.host("second").start(bootstrap=[first], engine=False)
    await second.until(lambda status: status["peers"] == 1)
    liar = TransportNode(world.host("liar"), b"l" * 32, strategies=Strategies(relay=False))
    await liar.computer.start(liar)
    liar.endpoint.handle("reach.where", lambda call: Reply({"seen": [victim.ip, 0, 0, ""]}))
    link = await liar.connect(first.peer, [first.address], timeout=5)
    link.post("member.push", payload=_ghosts(victim.ip, tcp, udp, 10), priority=Priority.CONTROL)
    await trio.sleep(seconds)
    return victim


HIGH, LOW = (9000, 9999), (990, 998)


async def test_records_of_ghosts_do_not_aim_a_swarm_at_a_victim(world: World) -> None:
    """Both nodes dial it a few times, but only the one that knows the liar uses QUIC."""
    victim = await haunted(world, *HIGH)
    assert victim.connections == {"first": 6, "second": 6}
    assert victim.datagram_bytes.keys() == {"first"}
    assert victim.datagram_bytes["first"] <= 9_000


async def test_without_a_bound_it_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailedDialLimiter, "at", lambda *_: nullcontext())
    monkeypatch.setattr(defaults, "FIRST_LINKS", 5)  # to dial more ghosts in the time
    victim = await haunted(world, *HIGH, seconds=30)
    assert victim.connections["first"] >= 30
    assert victim.datagram_bytes["first"] > 3 * 9_000
    assert "second" not in victim.datagram_bytes


async def test_without_asking_others_both_send_datagrams(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def seen(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    monkeypatch.setattr(AddressVouching, "is_seen", seen)
    victim = await haunted(world, *HIGH, seconds=10)
    assert victim.datagram_bytes.keys() == {"first", "second"}


async def test_ghosts_at_ports_of_services_are_not_dialled(world: World) -> None:
    victim = await haunted(world, *LOW)
    assert not victim.connections and not victim.datagram_bytes


async def test_without_that_rule_they_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ("shoal.transport.dial.aim", "shoal.state.membership.reach"):
        monkeypatch.setattr(f"{where}.may_dial_port", lambda port: True)
    victim = await haunted(world, *LOW, seconds=4)
    assert victim.connections
