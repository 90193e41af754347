"""The parts of a TCP connection alone: no sockets, no packets, no world."""

import errno
from random import Random

import pytest

from shoal.netsim.sockets.tcp import connection as states
from shoal.netsim.sockets.tcp.congestion import Cubic
from shoal.netsim.sockets.tcp.connection import TcpConnection
from shoal.netsim.sockets.tcp.defaults import INFINITY, RTO_MIN_S
from shoal.netsim.sockets.tcp.inbox import Inbox
from shoal.netsim.sockets.tcp.outbox import SendBuffer
from shoal.netsim.sockets.tcp.ports import PortClaim, PortClaims
from shoal.netsim.sockets.tcp.rtt import RoundTrip
from shoal.netsim.sockets.tcp.scoreboard import Flight, Scoreboard
from shoal.netsim.sockets.tcp.segment import ControlSegment, TcpSegment, refusal


def segment(seq: int, data: bytes, *, fin: bool = False) -> TcpSegment:
    if fin:
        return ControlSegment(seq, 0, 0, data, ack=True, fin=True)
    return TcpSegment(seq, 0, 0, data, (), 0.0, 0.0)


# The receiving half.


@pytest.mark.parametrize("seed", range(5))
def test_inbox_puts_segments_in_order(seed: int) -> None:
    random = Random(seed)
    data = random.randbytes(20_000)
    pieces = [segment(start + 1, data[start : start + 500]) for start in range(0, 20_000, 500)]
    pieces.append(segment(20_001, b"", fin=True))
    pieces += random.sample(pieces, 10)  # some arrive twice
    random.shuffle(pieces)
    inbox = Inbox()
    inbox.start(1)
    ends = [inbox.take(piece) for piece in pieces]
    assert inbox.read(1 << 20) == data
    assert inbox.next == 20_002
    assert sum(ends) == 1
    assert not inbox.torn and not inbox.sack


def test_inbox_reports_the_latest_range_first() -> None:
    inbox = Inbox()
    inbox.start(0)
    for seq in (100, 300, 500, 700):
        inbox.take(segment(seq, bytes(100)))
    assert list(inbox.sack) == [(700, 800), (500, 600), (300, 400)]
    inbox.take(segment(400, bytes(100)))
    assert list(inbox.sack) == [(300, 600), (700, 800)]
    inbox.take(segment(0, bytes(100)))
    assert inbox.next == 200


def test_inbox_never_takes_its_offer_back() -> None:
    inbox = Inbox(1000)
    inbox.start(0)
    assert inbox.window() == 1000
    inbox.take(segment(0, bytes(600)))
    assert inbox.window() == 400
    inbox.fix(500)
    assert inbox.window() == 400
    inbox.read(600)
    assert inbox.window() == 500


