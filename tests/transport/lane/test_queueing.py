"""Bulk on a home line: 20 Mbit/s, 40 ms, a modem that buffers 250 ms."""

import heapq
from collections.abc import Callable
from itertools import count

import pytest

from shoal.netsim.network.link import Pipe, PipeSpec
from shoal.transport.lane.queueing import (
    FLOOR_BYTES,
    FLOOR_RATE,
    INITIAL_BYTES,
    MOST_BYTES,
    PACKET_BYTES,
    TARGET_S,
    BaseDelay,
    Yielding,
)
from tests.marks import in_ci

RATE = 2.5e6  # bytes per second
RTT = 0.04
HEADERS = 52
PING_BYTES = 100


class Line:
    """One bottleneck, the way back, and a clock."""

    def __init__(self, rate: float = RATE, rtt: float = RTT, queue: float = 0.25) -> None:
        self.now = 0.0
        self.rate, self.rtt = rate, rtt
        self.forth = Pipe(PipeSpec(delay=rtt / 2, rate=rate, queue=queue), None)
        self.back = Pipe(PipeSpec(delay=rtt / 2, rate=rate, queue=queue), None)
        self.queues: list[tuple[float, float]] = []  # time, seconds that wait
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._number), what))

    def send(self, byte_stream: Pipe, size: int, arrived: Callable[[], None]) -> bool:
        when = byte_stream.offer(self.now, size)
        if when >= 0:
            self.at(when, arrived)
        return when >= 0

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = until

    def watch(self) -> None:
        self.queues.append((self.now, self.forth.waiting(self.now) / self.rate))
        self.at(self.now + 0.005, self.watch)

    def queue(self, since: float, until: float, part: float) -> float:
        found = sorted(queue for now, queue in self.queues if since <= now < until)
        return found[int(part * len(found))]


class Bulk:
    """A transfer under `Yielding`, with a ping for each `sample_s`."""

    def __init__(self, line: Line, yielding: Yielding | None = None) -> None:
        self.line = line
        self.yielding = yielding or Yielding(line.now)
        self.delivered: list[tuple[float, int]] = []
        self.busy = True
        self._sent = self._acked = 0
        line.at(line.now, self._ping)
        line.at(line.now, self._write)

    def _write(self) -> None:
        line, yielding = self.line, self.yielding
        if not self.busy:
            return
        while yielding.room(under_way := self._sent - self._acked, line.now):
            self._sent += PACKET_BYTES
            yielding.spend(PACKET_BYTES, line.now)
            line.send(line.forth, PACKET_BYTES + HEADERS, self._arrived)
        line.at(min(yielding.next_at(under_way, line.now), line.now + 0.001), self._write)

    def _arrived(self) -> None:
        self.delivered.append((self.line.now, PACKET_BYTES))

    def _ping(self) -> None:
        """A pong acknowledges what left before its ping: it came, or was lost (and sent again)."""
        line, sent = self.line, self._sent
        self.yielding.begin(sent - self._acked, line.now)

        def pong() -> None:
            self._acked = max(self._acked, sent)
            self.yielding.end(line.now)

        def turn() -> None:
            if not line.send(line.back, PING_BYTES, pong):
                line.at(line.now + 0.25, pong)

        if not line.send(line.forth, PING_BYTES, turn):  # sent again, as TCP would
            line.at(line.now + 0.25, turn)
        line.at(line.now + self.yielding.sample_s, self._ping)

    def rate(self, since: float, until: float) -> float:
        """Return the share of the line that it used."""
        got = sum(size for now, size in self.delivered if since <= now < until)
        return got / (until - since) / self.line.rate


class Greedy:
    """A TCP connection of the owner that fills the buffer (Reno: halves after a loss)."""

    def __init__(self, line: Line, until: float, *, back: bool = False) -> None:
        self.line, self.until = line, until
        self.got = 0
        self._window, self._flying, self._threshold = 10.0, 0, 1e9
        self._cut = -1.0
        self._there, self._here = (line.back, line.forth) if back else (line.forth, line.back)
        self._fill()

    def _fill(self) -> None:
        while self._flying < self._window and self.line.now < self.until:
            self._flying += 1
            if not self.line.send(self._there, PACKET_BYTES + HEADERS, self._arrived):
                self.line.at(self.line.now + self.line.rtt, self._lost)

    def _arrived(self) -> None:
        self.got += PACKET_BYTES
        self.line.send(self._here, HEADERS, self._acknowledged)

    def _acknowledged(self) -> None:
        self._flying -= 1
        self._window += 1 if self._window < self._threshold else 1 / self._window
        self._fill()

    def _lost(self) -> None:
        self._flying -= 1
        if self.line.now > self._cut:
            self._cut = self.line.now + self.line.rtt + 0.25
            self._window = self._threshold = max(2.0, self._window / 2)
        self._fill()


