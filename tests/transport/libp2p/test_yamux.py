"""The muxer: two cores joined, and every limit with the twin that shows what it holds back."""

import random

import pytest

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import defaults
from shoal.transport.libp2p.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER,
    PING,
    RST,
    SYN,
    WINDOW,
    ChannelOpened,
    Event,
    Yamux,
    YamuxChannel,
)

MIB = 1 << 20


def core(*, dialled: bool = False, streams: int = 64, held: int = 32 * MIB) -> Yamux:
    return Yamux(dialled=dialled, streams=streams, held=held)


def frame(kind: int, flags: int, stream: int, size: int, body: bytes = b"") -> bytes:
    return HEADER.pack(0, kind, flags, stream, size) + body


def opened(events: list[Event]) -> list[YamuxChannel]:
    return [event.stream for event in events if isinstance(event, ChannelOpened)]


def joined() -> tuple[Yamux, YamuxChannel, Yamux, YamuxChannel]:
    a, b = core(dialled=True), core()
    near = a.open()
    (far,) = opened(b.receive(a.outgoing(MIB)))
    a.receive(b.outgoing(MIB))
    return a, near, b, far


def test_a_stream_carries_bytes_and_ends_both_ways() -> None:
    a, near, b, far = joined()
    assert near.write(b"hello") == 5
    near.end()
    b.receive(a.outgoing(MIB))
    assert (far.read(10), far.read_done) == (b"hello", True)
    assert far.write(b"back") == 4
    far.end()
    a.receive(b.outgoing(MIB))
    assert (near.read(10), near.read_done) == (b"back", True)
    assert not a.channels and not b.channels


def test_any_fragmentation_and_many_streams() -> None:
    draw = random.Random(1)
    a, b = core(dialled=True), core()
    sent: dict[int, bytes] = {}
    got: dict[int, bytes] = {}
    ours = [a.open() for _ in range(5)]
    theirs: list[YamuxChannel] = []
    for _ in range(400):
        channel = draw.choice(ours)
        data = draw.randbytes(draw.randrange(20_000))
        taken = channel.write(data)
        sent[channel.ident] = sent.get(channel.ident, b"") + data[:taken]
        theirs += opened(b.receive(a.outgoing(draw.randrange(1, 30_000))))
        for far in theirs:
            got[far.ident] = got.get(far.ident, b"") + far.read(draw.randrange(30_000))
        a.receive(b.outgoing(draw.randrange(200)))
    while a.unsent or any(far.unread for far in theirs):
        b.receive(a.outgoing(MIB))
        for far in theirs:
            got[far.ident] += far.read(MIB)
        a.receive(b.outgoing(MIB))
    assert got == sent and sum(map(len, sent.values())) > MIB
    assert b.held == 0


