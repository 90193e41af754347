"""Linux's table of TCP states, tested by sequences of segments."""

import pytest

from shoal.netsim.nat.segments import ACK, FIN, RST, SYN
from shoal.netsim.nat.tcpstates import FROM_ORIGINAL, FROM_REPLY, SECONDS, State

STEPS = {"syn": SYN, "synack": SYN | ACK, "ack": ACK, "fin": FIN | ACK, "rst": RST}


def state_after(*steps: str) -> State:
    state = State.NONE
    for step in steps:
        table = FROM_ORIGINAL if step[0] == ">" else FROM_REPLY
        state = table[STEPS[step[1:]]][state]
    return state


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ((">syn",), State.SYN_SENT),
        ((">ack",), State.ESTABLISHED),  # picked up in the middle
        ((">syn", "<synack", ">ack"), State.ESTABLISHED),
        ((">syn", "<syn"), State.SYN_SENT2),
        ((">syn", "<syn", ">synack", "<ack"), State.SYN_RECV),
        ((">syn", "<syn", "<synack", ">ack"), State.ESTABLISHED),
        ((">syn", "<synack", ">ack", ">fin", "<ack", "<fin", ">ack"), State.TIME_WAIT),
        ((">syn", "<synack", ">ack", ">fin", "<fin", ">ack"), State.TIME_WAIT),
        ((">syn", "<synack", ">ack", "<rst"), State.CLOSE),
        ((">syn", "<ack"), State.IGNORE),
        ((">fin",), State.INVALID),
        (("<syn",), State.INVALID),
    ],
)
def test_story(steps: tuple[str, ...], state: State) -> None:
    assert state_after(*steps) is state


def test_every_state_has_a_timer() -> None:
    reached = {state for table in (FROM_ORIGINAL, FROM_REPLY) for row in table for state in row}
    assert reached - {State.IGNORE, State.INVALID} == set(SECONDS)


def test_no_flags_at_all_are_invalid() -> None:
    assert set(FROM_ORIGINAL[0]) == set(FROM_REPLY[0]) == {State.INVALID}
