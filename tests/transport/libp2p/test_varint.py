"""Varints: what goes in comes out, and nothing that arrives raises but a fault."""

import pytest

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p.varint import prefixed, read_uvarint, uvarint


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 32, (1 << 64) - 1])
def test_numbers_survive(number: int) -> None:
    data = uvarint(number)
    assert read_uvarint(data + b"rest") == (number, len(data))
    assert all(read_uvarint(data[:cut]) is None for cut in range(len(data)))


def test_a_number_without_end_is_a_fault() -> None:
    assert read_uvarint(b"\xff" * 9) is None
    with pytest.raises(Fault, match="bad-varint"):
        read_uvarint(b"\xff" * 10)


def test_a_prefix_is_the_length() -> None:
    assert prefixed(b"x" * 200) == b"\xc8\x01" + b"x" * 200
