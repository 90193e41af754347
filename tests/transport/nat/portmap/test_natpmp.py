"""NAT-PMP's bytes: RFC 6886's own layouts, and everything else."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.nat.portmap import natpmp
from shoal.transport.nat.portmap.mapping import Proto
from shoal.transport.nat.portmap.natpmp import PmpAnswer


def test_requests() -> None:
    assert natpmp.encode_address_request() == b"\0\0"
    assert natpmp.encode_map(Proto.UDP, 4001, 4002, 3600) == bytes.fromhex(
        "0001 0000 0fa1 0fa2 00000e10"
    )
    assert natpmp.encode_map(Proto.TCP, 4001, 0, 0)[1] == 2


def test_answers() -> None:
    address = bytes.fromhex("0080 0000 00000007 cb007105")
    assert natpmp.decode(address) == PmpAnswer(None, 0, 7, address="203.0.113.5")
    mapped = bytes.fromhex("0082 0000 00000007 0fa1 0fa2 00000e10")
    answer = natpmp.decode(mapped)
    assert answer == PmpAnswer(Proto.TCP, 0, 7, inside=4001, outside=4002, seconds=3600)
    assert not answer.of_deletion
    deleted = natpmp.decode(struct.pack("!BBHIHHI", 0, 129, 0, 7, 4001, 0, 0))
    assert deleted is not None and deleted.of_deletion


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\x80\0\0",
        bytes.fromhex("0080 0000 00000007 cb0071"),  # an address of 3 bytes
        bytes.fromhex("0081 0000 00000007 0fa1 0fa2"),
        bytes.fromhex("0080 0000 00000007")[:7],
        bytes.fromhex("0180 0000 00000007 cb007105"),  # another version
        bytes.fromhex("0000 0000 00000007 cb007105"),  # a request
        bytes.fromhex("0085 0000 00000007 cb007105"),  # another opcode
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    assert natpmp.decode(data) is None


@pytest.mark.parametrize("size", [8, 10, 16])
def test_refusals_of_any_length_are_in_our_words(size: int) -> None:
    data = (bytes.fromhex("0081 0002 00000007 0fa1") + bytes(6))[:size]
    answer = natpmp.decode(data)
    assert answer is not None and answer.result == 2
    assert answer.inside == (4001 if size >= 10 else 0)
    assert "does not allow it" in answer.words
    other = natpmp.decode(bytes.fromhex("0081 ffff 00000007"))
    assert other is not None and other.words == "refused with code 65535"


@given(st.binary(max_size=64))
def test_anything_else_is_read_without_harm(data: bytes) -> None:
    answer = natpmp.decode(data)
    assert answer is None or answer.words


def test_the_clock_may_be_an_eighth_slow_and_no_more() -> None:
    assert natpmp.is_continued(100, 0, 100) and natpmp.is_continued(98, 0, 100)
    assert natpmp.is_continued(200, 100, 100) and natpmp.is_continued(186, 100, 100)
    assert not natpmp.is_continued(185, 100, 100)
    assert not natpmp.is_continued(0, 5, 100)
    assert natpmp.is_continued(111, 1, 100)
    assert not natpmp.is_continued(112, 1, 100), "this side has slept"
