"""Reading and writing of the fact with an author's vouches."""

import msgpack
import pytest

from shoal.state import defaults
from shoal.state.replication.vouches import read_vouches, write_vouches

KEYS = [bytes([number]) * 32 for number in range(100)]


def test_written_facts_are_read() -> None:
    written = msgpack.packb(write_vouches(reversed(KEYS[:3])))
    assert read_vouches(written) == KEYS[:3]
    assert len(read_vouches(msgpack.packb(write_vouches(KEYS)))) == defaults.AUTHOR_VOUCHED


@pytest.mark.parametrize(
    "value",
    [None, b"", b"\xc1", b"\x01", b"\x81\xa4keys\x07", b"\x81\xa4keys\x91\x07", b"\x91" * 9999],
)
def test_a_malformed_list_vouches_for_no_author(value: bytes | None) -> None:
    assert read_vouches(value) == []


def test_malformed_keys_in_a_list_are_skipped() -> None:
    mixed = [KEYS[0], b"short", "text" * 8, 7, None, KEYS[1]]
    assert read_vouches(msgpack.packb({"keys": mixed})) == KEYS[:2]
    assert read_vouches(msgpack.packb({"keys": [0] * 1025})) == []
