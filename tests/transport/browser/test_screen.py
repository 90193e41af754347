"""Which SCTP packets reach aiortc. Each attack has its twin: nearly the same, and in order."""

import struct

import pytest

from shoal.transport.browser import defaults
from shoal.transport.browser.screen import (
    Breach,
    Screen,
    is_application_data,
    is_one_record,
)

BINARY = 53


def packet(*chunks: bytes) -> bytes:
    return struct.pack(">HHII", 5000, 5000, 1, 0) + b"".join(chunks)


def chunk(kind: int, body: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">BBH", kind, flags, len(body) + 4) + body + bytes(-len(body) % 4)


def data(tsn: int = 11, *, stream: int = 0, protocol: int = BINARY, flags: int = 3) -> bytes:
    return chunk(0, struct.pack(">IHHI", tsn, stream, 0, protocol) + b"payload", flags)


def sack(*gaps: tuple[int, int], duplicates: int = 0) -> bytes:
    body = struct.pack(">IIHH", 1, 1000, len(gaps), duplicates)
    body += b"".join(struct.pack(">HH", *gap) for gap in gaps) + bytes(4 * duplicates)
    return chunk(3, body)


def parameter(kind: int, body: bytes, size: int | None = None) -> bytes:
    length = len(body) + 4 if size is None else size
    return struct.pack(">HH", kind, length) + body + bytes(-len(body) % 4)


def admits(
    data: bytes,
    screen: Screen | None = None,
    *,
    established: bool = True,
    received: int | None = 10,
    room: int = 100_000,
    unread: int = 0,
) -> bool:
    return (screen or Screen()).admits(
        data, established=established, received=received, room=room, unread=unread
    )


INIT = bytes(16)


@pytest.mark.parametrize(
    "body",
    [
        packet(data()),
        packet(data(), data(12), sack()),
        packet(sack((2, 3), (5, 9), duplicates=3)),
        packet(chunk(4, parameter(1, b"heartbeat"))),
        packet(chunk(6)),
        packet(chunk(6, parameter(12, b"reason"))),
        packet(chunk(7, bytes(4))),
        packet(chunk(10, b"cookie")),
        packet(chunk(11)),
        packet(chunk(130, parameter(13, bytes(14)))),
        packet(chunk(130, parameter(16, bytes(8)))),
        packet(chunk(0x84, b"padding")),
    ],
)
def test_what_browsers_send_goes_through(body: bytes) -> None:
    assert admits(body)


def test_an_association_begins() -> None:
    beginning = packet(chunk(1, INIT + parameter(0xC000, b"") + parameter(0x8008, b"\xc0\x82")))
    assert admits(beginning, established=False, received=None)
    assert admits(packet(chunk(2, INIT + parameter(7, b"cookie"))), established=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(12),
        bytes(13),
        packet() + b"\x00\x00\x00",
        packet(b"\0\0\0\0"),  # a chunk of length 0
        packet(b"\0\0\0\x03"),
        packet(data()[:-8]),
        packet(struct.pack(">BBH", 3, 0, 60000)),
        packet(*[chunk(11)] * (defaults.CHUNKS + 1)),
        bytes(defaults.PACKET_BYTES + 1),
        packet(chunk(0, bytes(12))),  # data without any
        packet(data(stream=1)),
        packet(data(protocol=50)),  # a message that opens channels
        packet(data(protocol=51)),  # text
        packet(data(flags=3 | 4)),  # unordered
        packet(chunk(3, bytes(11))),
        packet(sack() + sack()),
        packet(sack((0, 1))),
        packet(sack((3, 2))),
        packet(sack((1, 5), (5, 6))),
        packet(sack((1, defaults.SACK_SPAN + 1))),
        packet(sack(*[(1, 65535)] * 280)),  # 19 million steps
        packet(chunk(3, struct.pack(">IIHH", 1, 1, 5, 0))),
        packet(chunk(7, bytes(3))),
        packet(chunk(192, bytes(8))),
        packet(chunk(4, parameter(1, b"", size=0))),  # an endless loop in aiortc
        packet(chunk(4, parameter(1, b"", size=3))),
        packet(chunk(4, parameter(1, b"", size=100))),
        packet(chunk(4, b"\0")),
        packet(chunk(4, parameter(1, b"") * 17)),
        packet(chunk(4) + chunk(4)),
        packet(chunk(6, parameter(0, b"", size=0))),
        packet(chunk(9, parameter(0, b"", size=0))),
        packet(chunk(130, parameter(0, b"", size=0))),
        packet(chunk(130, parameter(13, bytes(11)))),
        packet(chunk(130, parameter(13, bytes(13)))),
        packet(chunk(130, parameter(16, bytes(7)))),
        packet(chunk(130, parameter(17, bytes(4)))),
        packet(chunk(1, bytes(15))),
        packet(chunk(1, INIT + parameter(0, b"", size=0))),
        packet(chunk(1, INIT), chunk(11)),
        packet(chunk(2, bytes(15))),
    ],
)
def test_what_no_browser_sends_is_a_breach(body: bytes) -> None:
    for established in (False, True):
        with pytest.raises(Breach):
            admits(body, established=established)


def test_every_cut_of_a_packet_is_judged_and_none_fails() -> None:
    whole = packet(data(), sack((2, 3)), chunk(4, parameter(1, b"heartbeat")))
    for size in range(len(whole)):
        for at in range(0, size, 7):
            body = bytearray(whole[:size])
            body[at] ^= 0xFF
            try:
                admits(bytes(body))
            except Breach:
                continue


def test_a_late_init_is_dropped_and_many_are_a_breach() -> None:
    screen = Screen()
    for _ in range(16):
        assert not admits(packet(chunk(1, INIT)), screen)
    assert screen.dropped == 16
    with pytest.raises(Breach):
        admits(packet(chunk(1, INIT)), screen)


def test_data_outside_of_the_window_is_dropped() -> None:
    received = 0xFFFFFFF0  # numbers wrap around
    inside = (received + defaults.TSN_WINDOW) % (1 << 32)
    assert admits(packet(data(inside)), received=received)
    assert not admits(packet(data((inside + 1) % (1 << 32))), received=received)
    assert admits(packet(data(received - 5)), received=received)  # known: acknowledged again
    assert not admits(packet(data(12)), room=-(1 << 20))  # more than the window
    assert admits(packet(data(11)), room=-(1 << 20))  # but for the one that frees the others
    assert not admits(
        packet(data(11)), unread=defaults.WINDOW_BYTES
    )  # unless the reader is too slow
    assert not admits(packet(data()), received=None)  # before there is an association


def record(kind: int, size: int) -> bytes:
    return struct.pack(">BHHHIH", kind, 0xFEFD, 1, 0, 1, size) + bytes(size)


def test_one_record_in_a_datagram() -> None:
    assert is_one_record(record(23, 50))
    assert not is_one_record(record(23, 50) + record(23, 1))
    assert not is_one_record(record(23, 50)[:-1])
    assert not is_one_record(b"\x17")
    assert is_application_data(record(23, 5)) and not is_application_data(record(22, 5))
    assert not is_application_data(b"")
