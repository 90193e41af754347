"""Varints and protobuf: what goes in comes out, and nothing that arrives raises but a fault."""

import random

import pytest

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p.wire import (
    Message,
    bytes_field,
    number_field,
    prefixed,
    read_uvarint,
    uvarint,
)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 32, (1 << 64) - 1])
def test_numbers_survive(number: int) -> None:
    data = uvarint(number)
    assert read_uvarint(data + b"rest") == (number, len(data))
    assert all(read_uvarint(data[:cut]) is None for cut in range(len(data)))


def test_a_number_without_end_is_a_fault() -> None:
    assert read_uvarint(b"\xff" * 9) is None
    with pytest.raises(Fault, match="bad-varint"):
        read_uvarint(b"\xff" * 10)


def test_messages_survive_as_the_protobuf_library_reads_them() -> None:
    from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status

    theirs = HopMessage(type=HopMessage.STATUS, status=Status.OK)
    theirs.peer.id = b"peer"
    theirs.reservation.expire = 1 << 40
    message = Message(theirs.SerializeToString())
    peer, granted = message.message(2), message.message(3)
    assert peer is not None and granted is not None
    assert (message.number(1), message.number(5)) == (2, 100)
    assert (peer.octets(1, 10), granted.number(1)) == (b"peer", 1 << 40)
    again = HopMessage.FromString(
        number_field(1, 2) + bytes_field(2, bytes_field(1, b"peer")) + number_field(5, 100)
    )
    assert (again.type, again.peer.id, again.status) == (2, b"peer", 100)


def test_absent_fields_are_none_and_the_last_counts() -> None:
    message = Message(number_field(1, 7) + number_field(1, 8))
    assert (message.number(1), message.number(2), message.octets(3, 9)) == (8, None, None)


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # a key without a value
        b"\x12\xff\xff\xff\xff\x7f",  # 34 GB to come
        b"\x0b",  # a group
        b"\x00\x01",  # field 0
        b"\x09\x01",  # 8 bytes promised
        number_field(1, 1) * 65,
    ],
)
def test_what_is_no_message_is_a_fault(data: bytes) -> None:
    with pytest.raises(Fault, match="bad-message"):
        Message(data)


def test_types_and_sizes_are_asked_for() -> None:
    message = Message(number_field(1, 1) + bytes_field(2, b"long"))
    with pytest.raises(Fault):
        message.octets(1, 10)
    with pytest.raises(Fault):
        message.number(2)
    with pytest.raises(Fault):
        message.octets(2, 3)


def test_garbage_raises_nothing_but_faults() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        try:
            message = Message(draw.randbytes(draw.randrange(40)))
            for field in range(1, 6):
                message.number(field)
        except Fault:
            continue


def test_a_prefix_is_the_length() -> None:
    assert prefixed(b"x" * 200) == b"\xc8\x01" + b"x" * 200
