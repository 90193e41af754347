"""The lifetime of one flow."""

import pytest

from shoal.netsim.nat.sessions import FlowState, Timers
from shoal.netsim.network.packet import TCP, UDP, Packet
from tests.netsim.nat.wire import INSIDE, A, flag

TIMERS = Timers(udp_new=30.0, udp_stream=120.0, stream_after=2.0)


def packet(name: str = "") -> Packet:
    return Packet(TCP if name else UDP, INSIDE, A, 100, flag(name) if name else b"", "", "")


def test_udp_is_a_stream_when_answered_and_old() -> None:
    session = FlowState(0.0)
    for outbound, now, expected in (
        (True, 0.0, 30.0),
        (True, 3.0, 33.0),  # old, but never answered
        (False, 4.0, 124.0),
        (True, 5.0, 125.0),
    ):
        session.renew(packet(), outbound, now, TIMERS)
        assert session.expires == expected


def lives(*steps: str) -> float:
    """Return the seconds that a flow lives after the last step (`>syn` outward, `<synack`
    inward).
    """
    session = FlowState(0.0)
    for step in steps:
        session.renew(packet(step[1:]), step[0] == ">", 0.0, TIMERS)
    return session.expires


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ((">syn",), TIMERS.tcp_syn),
        ((">syn", "<synack"), TIMERS.tcp_established),
        ((">syn", "<syn"), TIMERS.tcp_established),
        (("<syn", ">synack"), TIMERS.tcp_established),
        ((">ack", "<ack"), TIMERS.tcp_transitory),  # a connection older than the gateway
        ((">syn", "<synack", "<fin"), TIMERS.tcp_transitory),
        ((">syn", "<synack", "<fin", ">fin", "<ack"), TIMERS.tcp_close),
        ((">syn", "<rst"), TIMERS.tcp_close),
        ((">syn", "<synack", "<rst", ">syn"), TIMERS.tcp_syn),
        ((">syn", "<synack", "<fin", ">fin", ">syn", "<synack"), TIMERS.tcp_established),
    ],
)
def test_tcp(steps: tuple[str, ...], seconds: float) -> None:
    assert lives(*steps) == seconds
