"""The NAT of RFC 4787 and 5382, packet by packet."""

from typing import Any

import pytest

from shoal.netsim.nat.rfc import RfcNat
from shoal.netsim.network.packet import Icmp
from tests.netsim.nat.wire import A2, GATE, INSIDE, OTHER, TCP, UDP, A, B, Wire, error, flag

OUTER = (GATE, INSIDE[1])
KINDS = [f"{m}m-{f}f" for m in ("ei", "ad", "apd") for f in ("ei", "ad", "apd")]


def size(wire: Wire) -> int:
    gate = wire.gate
    assert isinstance(gate, RfcNat)
    return len(gate)


@pytest.mark.parametrize("kind", KINDS)
def test_mapping_and_filtering_are_what_the_name_says(kind: str) -> None:
    wire = Wire(kind)
    first, port, address = (wire.out(INSIDE, to) for to in (A, A2, B))
    found = "eim" if first == address else "adm" if first == port else "apdm"
    wire = Wire(kind)
    outer = wire.out(INSIDE, A)
    assert outer is not None and wire.back(A, outer) == INSIDE
    same, other = wire.back(A2, outer), wire.back(B, outer)
    assert f"{found}-{'eif' if other else 'adf' if same else 'apdf'}" == kind


def test_ports_are_not_overloaded() -> None:
    wire = Wire("eim-apdf")
    assert wire.out(INSIDE, A) == OUTER
    assert wire.out(OTHER, B) != OUTER


# Timers.


def test_mapping_ends_and_outbound_packets_keep_it() -> None:
    wire = Wire("eim-eif", udp_new=30.0, udp_stream=30.0)
    wire.out(INSIDE, A)
    wire.at(29.0).out(INSIDE, A)
    assert wire.at(58.9).back(A, OUTER) == INSIDE
    assert wire.at(59.0 + 30.0).back(A, OUTER) is None


@pytest.mark.parametrize("refresh", [True, False])
def test_inbound_packets_renew_a_mapping_if_configured(refresh: bool) -> None:
    wire = Wire("eim-apdf", udp_new=30.0, udp_stream=30.0, refresh_in=refresh)
    wire.out(INSIDE, A)
    wire.at(29.0).back(A, OUTER)
    assert (wire.at(50.0).back(A, OUTER) is not None) is refresh


def test_stream_after_its_time_lives_longer() -> None:
    for answered, reached in (True, INSIDE), (False, None):
        wire = Wire("eim-apdf", udp_new=30.0, udp_stream=120.0, stream_after=2.0)
        wire.out(INSIDE, A)
        if answered:
            wire.back(A, OUTER)
        wire.at(2.0).out(INSIDE, A)
        assert wire.at(100.0).back(A, OUTER) == reached


def test_filter_forgets_a_remote_that_the_mapping_outlives() -> None:
    wire = Wire("eim-apdf", udp_new=30.0, udp_stream=30.0)
    wire.out(INSIDE, A)
    wire.at(25.0).out(INSIDE, B)
    assert wire.at(40.0).back(B, OUTER) == INSIDE
    assert wire.back(A, OUTER) is None


def test_random_port_changes_when_the_mapping_ended() -> None:
    wire = Wire("apdm-apdf", udp_new=30.0)
    first = wire.out(INSIDE, A)
    assert wire.at(29.0).out(INSIDE, A) == first
    assert wire.at(59.0).out(INSIDE, A) != first


# Ports and addresses.


def test_sequential_ports_rise_by_one() -> None:
    wire = Wire("apdm-apdf", ports="sequential")
    seen = [wire.out(INSIDE, to) for to in (A, A2, B)]
    assert [outer and outer[1] for outer in seen] == [1024, 1025, 1026]


def test_block_holds_all_ports_of_a_host() -> None:
    wire = Wire("apdm-apdf", ports="block", block_size=16)
    mine = {wire.out((INSIDE[0], port), A) for port in range(5000, 5016)}
    assert mine == {(GATE, port) for port in range(1024, 1040)}
    assert wire.out((INSIDE[0], 6000), A) is None
    assert wire.out(OTHER, A) in {(GATE, port) for port in range(1040, 1056)}


def test_pooling_paired_keeps_a_host_at_one_address() -> None:
    for pooling, addresses in ("paired", 1), ("arbitrary", 2):
        wire = Wire("apdm-apdf", addresses=("198.51.100.2",), pooling=pooling)
        seen = [wire.out((INSIDE[0], port), A) for port in range(5000, 5020)]
        assert len({outer[0] for outer in seen if outer is not None}) == addresses
        other = wire.out(OTHER, A)
        assert other is not None and (pooling == "arbitrary" or other[0] == "198.51.100.2")


# Hairpin.


@pytest.mark.parametrize(
    ("hairpin", "seen"), [("external", GATE), ("internal", OTHER[0]), ("off", None)]
)
def test_hairpin(hairpin: str, seen: str | None) -> None:
    wire = Wire("eim-eif", hairpin=hairpin)
    wire.out(INSIDE, A)
    there = wire.inward((OTHER[0], 5000), OUTER)
    assert (there.src[0] if there is not None else None) == seen


def test_hairpin_passes_the_filter_too() -> None:
    wire = Wire("eim-apdf")
    wire.out(INSIDE, A)
    assert wire.inward((OTHER[0], 5000), OUTER) is None
    wire.inward(INSIDE, (GATE, 5000))
    assert wire.inward((OTHER[0], 5000), OUTER) is not None


# TCP.


