"""Tests of the gate: which sources may begin a connection."""

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.packet import QuicPacketType, pull_quic_header

from shoal.transport.host.real import RealHost
from shoal.transport.limits import CrowdEntry, HalfOpen, Limits
from shoal.transport.rates import ByteBudget
from shoal.transport.udp.connection import UdpConnection, configuration
from shoal.transport.udp.defaults import UdpLimits
from shoal.transport.udp.gate import (
    FirstPacketGate,
    Welcome,
    destination,
    has_token,
    initial_header,
)
from tests.transport.udp.test_connection import SOCKET, B

PLACE = ("203.0.113.7", 4001)


def make_gate(limits: UdpLimits | None = None, **half_open: int) -> FirstPacketGate:
    return FirstPacketGate(RealHost(), HalfOpen(Limits(**half_open)), limits or UdpLimits())


def client() -> UdpConnection:
    limits = UdpLimits()
    made = UdpConnection(configuration(None, limits), limits, ByteBudget(limits.extra_bytes))
    made.begin(B, SOCKET, 1.0)
    return made


def first_packet() -> bytes:
    return client().transmit(1.0)[0][0]


def test_a_first_packet_is_welcome() -> None:
    data = first_packet()
    gate = make_gate()
    found = gate.admit(data, PLACE, 1.0)
    assert found == Welcome(destination(data), None, CrowdEntry("203.0.113.7", new=True))
    assert gate.half_open.count == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:1199],  # too short to be answered
        lambda data: b"\x40" + data[1:],  # a short header
        lambda data: data[:1] + b"\x6b\x33\x43\xcf" + data[5:],  # version 2
        lambda data: data[:1] + bytes(4) + data[5:],  # a list of versions
        lambda data: data[:5] + b"\x07" + data[6:],  # too short an id
        lambda data: data[:5] + b"\xff" + data[6:],  # too long an id
        lambda data: bytes([data[0] | 0x30]) + data[1:],  # a Retry
        lambda data: bytes([data[0] | 0x20]) + data[1:],  # a Handshake packet
        lambda data: b"\xc0" * 1200,
        lambda data: bytes(1200),
    ],
)
def test_anything_else_is_dropped(change: object) -> None:
    gate = make_gate()
    assert gate.admit(change(first_packet()), PLACE, 1.0) is None  # type: ignore[operator]
    assert gate.half_open.count == 0


def busy(limits: UdpLimits) -> FirstPacketGate:
    gate = make_gate(limits)
    for n in range(3):
        assert isinstance(gate.admit(first_packet(), (f"198.51.{n}.1", 1), 1.0), Welcome)
    return gate


def test_a_busy_gate_asks_for_proof() -> None:
    """The answer is small, costs no memory, and its token opens the gate for that address."""
    gate = busy(UdpLimits(retry_above=3))
    peer = client()
    data = peer.transmit(1.0)[0][0]
    answer = gate.admit(data, PLACE, 1.0)
    assert isinstance(answer, bytes) and len(answer) < 200 < len(data)
    assert gate.half_open.count == 3
    header = pull_quic_header(Buffer(data=answer), host_cid_length=8)
    assert header.packet_type == QuicPacketType.RETRY
    peer.receive(answer, B, SOCKET, 1.1)
    again = peer.transmit(1.1)[0][0]
    found = gate.admit(again, PLACE, 1.2)
    assert isinstance(found, Welcome)
    assert (found.original, found.retried) == (destination(data), destination(again))
    for place, now in ((("203.0.113.8", 4001), 1.2), (("203.0.113.7", 4002), 1.2), (PLACE, 99.0)):
        assert gate.admit(again, place, now) is None
    assert make_gate().admit(again, PLACE, 1.2) is None  # another gate's token


def test_an_idle_gate_does_not() -> None:
    assert isinstance(busy(UdpLimits(retry_above=9)).admit(first_packet(), PLACE, 1.0), Welcome)


def test_one_subnet_cannot_fill_it() -> None:
    gate = make_gate(half_open_per_subnet=2)
    found = [gate.admit(first_packet(), (f"203.0.113.{n}", 4001), 1.0) for n in range(4)]
    assert [isinstance(each, Welcome) for each in found] == [True, True, False, False]
    assert isinstance(gate.admit(first_packet(), ("198.51.100.1", 1), 1.0), Welcome)


def test_ids_of_packets() -> None:
    assert destination(b"\x40" + bytes(range(8)) + b"rest") == bytes(range(8))
    assert destination(b"\xc0" + bytes(4) + b"\x03abcdef") == b"abc"
    for short in (b"\xc0", b"\x40", b"\xc0\0\0\0\1\xff"):
        assert destination(short) in {b""}


