"""Signed envelopes."""

import msgpack
import pytest

from shoal.transport.errors import TransportError
from shoal.transport.identity import Identity
from shoal.transport.signed import ENVELOPE_OVERHEAD, seal, unseal

ALICE = Identity.from_seed(bytes(range(32)))
BOB = Identity.from_seed(bytes(32))
DOMAIN = "shoal/test/1"


def refused(data: bytes, *, domain: str = DOMAIN, limit: int = 1000) -> str:
    with pytest.raises(TransportError) as caught:
        unseal(domain, data, limit=limit)
    return caught.value.code


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65535, 65536])
def test_round_trip_and_overhead(size: int) -> None:
    data = seal(ALICE, DOMAIN, bytes(size))
    assert unseal(DOMAIN, data, limit=size) == (ALICE.peer, bytes(size))
    assert len(data) <= size + ENVELOPE_OVERHEAD


def test_another_domain_is_refused() -> None:
    assert refused(seal(ALICE, DOMAIN, b"body"), domain="shoal/test/2") == "bad-signature"


def test_every_byte_counts() -> None:
    data = seal(ALICE, DOMAIN, b"body")
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert refused(changed) in ("bad-signature", "bad-envelope")


def test_the_signers_key_cannot_be_swapped() -> None:
    _, signature, body = msgpack.unpackb(seal(ALICE, DOMAIN, b"body"))
    assert refused(msgpack.packb([BOB.public_key, signature, body])) == "bad-signature"


def test_the_body_is_bounded() -> None:
    data = seal(ALICE, DOMAIN, bytes(101))
    assert refused(data, limit=100) == "bad-envelope"  # a few bytes over: by the exact check
    assert refused(seal(ALICE, DOMAIN, bytes(11)), limit=10) == "bad-envelope"
    assert refused(seal(ALICE, DOMAIN, bytes(200)), limit=100) == "too-large"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x00" * 50,
        b"\x91" * 500,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb([]),
        msgpack.packb({}),
        msgpack.packb([ALICE.public_key, bytes(64)]),
        msgpack.packb([ALICE.public_key, bytes(64), b"", b""]),
        msgpack.packb([ALICE.public_key, bytes(64), "text"]),
        msgpack.packb([ALICE.public_key, bytes(64), None]),
        msgpack.packb([ALICE.public_key, bytes(63), b"body"]),
        msgpack.packb([ALICE.public_key[1:], bytes(64), b"body"]),
        msgpack.packb([ALICE.public_key, bytes(64), msgpack.ExtType(5, b"x")]),
        seal(ALICE, DOMAIN, b"body") + b"\x00",
        seal(ALICE, DOMAIN, b"body")[:-1],
    ],
)
def test_garbage_has_a_code(data: bytes) -> None:
    assert refused(data) == "bad-envelope"


def test_exact_bytes_are_signed_not_their_meaning() -> None:
    short, long = msgpack.packb({"a": 1}), b"\x81\xa1a\xcc\x01"
    assert msgpack.unpackb(short) == msgpack.unpackb(long)
    public_key, signature, _ = msgpack.unpackb(seal(ALICE, DOMAIN, short))
    assert refused(msgpack.packb([public_key, signature, long])) == "bad-signature"
