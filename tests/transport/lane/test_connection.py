"""Bulk under a window, acknowledgement, and pings of one connection."""

from math import inf

import pytest

from shoal.transport.lane import frame as wire
from shoal.transport.lane.connection import LaneConnection
from shoal.transport.lane.events import GrantedLimits
from shoal.transport.lane.frame import Cutter, Priority
from shoal.transport.lane.lane import Lane
from shoal.transport.lane.queueing import INITIAL_BYTES, Yielding
from shoal.transport.lane.stream import QueuedFrame
from shoal.transport.limits import Limits


def connection(*, yielding: bool = True) -> LaneConnection:
    return LaneConnection(
        idle_s=2.0, silent_s=3.5, now=0.0, yielding=Yielding(0.0) if yielding else None
    )


def frame(priority: Priority, size: int) -> QueuedFrame:
    return QueuedFrame(wire.DATA, int(priority), 2, 0, b"", bytes(size))


def fill(made: LaneConnection, now: float) -> int:
    """Send all bulk that may leave. Return the number of frames."""
    count = 0
    while piece := made.takes_bulk(now):
        made.keep(frame(Priority.BULK, piece), piece, now)
        count += 1
    return count


def test_bulk_fills_a_window_and_waits_for_a_pong() -> None:
    made = connection()
    assert fill(made, 0.0) >= 1
    assert made.bulk_waits and made.bulk_bytes >= INITIAL_BYTES
    mark = made.probe(0.0)
    assert mark and not made.probe(0.0)  # one is out
    made.acknowledge(1)
    made.ponged(mark, 0.04)
    assert not made.bulk_waits
    assert made.takes_bulk(0.04)


def test_an_unsolicited_pong_opens_no_window() -> None:
    made = connection()
    fill(made, 0.0)
    mark = made.probe(0.0)
    for wrong in (0, 1, mark - 1, mark + 1, (1 << 64) - 1):
        made.ponged(wrong, 0.0)
        assert made.bulk_waits


def test_calls_pass_a_full_window() -> None:
    made = connection()
    fill(made, 0.0)
    before = made.bulk_bytes
    made.keep(frame(Priority.CONTROL, 1 << 16), 1 << 16, 0.0)
    made.keep(frame(Priority.ACTIVATION, 1 << 16), 1 << 16, 0.0)
    assert made.bulk_bytes == before


def test_without_bulk_in_flight_nothing_is_measured() -> None:
    made = connection()
    assert made.probe(0.0) == 0
    made.keep(frame(Priority.CONTROL, 100), 100, 0.0)
    assert made.probe(0.0) == 0


def test_frames_sent_again_elsewhere_are_no_longer_in_flight() -> None:
    made = connection()
    frames = fill(made, 0.0)
    assert len(made.give_back()) == frames
    assert made.bulk_bytes == 0
    made.acknowledge(frames)  # late, and not counted
    assert made.bulk_bytes == 0


def test_a_paced_frame_says_when_it_may_leave() -> None:
    made = connection()
    fill(made, 0.0)
    mark = made.probe(0.0)
    made.acknowledge(1)
    made.ponged(mark, 0.04)
    now = 0.04
    sent = fill(made, now)
    while made.bulk_at < inf:
        assert made.bulk_at > now
        now = made.bulk_at
        sent += fill(made, now)
    assert sent > 1 and made.bulk_waits


def test_without_congestion_control_nothing_waits() -> None:
    made = connection(yielding=False)
    for _ in range(1000):
        assert made.takes_bulk(0.0)
        made.keep(frame(Priority.BULK, 1 << 16), 1 << 16, 0.0)
    assert made.probe(0.0) == 0


# Pings.


@pytest.mark.parametrize(("idle", "least", "most"), [(2.0, 3.4, 3.6), (10.0, 11.4, 11.6)])
def test_a_peer_has_time_to_answer(idle: float, least: float, most: float) -> None:
    """Also on a connection that is pinged less often than the silence limit."""
    made = LaneConnection(idle_s=2.0, silent_s=3.5, now=0.0)
    made.idle_s = idle  # it stands by
    made.urgent.clear()
    made.ponged(2, 0.0)
    now = 0.0
    while not made.is_silent(now):
        now = max(now + 0.01, min(made.tick(now), now + 0.25))
    assert least < now < most + 0.25


def overdue() -> LaneConnection:
    """A frame is under way, the round trip is 0.1 s, nothing came for so long that it pings."""
    made = LaneConnection(idle_s=2.0, silent_s=3.5, now=-0.1)
    made.ponged(2, 0.0)
    made.heard = 0.0
    made.keep(frame(Priority.CONTROL, 1), 1, 0.0)
    assert made.tick(0.3) == pytest.approx(0.8)  # 0.5 s and three round trips
    made.tick(0.8)
    return made


