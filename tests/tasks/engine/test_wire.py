"""Tests of frames over a socket pair: inline, as a descriptor, in pieces, and malicious."""

import array
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator

import msgpack
import pytest

from shoal.tasks.engine import defaults
from shoal.tasks.engine.wire import (
    Header,
    SharedPayload,
    WireClosed,
    WireError,
    WorkerChannel,
    read_shared,
)

PREFIX = struct.Struct("!IB3xQ")


class Pair:
    """Our channel, and the other end as a plain socket."""

    def __init__(self) -> None:
        ours, self.raw = socket.socketpair()
        self.channel = WorkerChannel(ours.fileno())
        ours.close()

    def send(self, data: bytes, *descriptors: int) -> None:
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        self.raw.sendmsg([data], ancillary)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.channel.close()
    made.raw.close()


@pytest.fixture
def channels() -> Iterator[tuple[WorkerChannel, WorkerChannel]]:
    ends = socket.socketpair()
    first, second = WorkerChannel(ends[0].fileno()), WorkerChannel(ends[1].fileno())
    for end in ends:
        end.close()
    yield first, second
    first.close()
    second.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))


def frame(header: object, payload: bytes = b"", *, kind: int = 0, size: int = -1) -> bytes:
    packed: bytes = msgpack.packb(header)
    size = len(payload) if size < 0 else size
    return PREFIX.pack(len(packed), kind, size) + packed + payload


def memory(data: bytes) -> int:
    file, path = tempfile.mkstemp()
    os.unlink(path)
    os.write(file, data)
    return file


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 3_000_000])
def test_payloads_arrive_as_sent(channels: tuple[WorkerChannel, WorkerChannel], size: int) -> None:
    ours, theirs = channels
    payload = os.urandom(size)
    before = descriptors()
    ours.put(("word", 1, b"x", None, 2.5), payload)
    ours.put(("next",))
    assert ours.flush()
    frames: list[tuple[Header, memoryview]] = []
    while len(frames) < 2:
        frames += theirs.receive()
    assert frames[0][0] == ("word", 1, b"x", None, 2.5)
    assert bytes(frames[0][1]) == payload
    assert frames[1] == (("next",), memoryview(b""))
    assert descriptors() == before


def test_payloads_are_memory_torch_can_share(channels: tuple[WorkerChannel, WorkerChannel]) -> None:
    ours, theirs = channels
    for size in (8, 70_000):
        ours.put(("big",), bytes(size))
        ours.flush()
        ((_, payload),) = theirs.receive()
        assert not payload.readonly and len(payload) == size


def test_a_full_socket_does_not_block_and_loses_nothing(
    channels: tuple[WorkerChannel, WorkerChannel],
) -> None:
    ours, theirs = channels
    sent = [
        (("n", index), bytes([index % 256]) * (60_000 + 2_000 * (index % 5))) for index in range(60)
    ]
    for header, payload in sent:
        ours.put(header, payload)
    assert not ours.flush()
    received: list[tuple[Header, bytes]] = []
    while len(received) < len(sent):
        ours.flush()
        received += [(header, bytes(payload)) for header, payload in theirs.receive()]
    assert received == sent
    assert ours.flush()
    assert theirs.receive() == []


def test_frames_in_pieces(pair: Pair) -> None:
    data = frame(("a", 1), b"payload") + frame(("b",))
    for index in range(len(data) - 1):
        pair.send(data[index : index + 1])
        got = pair.channel.receive()
        assert len(got) == (index == len(frame(("a", 1), b"payload")) - 1)
    pair.send(data[-1:])
    assert pair.channel.receive() == [(("b",), memoryview(b""))]


def test_the_end_of_the_connection_is_reported(pair: Pair) -> None:
    pair.raw.close()
    with pytest.raises(WireClosed):
        pair.channel.receive()
    pair.channel.put(("x",))
    with pytest.raises(WireClosed):
        pair.channel.flush()


@pytest.mark.parametrize(
    "data",
    [
        PREFIX.pack(defaults.HEADER_BYTES + 1, 0, 0),
        PREFIX.pack(1, 0, defaults.INLINE_BYTES),
        PREFIX.pack(1, 1, defaults.INLINE_BYTES - 1),
        PREFIX.pack(1, 1, defaults.PAYLOAD_BYTES + 1),
        PREFIX.pack(1, 2, 0),
        frame({"a": 1}),
        frame([]),
        frame([1, 2]),
        PREFIX.pack(1, 0, 0) + b"\xc1",
        PREFIX.pack(5, 0, 0) + b"\xdd\x7f\xff\xff\xff",
        frame(("a", msgpack.ExtType(1, b"x"))),
        frame(("a", "x" * 70_000)),
        frame(("a",), kind=1, size=70_000),  # without the descriptor
    ],
)
def test_broken_frames_end_the_connection(pair: Pair, data: bytes) -> None:
    pair.send(data)
    with pytest.raises(WireError):
        pair.channel.receive()


@pytest.mark.parametrize("length", [69_999, 70_001])
def test_a_payload_of_another_size_is_refused(pair: Pair, length: int) -> None:
    before = descriptors()
    descriptor = memory(bytes(length))
    pair.send(frame(("a",), kind=1, size=70_000), descriptor)
    os.close(descriptor)
    with pytest.raises(WireError):
        pair.channel.receive()
    assert descriptors() == before


def test_a_large_payload_is_copied_later_and_leaves_no_descriptor(pair: Pair) -> None:
    before = descriptors()
    for _ in range(2):
        descriptor = memory(b"x" * 70_000)
        pair.send(frame(("a",), kind=1, size=70_000), descriptor)
        os.close(descriptor)
    (_, read), (_, closed) = (*pair.channel.arrived(69_999), *pair.channel.arrived(69_999))
    assert isinstance(read, SharedPayload) and isinstance(closed, SharedPayload)
    assert read.read() == b"x" * 70_000
    closed.close()
    closed.close()  # nothing happens
    assert descriptors() == before


def test_a_descriptor_of_something_else_is_refused(pair: Pair) -> None:
    ends = os.pipe()
    pair.send(frame(("a",), kind=1, size=70_000), ends[0])
    for end in ends:
        os.close(end)
    with pytest.raises(WireError):
        pair.channel.receive()


def test_only_files_are_read() -> None:
    ends = os.pipe()
    with pytest.raises(WireError):
        read_shared(ends[0], 0)
    for end in ends:
        os.close(end)


def test_unexpected_descriptors_are_closed(pair: Pair) -> None:
    before = descriptors()
    descriptor = memory(b"x")
    pair.send(frame(("a",)), descriptor, descriptor)
    os.close(descriptor)
    assert len(pair.channel.receive()) == 1
    pair.channel.close()
    assert descriptors() <= before


def test_frames_that_would_be_refused_are_not_sent(pair: Pair) -> None:
    with pytest.raises(WireError):
        pair.channel.put(("a", "x" * defaults.HEADER_BYTES))
