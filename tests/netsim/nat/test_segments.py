"""Flags of segments, and resets."""

import pytest

from shoal.netsim.nat.segments import ACK, FIN, RST, SYN, flags, reset_for
from shoal.netsim.network.packet import TCP, Packet
from tests.netsim.nat.wire import INSIDE, A, flag


@pytest.mark.parametrize(
    ("name", "bits"),
    [("syn", SYN), ("synack", SYN | ACK), ("ack", ACK), ("fin", FIN | ACK), ("rst", RST)],
)
def test_flags(name: str, bits: int) -> None:
    assert flags(Packet(TCP, INSIDE, A, 60, flag(name), "", "")) == bits


def test_reset_answers_anything_but_a_reset() -> None:
    answer = reset_for(Packet(TCP, INSIDE, A, 60, flag("syn"), "", ""), "gate")
    assert answer is not None and (answer.src, answer.dst) == (A, INSIDE) and answer.segment.rst
    assert reset_for(Packet(TCP, INSIDE, A, 60, flag("rst"), "", ""), "gate") is None