def test_a_sender_stops_at_its_credit_and_goes_on_when_more_comes() -> None:
    a, near, b, far = joined()
    total = 0
    while taken := near.write(bytes(50_000)):
        total += taken
        b.receive(a.outgoing(MIB))
    assert total == defaults.YAMUX_WINDOW_BYTES
    far.read(defaults.YAMUX_WINDOW_BYTES // 2 - 1)
    a.receive(b.outgoing(MIB))
    assert near.write(b"x") == 0
    far.read(1)
    a.receive(b.outgoing(MIB))
    assert near.write(bytes(MIB)) == defaults.YAMUX_WINDOW_BYTES // 2


def test_bytes_that_wait_to_leave_are_bounded() -> None:
    a = core(dialled=True)
    taken = sum(a.open().write(bytes(100_000)) for _ in range(20))
    assert taken < a.unsent < defaults.UNSENT_BYTES + 10_000


def test_bytes_over_the_window_are_a_fault() -> None:
    b = core()
    b.receive(frame(WINDOW, SYN, 1, 0))
    whole = frame(DATA, 0, 1, 1 << 16, bytes(1 << 16))
    for _ in range(4):
        b.receive(whole)
    with pytest.raises(Fault, match="window-exceeded"):
        b.receive(frame(DATA, 0, 1, 1, b"x"))


def test_a_frame_longer_than_any_window_is_a_fault_at_once() -> None:
    with pytest.raises(Fault, match="window-exceeded"):
        core().receive(frame(DATA, SYN, 1, (1 << 32) - 1))
    b = core()
    with pytest.raises(Fault, match="window-exceeded"):  # also for a closed stream
        b.receive(frame(DATA, 0, 1, MIB))


def test_what_is_held_for_all_streams_is_bounded() -> None:
    piece = bytes(100_000)
    b, twin = core(held=500_000), core()
    for stream in range(1, 11, 2):
        b.receive(frame(DATA, SYN, stream, len(piece), piece))
        twin.receive(frame(DATA, SYN, stream, len(piece), piece))
    with pytest.raises(Fault, match="held-exceeded"):
        b.receive(frame(DATA, SYN, 11, len(piece), piece))
    twin.receive(frame(DATA, SYN, 11, len(piece), piece))
    assert twin.held == 600_000


def test_a_stream_too_many_is_reset_and_a_place_becomes_free() -> None:
    b = core(streams=3)
    for stream in (1, 3, 5):
        assert opened(b.receive(frame(WINDOW, SYN, stream, 0)))
    b.outgoing(MIB)
    assert not opened(b.receive(frame(WINDOW, SYN, 7, 0)))
    assert b.outgoing(MIB) == frame(WINDOW, RST, 7, 0)
    b.receive(frame(DATA, 0, 7, 5, b"early"))  # what it sent before it knew is dropped
    b.receive(frame(WINDOW, RST, 3, 0))
    assert opened(b.receive(frame(WINDOW, SYN, 9, 0)))


def test_ten_thousand_streams_cost_sixty_four() -> None:
    b = core()
    for stream in range(1, 20_001, 2):
        b.receive(frame(WINDOW, SYN, stream, 0))
        b.outgoing(MIB)
    assert len(b.channels) == 64 and b.asked == 10_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x01" + bytes(11),  # another version
        frame(4, 0, 0, 0),
        frame(WINDOW, SYN, 2, 0),  # our own parity
        frame(WINDOW, SYN, 0, 0),
        frame(WINDOW, SYN, 1, 0) * 2,
        frame(WINDOW, SYN, 1, (1 << 32) - 1),  # more credit than there can be
        frame(DATA, SYN | FIN, 1, 0) + frame(DATA, 0, 1, 1, b"x"),  # bytes after the end
    ],
)
def test_frames_that_make_no_sense_are_faults(data: bytes) -> None:
    with pytest.raises(Fault, match="bad-yamux"):
        core().receive(data)


def test_pings_are_answered_and_counted() -> None:
    a, b = core(dialled=True), core()
    a.ping()
    b.receive(a.outgoing(MIB))
    a.receive(b.outgoing(MIB))
    assert a.pongs == 1
    b.receive(frame(PING, SYN, 0, 77))
    assert b.outgoing(MIB) == frame(PING, ACK, 0, 77)


def test_a_reset_ends_both_directions_and_drops_what_is_unread() -> None:
    a, near, b, far = joined()
    near.write(b"lost")
    b.receive(a.outgoing(MIB))
    near.reset()
    b.receive(a.outgoing(MIB))
    assert far.failed and not far.unread and b.held == 0
    assert far.write(b"x") == 0 and not a.channels and not b.channels


def test_going_away_is_noticed() -> None:
    b = core()
    b.receive(frame(GO_AWAY, 0, 0, 0))
    assert b.leaving


def test_garbage_raises_nothing_but_faults() -> None:
    draw = random.Random(2)
    for _ in range(500):
        b = core()
        try:
            for _ in range(20):
                header = HEADER.pack(
                    0, draw.randrange(5), draw.randrange(16), draw.randrange(6), draw.randrange(40)
                )
                b.receive(header + draw.randbytes(draw.randrange(50)))
        except Fault:
            continue
