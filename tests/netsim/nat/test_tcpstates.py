"""Linux's table of TCP states, tested by sequences of segments."""

import pytest

from shoal.netsim.nat.segments import ACK, FIN, RST, SYN
from shoal.netsim.nat.tcpstates import FROM_ORIGINAL, FROM_REPLY, SECONDS, TcpState

STEPS = {"syn": SYN, "synack": SYN | ACK, "ack": ACK, "fin": FIN | ACK, "rst": RST}


def state_after(*steps: str) -> TcpState:
    state = TcpState.NONE
    for step in steps:
        table = FROM_ORIGINAL if step[0] == ">" else FROM_REPLY
        state = table[STEPS[step[1:]]][state]
    return state


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ((">syn",), TcpState.SYN_SENT),
        ((">ack",), TcpState.ESTABLISHED),  # picked up in the middle
        ((">syn", "<synack", ">ack"), TcpState.ESTABLISHED),
        ((">syn", "<syn"), TcpState.SYN_SENT2),
        ((">syn", "<syn", ">synack", "<ack"), TcpState.SYN_RECV),
        ((">syn", "<syn", "<synack", ">ack"), TcpState.ESTABLISHED),
        ((">syn", "<synack", ">ack", ">fin", "<ack", "<fin", ">ack"), TcpState.TIME_WAIT),
        ((">syn", "<synack", ">ack", ">fin", "<fin", ">ack"), TcpState.TIME_WAIT),
        ((">syn", "<synack", ">ack", "<rst"), TcpState.CLOSE),
        ((">syn", "<ack"), TcpState.IGNORE),
        ((">fin",), TcpState.INVALID),
        (("<syn",), TcpState.INVALID),
    ],
)
def test_story(steps: tuple[str, ...], state: TcpState) -> None:
    assert state_after(*steps) is state


def test_every_state_has_a_timer() -> None:
    reached = {state for table in (FROM_ORIGINAL, FROM_REPLY) for row in table for state in row}
    assert reached - {TcpState.IGNORE, TcpState.INVALID} == set(SECONDS)


def test_no_flags_at_all_are_invalid() -> None:
    assert set(FROM_ORIGINAL[0]) == set(FROM_REPLY[0]) == {TcpState.INVALID}