def test_a_ping_has_half_a_second_and_three_round_trips() -> None:
    made = overdue()
    assert not made.is_doubtful(1.55) and made.is_doubtful(1.65)


def test_a_ping_has_one_round_trip_if_the_peer_is_known_to_answer() -> None:
    made, other = overdue(), LaneConnection(idle_s=2.0, silent_s=3.5, now=0.0)
    other.heard = 0.7
    assert not made.is_outrun(other)  # before the ping
    other.heard = 0.9
    assert made.is_outrun(other)
    made.hint(0.9)
    assert not made.is_doubtful(0.95) and made.is_doubtful(1.05)
    made.ponged(made.ping_mark + 1, 1.1)
    made.heard = 1.1
    assert not made.is_outrun(other) and not made.is_doubtful(5.0)
    made.tick(2.0)
    assert not made.is_doubtful(2.0 + 1.3)  # the hint ends with the pong


def small(kind: int, priority: Priority) -> QueuedFrame:
    return QueuedFrame(kind, int(priority), 2, 0, b"", b"news")


@pytest.mark.parametrize(
    ("kind", "priority", "hurried"),
    [
        (wire.POST, Priority.CONTROL, False),
        (wire.REPLY, Priority.CONTROL, False),
        (wire.REPLY, Priority.BULK, False),
        (wire.CALL, Priority.CONTROL, True),
        (wire.POST, Priority.ACTIVATION, True),
        (wire.DATA, Priority.BULK, True),
    ],
)
def test_only_frames_with_a_waiting_caller_cause_an_early_ping(
    kind: int, priority: Priority, hurried: bool
) -> None:
    made = connection()
    made.ponged(made.urgent.pop().offset, 0.04)  # answers the first ping
    made.heard = 0.04
    made.tick(0.05)
    made.keep(small(kind, priority), 4, 0.1)
    looked = made.tick(1.2)
    assert bool(made.urgent) == hurried
    assert looked > 1.2 and (hurried or looked == 0.04 + 2.0)
    made.acknowledge(1)
    assert made.look_at(1.3) == inf


def test_little_bulk_is_not_followed_by_a_ping() -> None:
    made = connection()
    made.keep(frame(Priority.BULK, 1000), 1000, 0.0)
    assert not made.probe(0.0)
    for _ in range(4):
        made.keep(frame(Priority.BULK, 1000), 1000, 0.0)
    assert made.probe(0.0)


def test_a_ping_or_its_pong_puts_off_the_tick() -> None:
    made = connection()
    due = made.tick(0.0)  # a first ping is in flight
    assert made.ease(due) == due, "nothing has arrived"
    made.heard = 0.5
    made.ponged(1 + 1, 0.5)
    assert made.ease(due) == 2.5
    assert made.ease(due) == due, "once for each pong"
    made.heard = 1.5
    made.pong(7)
    assert made.ease(2.5) == 3.5
    made.pong(8)
    assert made.ease(3.0) == 3.0, "so little is not worth a timer"
    assert not made.forgive(3.5), "the tick at that time is not late"


def test_the_tick_for_a_pong_is_not_put_off() -> None:
    made = connection()
    made.ponged(1 + 1, 0.0)
    due = made.tick(made.tick(0.0))
    made.heard = 2.2
    made.pong(7)
    assert made.ease(due) == due == 2.5, "when the pong of the ping at 2.0 is overdue"


def test_the_tick_for_frames_in_flight_is_put_off_to_their_time() -> None:
    made = connection()
    made.ponged(1 + 1, 0.0)
    made.heard = 5.0
    made.keep(QueuedFrame(wire.CALL, int(Priority.CONTROL), 2, 0, b"", b""), 0, 5.0)
    made.pong(7)
    assert made.ease(4.0) == made.look_at(5.0) < 5.0 + made.idle_s


@pytest.mark.parametrize("circuit", [True, False])
def test_data_of_a_circuit_causes_no_early_ping(circuit: bool) -> None:
    """The link inside the circuit pings for itself. The mark of such frames is not sent."""
    lane = Lane(dialled=True, limits=Limits(), remote=GrantedLimits(2**20, 2**20, 8), now=0.0)
    made = lane.attach(0.0)
    stream = lane.open("relay.connect", {}, Priority.ACTIVATION)
    assert stream is not None
    lane.take(made, 2**16, 0.1)
    made.acknowledge(1)
    stream.carries_link = circuit
    stream.write(b"data")
    lane.outbox.schedule(stream)
    (sent,) = Cutter().feed(lane.take(made, 2**16, 0.2))
    assert (sent.kind, sent.flags) == (wire.DATA, Priority.ACTIVATION)
    assert (made.look_at(0.3) == inf) is circuit
