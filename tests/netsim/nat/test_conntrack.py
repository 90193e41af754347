"""Linux's connection tracking, packet by packet. (`test_golden.py` compares it with a kernel.)"""

import pytest

from shoal.netsim.nat.conntrack import LinuxNat
from shoal.netsim.network.packet import Icmp
from tests.netsim.nat.wire import A2, GATE, INSIDE, OTHER, TCP, UDP, A, B, Wire, error, flag

OUTER = (GATE, INSIDE[1])


def size(wire: Wire) -> int:
    gate = wire.gate
    assert isinstance(gate, LinuxNat)
    return len(gate.tracker)


def test_flow_keeps_its_port_and_answers_come_back() -> None:
    wire = Wire("linux-drop")
    assert wire.out(INSIDE, A) == OUTER
    assert wire.back(A, OUTER) == INSIDE
    assert wire.back(A2, OUTER) is None
    assert wire.drops() == ["nat"]


def test_second_host_shares_the_port_until_it_clashes() -> None:
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    assert wire.out(OTHER, B) == OUTER
    remapped = wire.out(OTHER, A)
    assert remapped is not None and remapped != OUTER
    assert wire.back(A, remapped) == OTHER
    assert wire.back(A, OUTER) == INSIDE


def test_next_flow_takes_the_latest_port() -> None:
    """find_appropriate_src: Linux first tries the last port of the source."""
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    remapped = wire.out(OTHER, A)
    assert wire.out(OTHER, B) == remapped


@pytest.mark.parametrize(("kind", "kept"), [("linux-drop", True), ("linux-accept", False)])
def test_early_packet_costs_the_port_where_input_accepts(kind: str, kept: bool) -> None:
    wire = Wire(kind)
    wire.back(B, OUTER)
    wire.told()
    assert (wire.out(INSIDE, B) == OUTER) is kept


def test_input_reject_answers_and_remembers_nothing() -> None:
    wire = Wire("linux-reject")
    wire.back(B, OUTER)
    told = wire.told()
    assert told is not None and isinstance(told.data, Icmp) and told.icmp.kind == "port"
    wire.back(B, OUTER, flag("syn"), TCP)
    told = wire.told()
    assert told is not None and told.proto == TCP and told.segment.rst
    assert wire.out(INSIDE, B) == OUTER


def test_accepted_syn_is_refused_and_forgotten() -> None:
    wire = Wire("linux-accept")
    wire.back(B, OUTER, flag("syn"), TCP)
    told = wire.told()
    assert told is not None and told.segment.rst
    assert size(wire) == 0
    assert wire.out(INSIDE, B, flag("syn"), TCP) == OUTER


@pytest.mark.parametrize("kind", ["linux-random", "linux-fully-random"])
def test_random_ports_differ_by_destination(kind: str) -> None:
    wire = Wire(kind)
    seen = {wire.out(INSIDE, to) for to in (A, A2, B)}
    assert len(seen) == 3 and OUTER not in seen


@pytest.mark.parametrize(("low", "high", "port"), [(1, 511, 500), (600, 1023, 1000)])
def test_remapped_port_stays_in_its_class(low: int, high: int, port: int) -> None:
    wire = Wire("linux-drop")
    wire.out((INSIDE[0], port), A)
    remapped = wire.out((OTHER[0], port), A)
    assert remapped is not None and low <= remapped[1] <= high


# Timers: 30 s, and 120 s for a flow that has been answered and is older than 2 s.


def test_unanswered_flow_ends_after_30_s() -> None:
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    assert wire.at(29.9).back(A, OUTER) == INSIDE
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    assert wire.at(30.0).back(A, OUTER) is None


def test_burst_is_no_stream() -> None:
    wire = Wire("linux-drop")
    for when in (0.0, 1.0, 2.0):
        wire.at(when).out(INSIDE, A)
        wire.back(A, OUTER)
    assert wire.at(32.0).back(A, OUTER) is None