def let_in(limits: UdpLimits, seconds: float, count: int) -> int:
    """First packets that were let in, as each turns out to be none and leaves again."""
    gate = make_gate(limits)
    data, found = first_packet(), 0
    for n in range(count):
        answer = gate.admit(data, (f"203.{n % 200}.113.7", 4001), 10 + seconds * n / count)
        if isinstance(answer, Welcome):
            gate.half_open.leave(answer.entry)
            found += 1
    return found


def test_false_first_packets_soon_need_proof() -> None:
    """They leave nothing half open, but each costs the cryptography of a beginning."""
    assert let_in(UdpLimits(), 2, 1000) <= 32 + 2 * 20
    assert let_in(UdpLimits(unproven_per_s=1e9, beginnings_per_s=1e9), 2, 1000) == 1000


def test_there_are_only_so_many_beginnings() -> None:
    limits = UdpLimits(unproven_per_s=1e9, beginnings_per_s=50, beginnings_burst=50)
    assert let_in(limits, 2, 1000) <= 50 + 2 * 50


def test_all_peers_of_a_relay_come_back_at_once() -> None:
    assert let_in(UdpLimits(unproven_per_s=1e9, looks_per_s=1e9), 1, 500) == 500


def looked_at(monkeypatch: pytest.MonkeyPatch, limits: UdpLimits) -> tuple[int, bool]:
    """First packets of five thousand in a second that are read, and whether then one is let in
    that repeats a token."""
    looks, gate, peer = 0, make_gate(limits), client()

    def count(data: bytes) -> object:
        nonlocal looks
        looks += 1
        return initial_header(data)

    monkeypatch.setattr("shoal.transport.udp.gate.initial_header", count)
    data, answer = peer.transmit(1.0)[0][0], b""
    for n in range(5000):
        found = gate.admit(data, PLACE if n < 200 else (f"198.51.{n % 200}.7", 1), 10 + n / 5000)
        if isinstance(found, Welcome):
            gate.half_open.leave(found.entry)
        elif found is not None and n < 200:
            answer = found
    peer.receive(answer, B, SOCKET, 1.1)
    again = gate.admit(peer.transmit(1.1)[0][0], PLACE, 11.0)
    return looks, isinstance(again, Welcome)


def test_a_flood_is_hardly_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood is dropped cheaply, and sources with a proven address still get in."""
    looks, let_in = looked_at(monkeypatch, UdpLimits())
    assert looks <= 256 + 500 + 1
    assert let_in


def test_without_that_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked_at(monkeypatch, UdpLimits(looks_per_s=1e9))[0] == 5001


def test_what_has_a_token_says_so() -> None:
    head = b"\xc0" + bytes(4)
    assert has_token(head + b"\x02ab\x01c\x40\x50")
    assert not has_token(head + b"\x02ab\x01c\x00")
    for size in range(len(head) + 5):
        assert not has_token((head + b"\x02ab\x01c\x40")[:size])


def greedy(sources: int) -> tuple[int, bool]:
    """Send a thousand first packets from `sources` subnets in two seconds; return how many got in,
    and whether one of another subnet then gets in."""
    gate = make_gate(UdpLimits(unproven_per_s=1e9))
    data, found = first_packet(), 0
    for n in range(1000):
        answer = gate.admit(data, (f"203.{n % sources}.113.7", 4001), 10 + n / 500)
        if isinstance(answer, Welcome):
            gate.half_open.leave(answer.entry)
            found += 1
    return found, isinstance(gate.admit(data, ("198.51.100.1", 1), 11.999), Welcome)


def test_one_subnet_does_not_use_up_all_new_connections() -> None:
    found, others = greedy(1)
    assert found <= 64 + 2 * 16
    assert others


def test_a_hundred_leave_some_to_newcomers() -> None:
    found, others = greedy(100)
    assert found > 400
    assert others


def test_without_a_share_for_newcomers_a_hundred_use_them_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.transport.defaults.KEPT_S", 0)
    found, others = greedy(100)
    assert found > 500
    assert not others


def test_one_home_s_ipv6_does_not_use_up_all_new_connections() -> None:
    """Each one has its own /64."""
    gate = make_gate(UdpLimits(unproven_per_s=1e9))
    data = first_packet()
    found = 0
    for n in range(1000):
        answer = gate.admit(data, (f"2600:1:2:{n % 256:x}::7", 4001), 10 + n / 500)
        if isinstance(answer, Welcome):
            gate.half_open.leave(answer.entry)
            found += 1
    assert found <= 128 + 2 * 16
    assert isinstance(gate.admit(data, ("2600:7::1", 1), 11.999), Welcome)