def test_inbox_reads_in_parts() -> None:
    inbox = Inbox()
    inbox.start(0)
    for start in range(0, 1000, 100):
        inbox.take(segment(start, bytes([start // 100]) * 100))
    got = [inbox.read(size) for size in (50, 100, 200, 1, 9999)]
    assert list(map(len, got)) == [50, 100, 200, 1, 649]
    assert b"".join(got) == b"".join(bytes([i]) * 100 for i in range(10))


# The sending half.


@pytest.mark.parametrize("seed", range(5))
def test_outbox_returns_the_bytes_in_order(seed: int) -> None:
    random = Random(seed)
    outbox = SendBuffer()
    put, got = b"", b""
    for _ in range(300):
        data = random.randbytes(random.choice((1, 100, 1448, 5000)))
        outbox.add(data, 1448)
        put += data
        for _ in range(random.randrange(4)):
            size = min(outbox.size, random.choice((1, 700, 1448)))
            if size:
                got += outbox.cut(size)
    got += outbox.cut(outbox.size) if outbox.size else b""
    assert got == put


def test_outbox_returns_a_whole_write_without_a_copy() -> None:
    outbox = SendBuffer()
    data = bytes(1448)
    outbox.add(data, 1448)
    assert outbox.cut(1448) is data


def _board(count: int, now: float = 0.0) -> Scoreboard:
    board = Scoreboard()
    for i in range(count):
        board.add(Flight(i * 100, i * 100 + 100, bytes(100), False, now, False))
    return board


def test_scoreboard_counts_segments_in_flight() -> None:
    board = _board(10)
    assert board.acknowledge(0, 300, 0.1, 0.1) == 3
    assert board.sack(((500, 700),), 300, 0.1, 0.1) == 2
    assert board.sack(((500, 800),), 300, 0.1, 0.1) == 1
    assert (board.pipe, board.sacked, len(board)) == (4, 3, 7)
    assert board.acknowledge(300, 1000, 0.1, 0.2) == 4  # three were known before
    assert (board.pipe, board.sacked, len(board)) == (0, 0, 0)


def test_scoreboard_marks_overtaken_segments_as_lost() -> None:
    board = _board(6)
    board.sack(((300, 600),), 0, 0.1, 0.1)
    assert board.overtaken(0.1, board.patience(0.1, False)) == INFINITY
    lost = []
    while (flight := board.next_lost()) is not None:
        lost.append(flight.seq)
        board.replace(flight)
        board.add(flight.split(1448, 0.1)[0])
    assert lost == [0, 100, 200]


def test_scoreboard_waits_where_segments_may_overtake() -> None:
    """One segment ahead is no loss yet; a quarter of a round trip later it is."""
    board = _board(3)
    board.sack(((200, 300),), 0, 0.1, 0.1)
    due = board.overtaken(0.1, board.patience(0.1, False))
    assert due == pytest.approx(0.125)
    assert board.next_lost() is None
    board.overtaken(due, board.patience(0.1, False))
    assert board.next_lost() is not None


def test_a_flight_is_cut_for_a_smaller_path() -> None:
    parts = Flight(10, 1011, bytes(1000), True, 0.0, False).split(400, 1.0)
    assert [(p.seq, p.end, len(p.data), p.fin) for p in parts] == [
        (10, 410, 400, False),
        (410, 810, 400, False),
        (810, 1011, 200, True),
    ]


# Numbers.


def test_round_trip_as_rfc_6298_has_it() -> None:
    trip = RoundTrip()
    assert trip.rto == 1.0
    trip.sample(0.1)
    assert (trip.smooth, trip.variation) == (0.1, 0.05)
    assert trip.rto == pytest.approx(0.1 + RTO_MIN_S)
    trip.sample(0.5)
    assert trip.smooth == pytest.approx(0.15)
    assert trip.variation == pytest.approx(0.1375)
    assert trip.rto == pytest.approx(0.15 + 4 * 0.1375)
    assert trip.least == 0.1


def test_cubic_returns_to_the_window_of_the_loss() -> None:
    """RFC 9438, 4.2: K = cbrt(W_max * (1 - beta) / C) seconds after the loss."""
    cubic = Cubic()
    cubic.window = 1000.0
    cubic.reduce()
    assert cubic.ssthresh == 700
    cubic.window = cubic.ssthresh
    k = (1000 * 0.3 / 0.4) ** (1 / 3)
    now, reached = 0.0, 0.0
    while cubic.window < 1000:
        for _ in range(int(cubic.window) // 2):
            cubic.grow(2, now, 0.1)
        now += 0.1
        reached = now
    assert reached == pytest.approx(k, rel=0.1)


@pytest.mark.parametrize(("rtt", "ended"), [(0.101, False), (0.12, True)])
def test_slow_start_ends_when_round_trips_grow(rtt: float, ended: bool) -> None:
    cubic = Cubic()
    cubic.window = 40.0
    for una in range(8):
        cubic.watch(rtt, 0.1, una, 1000)
    assert (cubic.ssthresh == 40) == ended


def test_cubic_halves_in_a_pause() -> None:
    cubic = Cubic()
    cubic.window = 100.0
    cubic.after_pause(0.5, 0.2)
    assert cubic.window == 25
    cubic.after_pause(100, 0.2)
    assert cubic.window == 10


# Ports.


def test_ports_are_shared_by_dials_only_when_none_is_left() -> None:
    ports = PortClaims(Random(1), 100, 102)
    used = []
    for _ in range(3):
        binding = PortClaim("0.0.0.0")
        ports.claim_for_dial(binding, lambda port: False)
        used.append(binding.port)
    assert sorted(used) == [100, 101, 102]
    fourth = PortClaim("0.0.0.0")
    ports.claim_for_dial(fourth, lambda port: port == 100)
    assert fourth.port == 101
    with pytest.raises(OSError) as caught:
        ports.claim_for_dial(PortClaim("0.0.0.0"), lambda port: True)
    assert caught.value.errno == errno.EADDRNOTAVAIL


# Two connections, back to back.


def _shake(now: float = 0.0) -> tuple[TcpConnection, TcpConnection]:
    near, far = TcpConnection(1000, 1460, now), TcpConnection(5000, 1460, now)
    near.open(now)
    far.accept(near.out.pop(), now)
    _carry(far, near, now)
    return near, far


def _carry(one: TcpConnection, two: TcpConnection, now: float) -> None:
    """Deliver the segments of both until neither sends any more."""
    while one.out or two.out:
        for sender, receiver in ((one, two), (two, one)):
            sent, sender.out = sender.out, []
            for item in sent:
                receiver.receive(item, now)


def test_both_close_at_once() -> None:
    near, far = _shake()
    near.close(1.0)
    far.close(1.0)
    _carry(near, far, 1.0)
    assert near.state == far.state == states.TIME_WAIT


def test_data_for_a_closed_reader_resets() -> None:
    near, far = _shake()
    far.close(1.0)
    _carry(near, far, 1.0)
    near.write(b"too late", 2.0)
    _carry(near, far, 2.0)
    assert far.state == states.CLOSED
    assert near.error == errno.EPIPE


def test_an_old_twin_of_a_segment_is_answered_and_ignored() -> None:
    near, far = _shake()
    near.write(b"once", 1.0)
    twin = near.out[0]
    _carry(near, far, 1.0)
    far.receive(twin, 2.0)
    assert far.inbox.size == 4
    assert far.out and far.out[0].acked == far.inbox.next


def test_refusals() -> None:
    answer = refusal(ControlSegment(7, 0, 0, syn=True))
    assert answer is not None and answer.rst and answer.ack and answer.acked == 8
    assert refusal(ControlSegment(7, 0, 0, rst=True)) is None


def test_an_early_call_of_tick_does_nothing() -> None:
    near, _far = _shake()
    near.write(b"x", 1.0)
    near.out.clear()
    near.tick(1.01)
    assert not near.out
    assert 1.01 < near.wake <= 1.4
    near.tick(near.wake)
    assert near.out


def test_reports_of_holes_leave_room_for_less() -> None:
    """Otherwise a full segment and the report would exceed the size of packets forever."""
    near, far = _shake()
    near.no_delay = far.no_delay = True
    for _ in range(6):
        near.write(bytes(100), 1.0)
    for lost in (4, 2, 0):
        del near.out[lost]
    for item in near.out:
        far.receive(item, 1.1)
    assert len(far.inbox.sack) == 3
    far.out.clear()
    far.write(bytes(10_000), 1.1)
    far.tick(3.0)  # nothing is acknowledged: it is sent again
    assert len(far.out) > 3
    for item in far.out:
        assert len(item.data) + (4 + 8 * len(item.sack) if item.sack else 0) <= 1448
    assert any(len(item.sack) == 3 for item in far.out)