def test_stream_lives_120_s_and_any_side_keeps_it() -> None:
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    wire.back(A, OUTER)
    wire.at(2.1).out(INSIDE, A)
    assert wire.at(122.0).back(A, OUTER) == INSIDE
    assert wire.at(241.9).back(A, OUTER) == INSIDE
    assert wire.at(361.9).back(A, OUTER) is None


def test_timers_are_knobs() -> None:
    wire = Wire("linux-drop", udp_new=2.0, tcp_established=7440.0)
    wire.out(INSIDE, A)
    assert wire.at(2.0).back(A, OUTER) is None
    tcp(wire, ">syn", "<synack", ">ack")
    assert not alive(wire.at(2.0 + 7440.0))


# TCP.


def tcp(wire: Wire, *steps: str) -> None:
    """`>syn` goes out, `<synack` comes in."""
    for step in steps:
        if step[0] == ">":
            assert wire.out(INSIDE, A, flag(step[1:]), TCP) == OUTER, step
        else:
            assert wire.back(A, OUTER, flag(step[1:]), TCP) == INSIDE, step


def alive(wire: Wire) -> bool:
    return wire.back(A, OUTER, flag("ack"), TCP) == INSIDE


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ((">syn", "<synack"), 60.0),
        ((">syn", "<synack", ">ack"), 432000.0),
        ((">syn", "<synack", ">ack", ">fin"), 120.0),
        ((">syn", "<synack", ">ack", ">fin", "<ack"), 60.0),
        ((">syn", "<synack", ">ack", ">fin", "<ack", "<fin"), 30.0),
        ((">syn", "<synack", ">ack", ">fin", "<ack", "<fin", ">ack"), 120.0),
        ((">syn", "<syn"), 120.0),
    ],
)
def test_tcp_state_sets_the_timer(steps: tuple[str, ...], seconds: float) -> None:
    wire = Wire("linux-drop")
    tcp(wire, *steps)
    assert alive(wire.at(seconds - 0.1))
    wire = Wire("linux-drop")
    tcp(wire, *steps)
    assert not alive(wire.at(seconds))


def test_reset_closes_in_10_s() -> None:
    wire = Wire("linux-drop")
    tcp(wire, ">syn", "<synack", ">ack", "<rst")
    assert alive(wire.at(9.9))
    wire = Wire("linux-drop")
    tcp(wire, ">syn", "<synack", ">ack", "<rst")
    assert not alive(wire.at(10.0))


def test_refused_connection_is_forgotten_at_once() -> None:
    wire = Wire("linux-drop")
    tcp(wire, ">syn", "<rst")
    assert not alive(wire)


def test_simultaneous_open_passes() -> None:
    wire = Wire("linux-drop")
    tcp(wire, ">syn", "<syn", ">synack", "<ack", ">ack")
    assert alive(wire.at(400000.0))


def test_segment_of_no_state_is_invalid() -> None:
    wire = Wire("linux-drop")
    assert wire.out(INSIDE, A, flag("synack"), TCP) is None
    tcp(wire, ">syn")
    assert wire.back(A, OUTER, flag("fin"), TCP) is None


def test_ended_ports_connect_again() -> None:
    wire = Wire("linux-drop")
    tcp(wire, ">syn", "<synack", ">ack", "<fin", ">fin", "<ack", ">syn", "<synack", ">ack")
    assert alive(wire.at(1000.0))


def test_connection_survives_a_router_that_forgot_it() -> None:
    """nf_conntrack_tcp_loose: data from inside restores it."""
    wire = Wire("linux-drop")
    tcp(wire, ">syn", "<synack", ">ack")
    wire.gate.reboot()
    assert not alive(wire)
    tcp(wire, ">ack")
    assert alive(wire)


# Overlays.


@pytest.mark.parametrize(
    ("kind", "same", "elsewhere"),
    [
        ("full-cone", True, True),
        ("address-restricted", True, False),
        ("port-restricted", False, False),
    ],
)
def test_overlay_decides_which_senders_get_in(kind: str, same: bool, elsewhere: bool) -> None:
    wire = Wire(kind)
    wire.out(INSIDE, A)
    assert (wire.back(A2, OUTER) == INSIDE) is same
    assert (wire.back(B, OUTER) == INSIDE) is elsewhere