def test_simultaneous_open_passes() -> None:
    wire = Wire("eim-apdf")
    wire.out(INSIDE, A, flag("syn"), TCP)
    assert wire.back(A, OUTER, flag("syn"), TCP) == INSIDE
    assert wire.at(7439.0).back(A, OUTER, flag("ack"), TCP) == INSIDE


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ((">syn",), 240.0),
        ((">syn", "<synack", ">ack"), 7440.0),
        ((">syn", "<synack", ">ack", ">fin"), 240.0),
        ((">syn", "<synack", ">ack", ">fin", "<fin"), 10.0),
        ((">syn", "<synack", ">ack", "<rst"), 10.0),
    ],
)
def test_tcp_phase_sets_the_timer(steps: tuple[str, ...], seconds: float) -> None:
    for when, reached in (seconds - 0.1, INSIDE), (seconds, None):
        wire = Wire("eim-apdf")
        for step in steps:
            segment = flag(step[1:])
            if step[0] == ">":
                wire.out(INSIDE, A, segment, TCP)
            else:
                wire.back(A, OUTER, segment, TCP)
        assert wire.at(when).back(A, OUTER, flag("ack"), TCP) == reached


def test_closed_connection_frees_its_port() -> None:
    """The remaining sessions decide how long a mapping lives, even if the filter is open."""
    for busy, reached in (False, None), (True, INSIDE):
        wire = Wire("eim-eif")
        for remote in (A, B) if busy else (A,):
            wire.out(INSIDE, remote, flag("syn"), TCP)
            wire.back(remote, OUTER, flag("synack"), TCP)
        wire.back(A, OUTER, flag("rst"), TCP)
        assert wire.at(10.0).back(A2, OUTER, flag("syn"), TCP) == reached


def test_forwarded_port_leaves_older_flows_alone() -> None:
    wire = Wire("eim-apdf")
    wire.out(INSIDE, A)
    wire.gate.forward(UDP, INSIDE[1], OTHER)
    assert wire.back(A, OUTER) == INSIDE
    assert wire.back(B, OUTER) == OTHER


def test_unsolicited_syn_is_held_six_seconds() -> None:
    """RFC 5382 REQ-4."""
    wire = Wire("eim-apdf")
    wire.back(A, OUTER, flag("syn"), TCP)
    assert wire.at(5.9).told() is None
    told = wire.at(6.0).told()
    assert told is not None and isinstance(told.data, Icmp) and told.icmp.kind == "port"
    assert (told.icmp.src, told.icmp.dst) == (A, OUTER)


def test_held_syn_is_forgotten_when_the_inside_connects() -> None:
    wire = Wire("eim-apdf")
    wire.back(A, OUTER, flag("syn"), TCP)
    wire.at(3.0).out(INSIDE, A, flag("syn"), TCP)
    assert wire.at(10.0).told() is None


@pytest.mark.parametrize(("answer", "reset"), [("rst", True), ("drop", False)])
def test_unsolicited_syn_otherwise(answer: str, reset: bool) -> None:
    wire = Wire("eim-apdf", tcp_unsolicited=answer)
    wire.back(A, OUTER, flag("syn"), TCP)
    told = wire.told()
    assert (told is not None and told.segment.rst) is reset
    assert wire.at(10.0).told() is None


# ICMP (RFC 4787 REQ-12, RFC 5508).


@pytest.mark.parametrize("kind", ["eim-eif", "adm-adf", "apdm-apdf"])
def test_errors_are_translated_both_ways(kind: str) -> None:
    wire = Wire(kind)
    outer = wire.out(INSIDE, A)
    assert outer is not None
    wire.put(error("port", A, outer, (UDP, outer, A)), wire.wan)
    (told,) = wire.inner.got
    assert (told.dst[0], told.icmp.src, told.icmp.dst) == (INSIDE[0], INSIDE, A)
    wire.inner.got.clear()
    assert wire.back(A, outer) == INSIDE
    wire.put(error("port", INSIDE, A, (UDP, A, INSIDE)), wire.lan)
    (told,) = wire.outer.got
    assert (told.src[0], told.icmp.src, told.icmp.dst) == (GATE, A, outer)


def test_error_about_a_remote_never_spoken_to_is_dropped() -> None:
    wire = Wire("eim-eif")
    wire.out(INSIDE, A)
    wire.put(error("port", B, OUTER, (UDP, OUTER, B)), wire.wan)
    assert wire.inner.got == []


# Bounds.


def test_memory_is_bounded_by_live_entries() -> None:
    wire = Wire("apdm-apdf", udp_new=30.0)
    for number in range(5000):
        wire.at(number * 1.0).out((INSIDE[0], 1024 + number), A)
    assert size(wire) < 200


def test_limits_refuse_and_recover() -> None:
    for knob, other in ("per_host", True), ("max_mappings", False):
        limit: dict[str, Any] = {knob: 5}
        wire = Wire("eim-eif", udp_new=30.0, **limit)
        seen = [wire.out((INSIDE[0], port), A) for port in range(5000, 5006)]
        assert seen[5] is None and None not in seen[:5]
        assert (wire.out(OTHER, A) is not None) is other
        assert wire.at(31.0).out((INSIDE[0], 6000), A) is not None


def test_sessions_of_a_mapping_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.netsim.nat.rfc.SESSIONS", 10)
    wire = Wire("eim-eif")
    assert [wire.out(INSIDE, (A[0], port)) for port in range(1, 12)][-1] is None
    assert wire.at(500.0).out(INSIDE, A) is not None


def test_held_syns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.netsim.nat.segments.HELD", 3)
    wire = Wire("eim-apdf")
    for port in range(1, 10):
        wire.back((A[0], port), OUTER, flag("syn"), TCP)
    wire.at(10.0)
    assert len(wire.outer.got) == 3


def test_reboot_forgets() -> None:
    wire = Wire("eim-eif")
    wire.out(INSIDE, A)
    wire.gate.reboot()
    assert wire.back(A, OUTER) is None
    assert size(wire) == 0