def trip(yielding: Yielding, took: float, now: float, under_way: int | None = None) -> None:
    """Complete a round trip now, with a full window or `under_way` bytes in flight."""
    yielding.begin(yielding.window(now) if under_way is None else under_way, now - took)
    yielding.end(now)


def test_bulk_fills_a_home_line_but_not_its_buffer() -> None:
    line = Line()
    bulk = Bulk(line)
    line.watch()
    line.run(35)
    assert bulk.rate(5, 35) > 0.9
    assert line.queue(2, 35, 0.5) < TARGET_S + 0.005
    assert line.queue(2, 35, 0.99) < 1.6 * TARGET_S
    assert line.queue(0, 2, 1 - 1e-9) < 0.1  # the start overshoots, once


def test_without_congestion_control_the_buffer_is_full() -> None:
    """Twin: a window that ignores the queue."""

    class Blind(Yielding):
        def window(self, now: float) -> int:
            return 1 << 20

    line = Line()
    Bulk(line, Blind(0.0))
    line.watch()
    line.run(20)
    assert line.queue(5, 20, 0.5) > 0.2


@pytest.mark.parametrize(
    ("rate", "rtt"),
    [
        (125e3, 0.03),
        *in_ci((1.25e6, 0.1), (5e6, 0.01)),
        pytest.param(12.5e6, 0.2, marks=pytest.mark.long),
    ],
)
def test_bulk_fills_other_lines(rate: float, rtt: float) -> None:
    line = Line(rate, rtt)
    bulk = Bulk(line)
    line.watch()
    line.run(25)
    assert bulk.rate(8, 25) > 0.85
    assert line.queue(8, 25, 0.9) < 2 * TARGET_S + 2 * PACKET_BYTES / rate


def test_bulk_yields_to_the_owner_s_tcp_and_recovers() -> None:
    line = Line()
    bulk = Bulk(line)
    line.run(10)
    owner = Greedy(line, until=30.0)
    line.run(30)
    assert owner.got / 20 / RATE > 0.8
    assert bulk.rate(15, 30) < 0.12
    line.run(40)
    assert bulk.rate(33, 40) > 0.85


def test_a_download_of_the_owner_s_slows_an_upload_but_does_not_stop_it() -> None:
    """The price of counting round trips: the queue on the way back is not ours."""
    line = Line()
    bulk = Bulk(line)
    line.run(10)
    Greedy(line, until=30.0, back=True)
    line.run(30)
    assert 0.5 * FLOOR_RATE < bulk.rate(15, 30) * RATE < 0.5 * RATE
    line.run(40)
    assert bulk.rate(33, 40) > 0.85


def test_a_transfer_that_starts_later_does_not_starve_the_first() -> None:
    line = Line(RATE / 4)
    first = Bulk(line)
    line.run(10)
    second = Bulk(line)
    line.watch()
    line.run(120)
    assert line.queue(70, 120, 0.5) < 3 * TARGET_S
    shares = first.rate(70, 120), second.rate(70, 120)
    assert sum(shares) > 0.85
    assert min(shares) > 0.15


@pytest.mark.long
def test_a_longer_path_is_learnt() -> None:
    """After a change of route, the old measure takes the longer path for a queue."""
    line = Line(RATE / 20)
    bulk = Bulk(line)
    line.run(10)
    line.forth.change(PipeSpec(delay=0.12, rate=RATE / 20, queue=0.25), None)  # 40 to 140 ms
    line.run(60)
    assert bulk.rate(30, 60) < 0.5
    line.run(680)
    assert bulk.rate(650, 680) > 0.85


