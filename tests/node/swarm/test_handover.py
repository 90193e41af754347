"""Group credentials for a joining node: typed and bounded, whichever peer sends them."""

import json
from typing import Any

import msgpack
import pytest

from shoal.node.swarm.handover import HANDED_BYTES, Handed, open_handed, read_handed
from shoal.transport.identity import Identity

FOUNDER = Identity.from_seed(b"f" * 32).peer
HANDED = Handed(FOUNDER, b"n" * 16, ((2, b"2" * 32), (1, b"1" * 32)))


def test_credentials_round_trip_through_file_and_payload() -> None:
    assert read_handed(HANDED.as_file()) == HANDED
    assert open_handed(HANDED.as_payload()) == HANDED
    assert "32" not in repr(HANDED) and str(b"2" * 32) not in repr(HANDED)


def packed(*fields: Any) -> bytes:
    data: bytes = msgpack.packb(fields)
    return data


KEYS = [[1, b"1" * 32]]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        packed(FOUNDER, b"n" * 16),
        packed("12D3", b"n" * 16, KEYS),
        packed(FOUNDER.encode(), b"n" * 16, KEYS),
        packed(FOUNDER, b"n" * 15, KEYS),
        packed(FOUNDER, b"n" * 16, []),
        packed(FOUNDER, b"n" * 16, KEYS * 65),
        packed(FOUNDER, b"n" * 16, [[1, b"short"]]),
        packed(FOUNDER, b"n" * 16, [[True, b"1" * 32]]),
        packed(FOUNDER, b"n" * 16, [[0, b"1" * 32]]),
        packed(FOUNDER, b"n" * 16, [[2**33, b"1" * 32]]),
        packed(FOUNDER, b"n" * 16, [{}]),
        packed(FOUNDER, b"n" * HANDED_BYTES, KEYS),
    ],
)
def test_invalid_payload_is_refused(payload: bytes) -> None:
    assert open_handed(payload) is None


@pytest.mark.parametrize(
    "change", [{"nonce": "zz"}, {"keys": {}}, {"keys": [[1]]}, {"founder": []}]
)
def test_damaged_file_is_refused(change: dict[str, Any]) -> None:
    assert read_handed(json.dumps(json.loads(HANDED.as_file()) | change).encode()) is None