def test_overlay_ends_300_s_after_a_flow_began() -> None:
    for when, reached in (299.9, INSIDE), (300.0, None):
        wire = Wire("full-cone")
        wire.out(INSIDE, A)
        for now in range(20, 300, 20):  # traffic of the same flow does not renew it
            wire.at(now).out(INSIDE, A)
            wire.back(A, OUTER)
        assert wire.at(when).back(B, OUTER) == reached


def test_live_overlay_element_keeps_its_owner() -> None:
    wire = Wire("full-cone")
    wire.out(INSIDE, A)
    wire.out(OTHER, A2)
    assert wire.back(B, OUTER) == INSIDE


def test_hairpin_shows_the_outer_address() -> None:
    wire = Wire("full-cone-hairpin")
    wire.out(INSIDE, A)
    there = wire.inward((OTHER[0], 5000), OUTER)
    assert there is not None and (there.src, there.dst) == ((GATE, 5000), INSIDE)
    back = wire.inward(INSIDE, (GATE, 5000))
    assert back is not None and (back.src, back.dst) == (OUTER, (OTHER[0], 5000))


def test_without_hairpin_the_router_refuses() -> None:
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    told = wire.inward((OTHER[0], 5000), OUTER)
    assert told is not None and isinstance(told.data, Icmp) and told.dst[0] == OTHER[0]


# ICMP.


def test_error_from_outside_is_translated_and_ends_nothing() -> None:
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    wire.put(error("port", A, OUTER, (UDP, OUTER, A)), wire.wan)
    (told,) = wire.inner.got
    assert (told.dst[0], told.src[0]) == (INSIDE[0], A[0])
    assert (told.icmp.src, told.icmp.dst) == (INSIDE, A)
    wire.inner.got.clear()
    assert wire.back(A, OUTER) == INSIDE


def test_error_from_inside_is_translated() -> None:
    wire = Wire("linux-drop")
    wire.out(INSIDE, A)
    wire.back(A, OUTER)
    wire.put(error("port", INSIDE, A, (UDP, A, INSIDE)), wire.lan)
    (told,) = wire.outer.got
    assert (told.src[0], told.icmp.src, told.icmp.dst) == (GATE, A, OUTER)


def test_error_about_nothing_known_is_dropped() -> None:
    wire = Wire("linux-drop")
    wire.put(error("port", A, OUTER, (UDP, OUTER, A)), wire.wan)
    assert wire.inner.got == []


# Bounds.


def test_memory_is_bounded_by_live_entries() -> None:
    wire = Wire("linux-drop")
    for number in range(5000):
        wire.at(number * 1.0).out((INSIDE[0], 1024 + number), A)
    assert size(wire) < 200


def test_full_table_refuses_until_something_ends() -> None:
    wire = Wire("linux-drop", max_mappings=10)
    seen = [wire.out((INSIDE[0], 5000 + number), A) for number in range(11)]
    assert seen[-1] is None and None not in seen[:-1]
    assert wire.drops() == ["nat-full"]
    assert wire.at(31.0).out((INSIDE[0], 6000), A) is not None


def test_persistent_gives_a_host_one_address_for_all() -> None:
    pool = ("198.51.100.2", "198.51.100.3", "198.51.100.4")
    hosts = tuple(f"192.168.1.{n}" for n in range(2, 30))
    targets = [(A[0], port) for port in (1, 2)] + [B]
    for kind, one in ("linux-persistent", True), ("linux-drop", False):
        wire = Wire(kind, hosts, addresses=pool)
        seen = [{(wire.out((host, 5000), to) or ("",))[0] for to in targets} for host in hosts]
        assert all(len(addresses) == 1 for addresses in seen) is one
        assert len(set().union(*seen)) > 1