def test_a_busy_peer_s_late_pongs_do_not_count_as_a_queue() -> None:
    yielding = Yielding(0.0)
    now = 0.0
    for number in range(400):
        now += 0.01
        yielding.room(yielding.window(now), now)
        trip(yielding, RTT + (0.2 if number % 4 == 0 else 0.0), now)
    assert yielding.queue_s == pytest.approx(0, abs=1e-9)
    assert yielding.window(now) > INITIAL_BYTES


def test_pongs_behind_lost_packets_do_not_count_as_a_queue() -> None:
    """Every PONG is late, and the round trips of single packets are short. The twin has none."""

    def grown(yielding: Yielding) -> int:
        now = 0.0
        trip(yielding, RTT, now)
        for _ in range(100):
            now += RTT
            yielding.room(yielding.window(now), now)
            trip(yielding, 2 * RTT, now)
        return yielding.window(now)

    assert grown(Yielding(0.0, packet_rtt=lambda: RTT)) > 100 * INITIAL_BYTES
    assert grown(Yielding(0.0)) <= INITIAL_BYTES


def test_an_unused_window_does_not_grow() -> None:
    yielding = Yielding(0.0)
    for number in range(100):
        yielding.room(0, number * RTT)
        trip(yielding, RTT, number * RTT, 0)
    assert yielding.window(4.0) == INITIAL_BYTES


def test_bounds() -> None:
    yielding = Yielding(0.0)
    now = 0.0
    while now < 40:
        now += RTT
        yielding.room(yielding.window(now), now)
        trip(yielding, RTT, now)
        assert yielding.window(now) <= MOST_BYTES
    for _ in range(200):
        now += 1
        trip(yielding, 1.0, now)
        assert yielding.window(now) >= FLOOR_BYTES
    assert yielding.rate(now) >= 32 * 1024 / 2


def test_after_silence_the_window_starts_again() -> None:
    line = Line()
    bulk = Bulk(line)
    line.run(10)
    before = bulk.yielding.window(10)
    bulk.busy = False
    line.run(20)
    assert bulk.yielding.room(0, 20.0) > 0
    assert INITIAL_BYTES <= bulk.yielding.window(20.0) < 0.6 * before


def test_bytes_leave_at_the_pace_of_the_window() -> None:
    yielding = Yielding(0.0)
    trip(yielding, RTT, RTT)
    now, sent = RTT, 0
    while now < 1.5 * RTT and yielding.window(now) > sent:
        if room := yielding.room(sent, now):
            assert room <= yielding.piece
            yielding.spend(room, now)
            sent += room
        else:
            assert yielding.next_at(sent, now) > now  # or this would not end
            now = yielding.next_at(sent, now)
    assert sent / (now - RTT) == pytest.approx(yielding.rate(now), rel=0.5)


def test_overspent_bytes_are_owed() -> None:
    yielding = Yielding(0.0)
    trip(yielding, RTT, RTT)
    yielding.spend(10_000, RTT)
    assert yielding.room(0, RTT) == 0
    assert yielding.next_at(0, RTT) > RTT + 0.5 * 10_000 / yielding.rate(RTT)


def test_a_full_window_waits_only_for_a_pong() -> None:
    yielding = Yielding(0.0)
    trip(yielding, RTT, RTT)
    assert yielding.next_at(INITIAL_BYTES, RTT) == float("inf")


def test_before_the_first_round_trip() -> None:
    yielding = Yielding(0.0)
    assert yielding.queue_s == 0.0
    assert yielding.room(0, 0.0) == yielding.window(0.0) == INITIAL_BYTES
    assert yielding.room(INITIAL_BYTES, 0.0) == 0
    assert yielding.rate(0.0) == float("inf")


def test_the_shortest_round_trip_is_forgotten_after_ten_minutes() -> None:
    base = BaseDelay()
    base.add(0.01, 0.0)
    for minute in range(1, 10):
        base.add(0.05, 60.0 * minute)
        base.add(0.04, 60.0 * minute + 30)
    assert base.shortest == 0.01
    base.add(0.05, 601.0)
    assert base.shortest == 0.04


def test_a_round_trip_may_take_no_time() -> None:
    """Two ends on one machine, and a clock that is coarser than their round trip."""
    yielding = Yielding(0.0)
    for turn in range(200):
        now = float(turn)
        yielding.begin(MOST_BYTES, now)
        yielding.end(now + (0.5 if turn in (2, 3) else 0.0))  # the start ends by a queue
        assert yielding.window(now) > 0
