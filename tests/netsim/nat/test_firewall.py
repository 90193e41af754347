"""Firewalls without translation: for IPv4, and for IPv6 by RFC 6092."""

from typing import Any

import pytest

from shoal.netsim.nat.firewall import OpenFlows
from shoal.netsim.nat.sessions import Timers
from shoal.netsim.network.packet import Icmp
from tests.netsim.nat.wire import A2, TCP, UDP, A, B, Wire, error, flag

HOST = ("198.51.100.7", 4001)
SIX = ("2600:0:1::2", 4001)
PEER6 = ("2600::a", 3478)
OTHER6 = ("2600::b", 3478)


def four(**knobs: Any) -> Wire:
    return Wire("public-firewall", (HOST[0],), **knobs)


def six(**knobs: Any) -> Wire:
    return Wire("linux-drop", ("192.168.1.2", SIX[0]), prefix="2600:0:1::/64", **knobs)


def test_nothing_is_translated_and_only_answers_come_in() -> None:
    wire = four()
    assert wire.back(A, HOST) is None
    assert wire.out(HOST, A) == HOST
    assert wire.back(A, HOST) == HOST
    assert wire.back(A2, HOST) is None
    assert wire.drops() == ["firewall", "firewall"]


@pytest.mark.parametrize(
    ("filtering", "same", "other"), [("apd", False, False), ("ad", True, False), ("ei", True, True)]
)
def test_filtering(filtering: str, same: bool, other: bool) -> None:
    wire = four(filtering=filtering)
    wire.out(HOST, A)
    assert (wire.back(A2, HOST) == HOST) is same
    assert (wire.back(B, HOST) == HOST) is other


def test_sessions_end_like_linux_ones() -> None:
    for when, reached in (29.9, HOST), (30.0, None):
        wire = four()
        wire.out(HOST, A)
        assert wire.at(when).back(A, HOST) == reached


def test_ipv6_udp_lives_two_minutes() -> None:
    """RFC 6092 3.2.3."""
    for when, reached in (119.9, SIX), (120.0, None):
        wire = six()
        assert wire.out(SIX, PEER6) == SIX
        assert wire.at(when).back(PEER6, SIX) == reached


def test_unsolicited_ipv6_is_prohibited() -> None:
    wire = six()
    assert wire.back(PEER6, SIX) is None
    told = wire.told()
    assert told is not None and isinstance(told.data, Icmp) and told.icmp.kind == "admin"
    wire.out(SIX, PEER6)
    assert wire.back(OTHER6, SIX) is None


def test_unsolicited_ipv6_can_be_silence() -> None:
    wire = six(unsolicited6="drop")
    assert wire.back(PEER6, SIX) is None
    assert wire.told() is None


def test_unsolicited_syn_waits_for_a_simultaneous_open() -> None:
    """RFC 6092 3.3.1."""
    wire = six()
    wire.back(PEER6, SIX, flag("syn"), TCP)
    assert wire.at(5.9).told() is None
    told = wire.at(6.0).told()
    assert told is not None and told.icmp.kind == "admin"
    wire = six()
    wire.back(PEER6, SIX, flag("syn"), TCP)
    wire.at(1.0).out(SIX, PEER6, flag("syn"), TCP)
    assert wire.back(PEER6, SIX, flag("syn"), TCP) == SIX
    assert wire.at(10.0).told() is None


def test_the_ipv4_of_a_dual_stack_home_is_translated() -> None:
    wire = six()
    seen = wire.out(("192.168.1.2", 4001), A)
    assert seen == (wire.gate.address, 4001)


def test_errors_about_outgoing_packets_come_in() -> None:
    wire = six()
    wire.out(SIX, PEER6)
    wire.put(error("port", PEER6, SIX, (UDP, SIX, PEER6)), wire.wan)
    assert len(wire.inner.got) == 1
    wire.put(error("port", OTHER6, SIX, (UDP, SIX, OTHER6)), wire.wan)
    assert len(wire.inner.got) == 1


def test_knobs_of_ipv6_need_ipv6() -> None:
    with pytest.raises(ValueError, match="unsolicited6"):
        Wire("linux-drop", unsolicited6="drop")


def test_sessions_are_bounded_and_recover() -> None:
    wire = Wire("public-firewall", (HOST[0],), max_sessions=5)
    seen = [wire.out((HOST[0], port), A) for port in range(1, 7)]
    assert seen[5] is None and None not in seen[:5]
    assert wire.at(31.0).out((HOST[0], 9), A) is not None


def test_memory_is_bounded_by_live_entries() -> None:
    wire = Wire("public-firewall", (HOST[0],), filtering="ad")
    for number in range(3000):
        wire.at(number * 1.0).out((HOST[0], 1024 + number), A)
    sessions: OpenFlows = wire.gate.four.sessions  # type: ignore[attr-defined]
    assert len(sessions) < 200


def test_timers_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="udp_new"):
        Timers(udp_new=-1.0)
