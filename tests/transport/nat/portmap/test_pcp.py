"""PCP's bytes: RFC 6887's own layouts, and everything else."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.nat.portmap import pcp
from shoal.transport.nat.portmap.mapping import Proto
from shoal.transport.nat.portmap.pcp import PcpAnswer

NONCE = bytes(range(12))
OWN = bytes(10) + b"\xff\xff\xc0\xa8\x01\x02"
OUTER = bytes(10) + b"\xff\xff\xcb\x00\x71\x05"


def answer(opcode: int = 129, result: int = 0, seconds: int = 3600, body: bytes = b"") -> bytes:
    return struct.pack("!BBBBII12x", 2, opcode, 0, result, seconds, 7) + body


def mapped(proto: int = 6, nonce: bytes = NONCE) -> bytes:
    return struct.pack("!12sB3xHH16s", nonce, proto, 4001, 4002, OUTER)


def test_requests() -> None:
    head = struct.pack("!BBHI16s", 2, 0, 0, 0, OWN)
    assert pcp.encode_announce("192.168.1.2") == head
    request = pcp.encode_map("192.168.1.2", NONCE, Proto.UDP, 4001, 4002, 3600)
    assert len(request) == 60 and request[:24] == struct.pack("!BBHI16s", 2, 1, 0, 3600, OWN)
    anywhere = bytes(10) + b"\xff\xff" + bytes(4)
    assert request[24:] == struct.pack("!12sB3xHH16s", NONCE, 17, 4001, 4002, anywhere)
    assert pcp.encode_announce("2001:db8::1")[8:10] == b"\x20\x01"


def test_answers() -> None:
    found = pcp.decode(answer(body=mapped()))
    assert found == PcpAnswer(pcp.MAP, 0, 3600, 7, NONCE, Proto.TCP, 4001, 4002, "203.0.113.5")
    assert pcp.decode(answer(128, seconds=0)) == PcpAnswer(pcp.ANNOUNCE, 0, 0, 7)
    deleted = pcp.decode(answer(seconds=0, body=mapped()))
    assert deleted is not None and deleted.of_deletion


@pytest.mark.parametrize(
    "data",
    [
        b"",
        answer()[:23],
        answer() + b"\0",  # not a multiple of 4
        answer(),  # MAP without its body
        answer(body=mapped()) + bytes(1100),  # longer than a message can be
        answer(1, body=mapped()),  # a request
        answer(130, body=mapped()),  # PEER, which we never ask
        answer(body=mapped(132)),  # SCTP
        b"\x01" + answer(128)[1:],  # another version
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    assert pcp.decode(data) is None


def test_refusals_are_in_our_words() -> None:
    for code, words in ((2, "does not allow it"), (12, "NAT before it"), (99, "code 99")):
        found = pcp.decode(answer(result=code, body=mapped()))
        assert found is not None and words in found.words and not found.of_deletion


@given(st.binary(max_size=120))
def test_anything_else_is_read_without_harm(data: bytes) -> None:
    for each in data, b"\x02\x81" + data, b"\x02\x80" + data:
        found = pcp.decode(each)
        assert found is None or found.words


def test_the_clock_may_differ_by_a_sixteenth() -> None:
    assert pcp.is_continued(100, 0, 100) and pcp.is_continued(99, 1, 100)
    assert not pcp.is_continued(98, 0, 100), "time does not go backwards"
    assert pcp.is_continued(200, 100, 100) and pcp.is_continued(194, 100, 100)
    assert not pcp.is_continued(191, 100, 100)
    assert not pcp.is_continued(300, 100, 100), "nor does it jump"
