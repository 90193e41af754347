"""The lane's core: nothing is lost or repeated, whatever the connection does."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.transport import defaults
from shoal.transport.lane import frame as wire
from shoal.transport.lane.frame import PREFIX, Priority, encode_request
from shoal.transport.lane.lane import HANDLERS
from shoal.transport.lane.outbox import OutCall
from shoal.transport.lane.stream import LaneStream
from tests.transport.lane_pair import PRIORITIES, SMALL, Pair, Side, some_bytes


def frame(
    kind: int,
    *,
    ident: int = 0,
    offset: int = 0,
    head: bytes = b"",
    payload: bytes = b"",
    flags: int = 0,
    count: int = 0,
) -> bytes:
    """Return a frame such as a hostile peer might send."""
    return (
        PREFIX.pack(len(head) + len(payload), kind, flags, len(head), count, ident, offset)
        + head
        + payload
    )


def call_frame(ident: int, payload: bytes = b"", **header: object) -> bytes:
    head = encode_request("m", header)
    return frame(wire.CALL, ident=ident, offset=len(payload), head=head, payload=payload)


class Traffic:
    """Random calls, posts and streams over a pair, and the check at the end."""

    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self.pair = pair
        self.rng = rng
        self.calls: list[tuple[Side, OutCall, int, bytes]] = []
        self.posts: dict[tuple[bool, Priority], list[int]] = {}
        self.streams: list[tuple[Side, Side, LaneStream, bytes]] = []
        self.count = 0

    def add(self) -> None:
        side = self.rng.choice((self.pair.a, self.pair.b))
        choice = self.rng.random()
        self.count += 1
        priority = self.rng.choice(PRIORITIES)
        size = self.rng.choice((0, 3, 500, 70_000, 200_000))
        payload = some_bytes(self.rng, size)
        if choice < 0.5:
            call = side.lane.call("m", {"n": self.count}, payload, priority)
            self.calls.append((side, call, self.count, payload))
        elif choice < 0.8:
            side.lane.post("p", {"n": self.count}, payload, priority)
            self.posts.setdefault((side is self.pair.a, priority), []).append(self.count)
        else:
            self._add_stream(side, priority, payload)

    def _add_stream(self, side: Side, priority: Priority, payload: bytes) -> None:
        stream = side.lane.open("s", {}, priority)
        if stream is None:
            return
        stream.write(payload)
        stream.finish()
        side.lane.outbox.schedule(stream)
        other = self.pair.b if side is self.pair.a else self.pair.a
        self.streams.append((side, other, stream, payload))

    def check(self) -> None:
        for side, call, number, payload in self.calls:
            assert side.answer_count[call] == 1
            assert side.answers[call].header == {"n": number}
            assert side.answers[call].payload == payload
        for side, is_a in ((self.pair.a, True), (self.pair.b, False)):
            other = self.pair.b if is_a else self.pair.a
            numbers = [called.header["n"] for called in other.called]
            assert len(numbers) == len(set(numbers)), "executed twice"
            for priority in PRIORITIES:
                came = [
                    called.header["n"]
                    for called in other.called
                    if called.post and called.priority == priority
                ]
                assert came == self.posts.get((is_a, priority), [])
            assert side.ended is None
        for _, other, stream, payload in self.streams:
            assert other.received[stream.ident] == payload


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_or_executed_twice(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(rng=rng)
    traffic = Traffic(pair, rng)
    for _ in range(rng.randint(5, 60)):
        if rng.random() < 0.6:
            traffic.add()
        pair.step(room=rng.choice((1, 1000, 100_000)), most=rng.choice((10, 1000, 300_000)))
        if rng.random() < 0.15:
            pair.cut()
            if rng.random() < 0.5:
                traffic.add()
            pair.attach()
    pair.settle()
    traffic.check()
    assert not pair.a.lane.outbox.waiting
    for side in (pair.a, pair.b):
        side.wire.tick(40.0)  # a ping, whose pong acknowledges the rest
    pair.settle(now=40.0)
    assert (pair.a.lane.held, pair.b.lane.held) == (0, 0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["call", "step", "cut"]), max_size=60), st.randoms())
def test_any_order_of_calls_steps_and_cuts(moves: list[str], rng: random.Random) -> None:
    pair = Pair(rng=rng)
    traffic = Traffic(pair, random.Random(len(moves)))
    for move in moves:
        if move == "call":
            traffic.add()
        elif move == "step":
            pair.step(room=5000, most=4000)
        else:
            pair.cut()
            pair.attach()
    pair.settle()
    traffic.check()


def test_an_unsent_call_is_withdrawn_and_a_sent_one_cancelled() -> None:
    pair = Pair()
    pair.b.mute = True
    unsent = pair.a.lane.call("m", {}, b"x", Priority.BULK)
    pair.a.lane.give_up(unsent)
    pair.settle()
    assert pair.b.called == []
    sent = pair.a.lane.call("m", {}, b"x", Priority.BULK)
    pair.settle()
    pair.a.lane.give_up(sent)
    pair.settle()
    assert pair.b.cancelled == [pair.b.called[0].ident]
    pair.b.lane.reply(pair.b.called[0].ident, {}, b"late", Priority.BULK)
    pair.settle()
    assert pair.a.answers == {}
    assert pair.a.ended is None


def test_a_refusal_reaches_the_caller() -> None:
    pair = Pair()
    pair.b.mute = True
    call = pair.a.lane.call("m", {}, b"", Priority.CONTROL)
    pair.settle()
    pair.b.lane.refuse(pair.b.called[0].ident, "busy", "too \x1b much", Priority.CONTROL)
    pair.settle()
    assert (pair.a.answers[call].code, pair.a.answers[call].message) == ("busy", "too \ufffd much")


# Priorities.


def test_a_token_overtakes_a_bulk_transfer() -> None:
    pair = Pair()
    pair.a.lane.post("bulk", {}, bytes(1 << 20), Priority.BULK)
    pair.a.take(1)
    pair.a.take(1)
    pair.a.lane.post("token", {}, b"t", Priority.ACTIVATION)
    pair.a.lane.post("control", {}, b"c", Priority.CONTROL)
    sent = pair.a.take(1) + pair.a.take(1)
    assert b"token" in sent and b"control" in sent
    assert sent.index(b"control") < sent.index(b"token")
    assert len(sent) < 200


def test_streams_and_messages_of_one_priority_take_turns() -> None:
    pair = Pair(limits=replace(SMALL, stream_window_bytes=1 << 20, link_window_bytes=1 << 21))
    pair.settle()
    for letter in b"AB":
        stream = pair.a.lane.open("s", {}, Priority.BULK)
        assert stream is not None
        stream.write(bytes([letter]) * 300_000)
        pair.a.lane.outbox.schedule(stream)
    pair.a.lane.post("p", {}, b"C" * 300_000, Priority.BULK)
    letters = [pair.a.take(1)[-1:] for _ in range(9)]
    assert letters[::2] == [b"C"] * 5
    assert letters[1::2] == [b"s", b"s", b"A", b"B"]  # two frames open the streams


# Acknowledgement and memory.


def test_acknowledged_frames_are_released() -> None:
    pair = Pair()
    for _ in range(200):
        pair.a.lane.post("p", {}, bytes(1000), Priority.CONTROL)
    pair.settle()
    assert pair.a.lane.outbox.backlog < defaults.ACK_FRAMES * 1200


def test_only_unacknowledged_frames_are_sent_again() -> None:
    pair = Pair()
    call = pair.a.lane.call("m", {}, bytes(50_000), Priority.BULK)
    pair.settle()
    assert call in pair.a.answers
    pair.cut()
    pair.attach()
    assert len(pair.a.take(1 << 20)) < 100  # a ping


@pytest.mark.parametrize("count", [1, 1 << 31])
def test_a_count_of_frames_never_sent_ends_the_link(count: int) -> None:
    side = Side(dialled=False)
    side.attach(0.0)
    side.take_in(frame(wire.ACK, count=count))
    assert side.ended is not None and side.ended.code == "bad-count"


def test_pings_without_reading_cost_nothing() -> None:
    """Twin of the bound on urgent frames: without it 10,000 pongs would wait."""
    side = Side(dialled=False)
    side.attach(0.0)
    side.take_in(frame(wire.PING) * 10_000)
    assert len(side.take(1 << 24)) < 1000


# Streams.


def test_a_reader_is_told_of_the_first_bytes_and_of_the_end() -> None:
    pair = Pair()
    pair.b.reading = False
    mine = pair.a.lane.open("s", {}, Priority.BULK)
    assert mine is not None
    pair.settle()
    (theirs,) = pair.b.streams

    def told(data: bytes) -> int:
        mine.write(data)
        pair.a.lane.outbox.schedule(mine)
        return len(pair.b.receive(pair.a.take(1 << 16)))

    assert told(b"one") == 1 and told(b"two") == 0
    assert pair.b.lane.read(theirs, 100) == b"onetwo"
    assert told(b"three") == 1
    mine.finish()
    assert told(b"") == 1


def test_credit_bounds_what_an_idle_reader_holds() -> None:
    pair = Pair()
    pair.b.reading = False
    streams = [pair.a.lane.open("s", {}, Priority.BULK) for _ in range(4)]
    for stream in streams:
        assert stream is not None
        stream.write(bytes(200_000))
        pair.a.lane.outbox.schedule(stream)
    pair.settle()
    assert [stream.held for stream in pair.b.streams] == [20_000, 20_000, 10_000, 0]
    pair.b.reading = True
    for stream in list(pair.b.streams):
        pair.b.read(stream)
    pair.settle()
    assert [len(pair.b.received[stream.ident]) for stream in pair.b.streams] == [200_000] * 4


@pytest.mark.parametrize("frames", [1, 3])
def test_more_than_the_credit_ends_the_link(frames: int) -> None:
    side = Side(dialled=False)
    side.reading = False
    side.attach(0.0)
    for number in range(1, frames + 1):
        ident = number * 2
        side.take_in(frame(wire.OPEN, ident=ident, head=encode_request("s", {})))
        size = 20_001 if frames == 1 else 20_000  # one stream's window, or the link's
        side.take_in(frame(wire.DATA, ident=ident, payload=bytes(size)))
    assert side.ended is not None and side.ended.code == "credit-exceeded"


def test_unlimited_credit_does_not_cost_unlimited_memory() -> None:
    """Twin: a sender that only obeyed credit would keep all 50 MB for sending again."""
    generous = replace(SMALL, stream_window_bytes=1 << 40, link_window_bytes=1 << 40)
    side = Side(dialled=True, limits=replace(SMALL, backlog_bytes=1 << 20), peer=generous)
    side.attach(0.0)
    stream = side.lane.open("s", {}, Priority.BULK)
    assert stream is not None
    sent = 0
    for _ in range(500):
        stream.write(bytes(100_000))
        side.lane.outbox.schedule(stream)
        sent += len(side.take(1 << 17))
    assert sent < (1 << 20) + (1 << 17)
    side.take_in(frame(wire.ACK, count=10))
    assert len(side.take(1 << 20)) > 400_000


def test_resets_end_both_directions_and_return_credit() -> None:
    pair = Pair()
    pair.b.reading = False
    for _ in range(20):  # more than the link's window in all
        stream = pair.a.lane.open("s", {}, Priority.BULK)
        assert stream is not None
        stream.write(bytes(20_000))
        pair.a.lane.outbox.schedule(stream)
        pair.settle()
        pair.b.lane.reset(pair.b.streams[-1], "enough")
        pair.settle()
        assert stream.failed == "enough"
    assert pair.a.lane.streams == pair.b.lane.streams == {}


def test_a_stream_ends_in_order_both_ways() -> None:
    pair = Pair()
    stream = pair.a.lane.open("s", {"x": 1}, Priority.CONTROL)
    assert stream is not None
    stream.write(b"question")
    stream.finish()
    pair.a.lane.outbox.schedule(stream)
    pair.settle()
    other = pair.b.streams[0]
    assert other.receive_done and pair.b.received[other.ident] == b"question"
    other.write(b"answer")
    other.finish()
    pair.b.lane.outbox.schedule(other)
    pair.settle()
    assert pair.a.received[stream.ident] == b"answer"
    assert pair.a.lane.streams == pair.b.lane.streams == {}


def test_own_streams_are_limited_by_the_peer() -> None:
    pair = Pair()
    opened = [pair.a.lane.open("s", {}, Priority.BULK) for _ in range(SMALL.streams + 1)]
    assert opened[-1] is None and None not in opened[:-1]


# A hostile peer: every mistake is a code.

HOSTILE = {
    "unknown kind": (frame(0x7F), "bad-kind"),
    "a second hello": (frame(wire.HELLO), "bad-kind"),
    "no such priority": (frame(wire.ACK, flags=3), "bad-flags"),
    "payload too large": (PREFIX.pack(65_537, wire.DATA, 0, 0, 0, 2, 0), "frame-too-large"),
    "head too large": (PREFIX.pack(40_000, wire.CALL, 0, 40_000, 0, 1, 0), "frame-too-large"),
    "body of 4 GiB": (PREFIX.pack(0xFFFFFFFF, wire.CALL, 0, 1, 0, 1, 0), "frame-too-large"),
    "head beyond body": (PREFIX.pack(1, wire.CALL, 0, 2, 0, 1, 0), "frame-too-large"),
    "call without method": (frame(wire.CALL, ident=1), "bad-head"),
    "method not text": (frame(wire.CALL, ident=1, head=b"\x02\xff\xfe"), "bad-head"),
    "method cut": (frame(wire.CALL, ident=1, head=b"\x40ab"), "bad-head"),
    "header not a map": (frame(wire.CALL, ident=1, head=b"\x01m\x93\x01\x02\x03"), "bad-head"),
    "header cut": (frame(wire.CALL, ident=1, head=b"\x01m\xdf\xff\xff\xff\xff"), "bad-head"),
    "header with a bomb": (frame(wire.CALL, ident=1, head=b"\x01m" + b"\x91" * 20_000), "bad-head"),
    "int keys": (frame(wire.CALL, ident=1, head=b"\x01m\x81\x01\x01"), "bad-head"),
    "bytes keys": (frame(wire.CALL, ident=1, head=b"\x01m\x81\xc4\x01a\x01"), "bad-head"),
    "timestamp": (
        frame(wire.CALL, ident=1, head=b"\x01m\x81\xa1a\xd6\xff\0\0\0\0"),
        "bad-head",
    ),
    "extension": (frame(wire.CALL, ident=1, head=b"\x01m\x81\xa1a\xc7\x00\x01"), "bad-head"),
    "length that lies": (
        frame(wire.CALL, ident=1, offset=9, head=encode_request("m", {})),
        "bad-length",
    ),
    "message too large": (
        frame(wire.CALL, ident=1, offset=1 << 40, head=encode_request("m", {}), flags=wire.MORE),
        "message-too-large",
    ),
    "nothing more to come": (
        frame(wire.CALL, ident=1, head=encode_request("m", {}), flags=wire.MORE),
        "bad-part",
    ),
    "part of nothing": (frame(wire.PART, ident=1, payload=b"x"), "bad-part"),
    "reply to nothing": (frame(wire.REPLY, ident=1), "bad-id"),
    "refusal of nothing": (frame(wire.REFUSAL, ident=1, head=b"\x01a"), "bad-id"),
    "part of no reply": (frame(wire.PART, ident=1, flags=wire.OF_REPLY), "bad-part"),
    "cancel of nothing": (frame(wire.CANCEL, ident=7), "bad-id"),
    "id far ahead": (call_frame(1 << 63), "bad-id"),
    "our own stream id": (frame(wire.OPEN, ident=3, head=encode_request("s", {})), "bad-id"),
    "data of no stream": (frame(wire.DATA, ident=2), "bad-id"),
    "credit of no stream": (frame(wire.CREDIT, ident=3, offset=1), "bad-id"),
    "reset of no stream": (frame(wire.RESET, ident=2, head=b"\x01a"), "bad-id"),
    "gap in a stream": (
        frame(wire.OPEN, ident=2, head=encode_request("s", {}))
        + frame(wire.DATA, ident=2, offset=5, payload=b"x"),
        "bad-offset",
    ),
    "data after the end": (
        frame(wire.OPEN, ident=2, head=encode_request("s", {}))
        + frame(wire.DATA, ident=2, flags=wire.FIN)
        + frame(wire.DATA, ident=2, payload=b"x"),
        "bad-offset",
    ),
    "too many streams": (
        b"".join(
            frame(wire.OPEN, ident=2 * n, head=encode_request("s", {}))
            for n in range(1, 2 * SMALL.streams + 2)
        ),
        "too-many-streams",
    ),
    "goaway without a code": (frame(wire.GOAWAY), "bad-head"),
    "goaway with a terminal code": (frame(wire.GOAWAY, head=b"\x03\x1b[m"), "bad-head"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_every_protocol_error_ends_the_link_with_its_code(name: str) -> None:
    data, code = HOSTILE[name]
    side = Side(dialled=False)
    side.attach(0.0)
    side.take_in(data)
    assert side.ended is not None
    assert (side.ended.code, side.ended.ours) == (code, True)
    assert side.lane.held < 100_000
    side.take(1 << 20)
    assert side.take(1 << 20) == b""  # the goaway was the last word


def test_an_oversized_frame_is_refused_before_it_is_buffered() -> None:
    side = Side(dialled=False)
    side.attach(0.0)
    side.take_in(PREFIX.pack(1 << 30, wire.CALL, 0, 0, 0, 1, 0)[:28])
    assert side.ended is not None and side.ended.code == "frame-too-large"


def test_two_partial_messages_of_one_priority_end_the_link() -> None:
    side = Side(dialled=False)
    side.attach(0.0)
    for ident in (1, 2):
        side.take_in(
            frame(
                wire.CALL,
                ident=ident,
                offset=100,
                head=encode_request("m", {}),
                payload=b"x",
                flags=wire.MORE,
            )
        )
    assert side.ended is not None and side.ended.code == "bad-part"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_never_raises(data: bytes) -> None:
    side = Side(dialled=False)
    side.attach(0.0)
    side.take_in(data)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(HANDLERS)),
            st.integers(0, 40),
            st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1)),
            st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1)),
            st.sampled_from([b"", b"\x01m", b"\x01m\x80", b"\x01a", b"\xff" * 9]),
            st.binary(max_size=9),
        ),
        max_size=8,
    )
)
def test_hostile_numbers_never_raise(
    frames: list[tuple[int, int, int, int, bytes, bytes]],
) -> None:
    side = Side(dialled=False)
    side.attach(0.0)
    for kind, flags, ident, offset, head, payload in frames:
        side.take_in(
            frame(kind, flags=flags, ident=ident, offset=offset, head=head, payload=payload)
        )
    side.take(1 << 20)
    assert side.lane.held < 3 * SMALL.message_bytes + 100_000


def test_goaway_ends_the_link_by_the_peers_word() -> None:
    pair = Pair()
    pair.a.lane.go_away("closed", "bye")
    pair.settle()
    assert pair.b.ended is not None
    assert (pair.b.ended.code, pair.b.ended.message, pair.b.ended.ours) == ("closed", "bye", False)


# Time.


def test_a_quiet_link_pings_and_measures_its_round_trip() -> None:
    pair = Pair()
    pair.settle(now=0.25)
    assert pair.a.wire.rtt == 0.25
    idle = 0.25 + defaults.IDLE_S
    assert pair.a.wire.tick(0.5) == idle
    pair.a.wire.tick(idle)
    assert pair.a.take(1000) != b""
    gone = idle + defaults.DOUBT_S + defaults.DOUBT_RTTS * 0.25
    assert not pair.a.wire.is_silent(gone - 0.05)
    assert pair.a.wire.is_silent(gone)


def test_the_side_that_dialled_pings_for_both() -> None:
    """Twin: with one patience both would ping, each time, in the same moment."""
    pair = Pair()
    pair.settle()
    pings = {"a": 0, "b": 0}
    for quarter in range(1, int(16 * defaults.IDLE_S) + 5):
        now = quarter / 4
        for name, side in (("a", pair.a), ("b", pair.b)):
            side.wire.tick(now)
            pings[name] += side.lane.outbox.has_output(side.wire)
        pair.settle(now=now)
    assert pings == {"a": 4, "b": 0}


def test_bytes_or_a_pong_prevent_silence() -> None:
    pair = Pair()
    pair.settle()
    pair.a.wire.tick(1.0)
    pair.settle(now=1.1)
    assert not pair.a.wire.is_silent(4.0)  # no ping is out


def test_a_stalled_loop_is_not_the_peers_silence() -> None:
    """Twin: a lane that did not notice its late tick would call the peer silent."""
    pair = Pair()
    pair.settle()
    due = pair.a.wire.tick(0.9)
    pair.a.wire.tick(due)  # pings
    pair.a.take(1000)
    pair.a.wire.tick(due + 30)
    assert not pair.a.wire.is_silent(due + 30)


def test_a_credit_frame_is_cheap_to_handle() -> None:
    """28 bytes must not make us check each of the 128 streams."""
    pair = Pair()
    lane = pair.b.lane
    opens = b"".join(
        frame(wire.OPEN, ident=2 * number, head=encode_request("m", {}), flags=2)
        for number in range(1, 9)
    )
    pair.b.receive(opens)
    looks = 0
    schedule = lane.outbox.schedule

    def look(stream: LaneStream) -> None:
        nonlocal looks
        looks += 1
        schedule(stream)

    lane.outbox.schedule = look  # type: ignore[method-assign]
    pair.b.receive(frame(wire.CREDIT, offset=1 << 40) * 100)
    assert len(lane.streams) == 8 and lane.ended is None
    assert looks == 0
