"""SYNs that are held for one in the other direction, and for how long."""

import pytest

from shoal.netsim.clock import Events
from shoal.netsim.nat import segments
from shoal.netsim.nat.segments import HOLD_S, HeldSyns
from shoal.netsim.network.packet import TCP, Addr, Packet
from tests.netsim.nat.wire import flag

A: Addr = ("203.0.113.1", 80)
B: Addr = ("198.51.100.1", 4001)


def syn(port: int = 80, name: str = "syn") -> Packet:
    return Packet(TCP, (A[0], port), B, 60, flag(name), "a", "")


class Box:
    def __init__(self) -> None:
        self.events = Events()
        self.refused: list[tuple[float, Packet]] = []
        self.syns = HeldSyns(
            self.events, lambda packet: self.refused.append((self.events.now, packet))
        )


def test_an_unanswered_syn_is_refused_after_six_seconds() -> None:
    box, packet = Box(), syn()
    box.syns.hold(packet)
    box.events.run_until(2.0)
    box.syns.hold(syn())  # sent again: the time of the first one counts
    box.events.run_until(60.0)
    assert box.refused == [(HOLD_S, packet)]


def test_an_answered_syn_that_comes_again_is_held_again() -> None:
    box = Box()
    box.syns.hold(syn())
    box.syns.forget(A, B)
    box.events.run_until(4.0)
    box.syns.hold(syn())
    box.events.run_until(60.0)
    assert [when for when, _ in box.refused] == [4.0 + HOLD_S]


def test_only_first_segments_up_to_a_limit_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "HELD", 3)
    box = Box()
    box.syns.hold(syn(name="synack"))
    for port in range(1, 9):
        box.syns.hold(syn(port))
    box.events.run_until(60.0)
    assert [packet.src[1] for _, packet in box.refused] == [1, 2, 3]
    box.syns.hold(syn())
    box.syns.clear()
    box.events.run_until(120.0)
    assert len(box.refused) == 3
