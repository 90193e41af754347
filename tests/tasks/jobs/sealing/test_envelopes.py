"""Envelopes: sizes, keys, places and changes."""

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from shoal.tasks.jobs.sealing import envelopes
from shoal.tasks.jobs.sealing.envelopes import (
    LEAST,
    OVERHEAD,
    Unopened,
    open_for,
    open_under,
    padded_size,
    seal_for,
    seal_under,
)

KEY = X25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
SEED, PLACE, MOST = b"s" * 32, b"here", 2**20


@pytest.mark.parametrize("data", [b"", b"\x80", b"\0\0\x80\0", b"x" * 255, b"y" * 70_000])
def test_what_is_sealed_can_be_opened(data: bytes) -> None:
    assert open_for(KEY, seal_for(PUBLIC, data, PLACE, SEED, MOST), PLACE) == data
    assert open_under(b"secret", seal_under(b"secret", data, PLACE, SEED, MOST), PLACE) == data


def test_another_key_or_place_opens_nothing() -> None:
    other = X25519PrivateKey.from_private_bytes(b"o" * 32)
    asymmetric = seal_for(PUBLIC, b"data", PLACE, SEED, MOST)
    symmetric = seal_under(b"secret", b"data", PLACE, SEED, MOST)
    with pytest.raises(Unopened):
        open_for(other, asymmetric, PLACE)
    with pytest.raises(Unopened):
        open_for(KEY, asymmetric, b"there")
    with pytest.raises(Unopened):
        open_under(b"other", symmetric, PLACE)
    with pytest.raises(Unopened):
        open_under(b"secret", symmetric, b"there")


def of_key(envelope: bytes) -> bytes:
    return open_for(KEY, envelope, PLACE)


def of_secret(envelope: bytes) -> bytes:
    return open_under(b"secret", envelope, PLACE)


@pytest.mark.parametrize(
    ("whole", "opened"),
    [
        (seal_for(PUBLIC, b"data", PLACE, SEED, MOST), of_key),
        (seal_under(b"secret", b"data", PLACE, SEED, MOST), of_secret),
    ],
)
def test_each_changed_bit_and_each_cut_is_noticed(
    whole: bytes, opened: Callable[[bytes], bytes]
) -> None:
    assert opened(whole) == b"data"
    for at in range(len(whole)):
        with pytest.raises(Unopened):
            opened(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Unopened):
            opened(whole[:at])
    with pytest.raises(Unopened):
        opened(whole + b"\0")


def test_a_point_of_low_order_is_no_key() -> None:
    """The result of the exchange would be known to all."""
    with pytest.raises(ValueError):
        seal_for(bytes(32), b"data", PLACE, SEED, MOST)
    with pytest.raises(Unopened):
        open_for(KEY, bytes(32) + bytes(64), PLACE)


def test_messages_of_similar_sizes_have_envelopes_of_one_size() -> None:
    sizes = {len(seal_under(b"k", bytes(size), PLACE, SEED, MOST)) for size in range(LEAST)}
    assert sizes == {LEAST + OVERHEAD - 1}
    many = {padded_size(size, MOST) for size in range(1000, 100_000)}
    assert len(many) < 120
    for size in (300, 1000, 65_537, 900_000):
        assert size < padded_size(size, MOST) <= 1.12 * size + 1


def test_padding_never_exceeds_the_bound() -> None:
    for size in range(MOST - 3000, MOST - OVERHEAD + 1, 7):
        assert len(seal_under(b"k", bytes(size), PLACE, SEED, MOST)) <= MOST


def test_a_message_without_an_end_is_refused() -> None:
    key = envelopes.derived(b"k", SEED, PLACE)
    bare = ChaCha20Poly1305(key).encrypt(bytes(12), bytes(64), PLACE)
    with pytest.raises(Unopened):
        open_under(b"k", SEED + bare, PLACE)
