"""Ports that inside hosts asked for: their owners, and until when they have them."""

import math

import pytest

from shoal.netsim.nat.portmap import leases
from shoal.netsim.nat.portmap.leases import Full, Leases
from shoal.netsim.network.packet import TCP, UDP
from tests.netsim.nat.wire import GATE, INSIDE, OTHER, A, Wire


def table(wire: Wire, *, works: bool = True) -> Leases:
    return Leases(wire.gate, longest=3600.0, works=works)


def test_lease_forwards_until_it_ends() -> None:
    wire = Wire("linux-drop")
    held = table(wire)
    held.add(UDP, 9000, INSIDE, 60.0)
    assert wire.at(59.0).back(A, (GATE, 9000)) == INSIDE
    assert wire.at(60.0).back((A[0], 1), (GATE, 9000)) is None
    assert len(held) == 0 and wire.gate.forwards == {}


def test_renewal_moves_the_end() -> None:
    wire = Wire("linux-drop")
    held = table(wire)
    held.add(UDP, 9000, INSIDE, 60.0)
    wire.at(50.0)
    held.add(UDP, 9000, INSIDE, 60.0)
    assert len(wire.events) == 1  # one check at a time, however often it is renewed
    assert wire.at(109.0).back(A, (GATE, 9000)) == INSIDE
    wire.at(110.0)
    assert len(held) == 0


def test_endless_lease_needs_no_event() -> None:
    wire = Wire("linux-drop")
    table(wire).add(TCP, 9000, INSIDE, math.inf)
    assert len(wire.events) == 0


def test_broken_router_confirms_but_forwards_nothing() -> None:
    wire = Wire("linux-drop")
    table(wire, works=False).add(UDP, 9000, INSIDE, 60.0)
    assert wire.back(A, (GATE, 9000)) is None


def test_port_that_changes_hands() -> None:
    wire = Wire("linux-drop")
    held = table(wire)
    held.add(UDP, 9000, INSIDE, 60.0)
    held.add(UDP, 9000, OTHER, 60.0)
    assert held.of(UDP, INSIDE) is None
    assert wire.back(A, (GATE, 9000)) == OTHER


def test_wish_for_a_taken_port_gets_another() -> None:
    held = table(Wire("linux-drop"))
    held.add(UDP, 9000, INSIDE, 60.0)
    assert held.free_port(UDP, 9000) != 9000
    assert held.free_port(TCP, 9000) == 9000


def test_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PER_HOST", 3)
    monkeypatch.setattr(leases, "LEASES", 5)
    held = table(Wire("linux-drop"))
    for port in range(3):
        held.add(UDP, 9000 + port, (INSIDE[0], port), 60.0)
    with pytest.raises(Full):
        held.add(UDP, 9003, (INSIDE[0], 3), 60.0)
    held.add(UDP, 9004, OTHER, 60.0)
    held.add(TCP, 9004, OTHER, 60.0)
    with pytest.raises(Full):
        held.add(TCP, 9005, ("192.168.1.9", 1), 60.0)
