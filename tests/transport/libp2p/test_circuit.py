"""The messages of circuit relay v2, against the protobufs of py-libp2p."""

import random

import pytest
from libp2p.relay.circuit_v2.pb import circuit_pb2 as theirs

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import circuit as wire
from shoal.transport.libp2p.circuit import CircuitLimit, HopMessage, StopMessage
from shoal.transport.libp2p.package import encode_peer
from tests.transport.libp2p.pipes import OURS, THEIRS


def test_requests() -> None:
    reserve = theirs.HopMessage.FromString(wire.hop_request(wire.RESERVE)[1:])
    assert reserve.type == theirs.HopMessage.RESERVE and not reserve.HasField("peer")
    connect = theirs.HopMessage.FromString(wire.hop_request(wire.CONNECT, OURS.peer)[1:])
    assert (connect.type, connect.peer.id) == (theirs.HopMessage.CONNECT, encode_peer(OURS.peer))
    stop = theirs.StopMessage.FromString(
        wire.stop_connect(OURS.peer, CircuitLimit(120, 131072))[1:]
    )
    assert (stop.type, stop.peer.id) == (theirs.StopMessage.CONNECT, encode_peer(OURS.peer))
    assert (stop.limit.duration, stop.limit.data) == (120, 131072)
    status = theirs.StopMessage.FromString(wire.stop_status(wire.OK)[1:])
    assert (status.type, status.status) == (theirs.StopMessage.STATUS, theirs.Status.OK)


def test_bytes_written_by_hand_from_the_specification() -> None:
    """The package's classes write our messages, so they cannot be the only check of them."""
    peer = encode_peer(THEIRS.peer)
    named = b"\x12\x28\x0a\x26" + peer
    limit = b"\x1a\x06\x08\x78\x10\x80\x80\x08"
    assert wire.hop_request(wire.RESERVE) == b"\x02\x08\x00"
    assert wire.hop_request(wire.CONNECT, THEIRS.peer) == b"\x2c\x08\x01" + named
    assert wire.stop_connect(THEIRS.peer, CircuitLimit(120, 131072)) == (
        b"\x34\x08\x00" + named + limit
    )
    assert wire.stop_status(wire.OK) == b"\x04\x08\x01\x20\x64"
    assert wire.hop_status(wire.NO_RESERVATION) == b"\x05\x08\x02\x28\xcc\x01"
    granted = wire.reservation(77, [b"a", b"b"], b"v")
    assert wire.hop_status(wire.OK, allowance=CircuitLimit(0, 0), reservation=granted) == (
        b"\x17\x08\x02\x1a\x0b\x08\x4d\x12\x01a\x12\x01b\x1a\x01v\x22\x04\x08\x00\x10\x00\x28\x64"
    )


def test_answers() -> None:
    message = theirs.HopMessage(type=theirs.HopMessage.STATUS, status=theirs.Status.NO_RESERVATION)
    assert HopMessage.decode(message.SerializeToString()) == HopMessage(2, None, 204, None)
    message.reservation.expire = 77
    assert HopMessage.decode(message.SerializeToString()).expires == 77
    stop = theirs.StopMessage(type=theirs.StopMessage.CONNECT)
    stop.peer.id = encode_peer(THEIRS.peer)
    assert StopMessage.decode(stop.SerializeToString()) == StopMessage(0, THEIRS.peer, None)


def test_garbage_raises_nothing_but_faults() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        data = draw.randbytes(draw.randrange(30))
        for kind in (HopMessage, StopMessage):
            try:
                kind.decode(b"\x08" + data)
            except Fault as fault:
                assert fault.code in ("bad-message", "bad-varint")


@pytest.mark.parametrize("data", [b"", b"\x08\x03", b"\x12\x00", b"\x0a\x00"])
def test_a_message_without_a_kind_is_none(data: bytes) -> None:
    with pytest.raises(Fault, match="bad-message"):
        HopMessage.decode(data)
