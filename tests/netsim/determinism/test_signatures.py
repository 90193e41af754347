"""Signatures that all hosts check."""

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from shoal.netsim.determinism import signatures
from shoal.netsim.determinism.signatures import SharedChecks
from shoal.netsim.world import World

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
RAW = KEY.public_key().public_bytes_raw()


class Loads:
    """Counts the keys that are loaded for a real check."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, raw: bytes) -> Ed25519PublicKey:
        self.count += 1
        return Ed25519PublicKey.from_public_bytes(raw)


def test_a_valid_signature_is_checked_once() -> None:
    checks = SharedChecks(loads := Loads())
    for _ in range(3):
        checks.key(RAW).verify(KEY.sign(b"data"), b"data")
    assert loads.count == 1


@pytest.mark.parametrize(
    ("signature", "data"),
    [
        (KEY.sign(b"data"), b"datb"),
        (KEY.sign(b"data")[:-1] + b"\0", b"data"),
        (KEY.sign(b"data")[:-1], KEY.sign(b"data")[-1:] + b"data"),
        (b"", b"data"),
    ],
)
def test_an_invalid_signature_is_refused_each_time(signature: bytes, data: bytes) -> None:
    checks = SharedChecks(loads := Loads())
    checks.key(RAW).verify(KEY.sign(b"data"), b"data")
    for _ in range(2):
        with pytest.raises(InvalidSignature):
            checks.key(RAW).verify(signature, data)
    assert loads.count == 3


def test_another_key_does_not_share_a_result() -> None:
    checks = SharedChecks(Ed25519PublicKey.from_public_bytes)
    checks.key(RAW).verify(KEY.sign(b"data"), b"data")
    other = Ed25519PrivateKey.from_private_bytes(b"\1" * 32).public_key().public_bytes_raw()
    with pytest.raises(InvalidSignature):
        checks.key(other).verify(KEY.sign(b"data"), b"data")


def test_a_key_of_the_wrong_size_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SharedChecks(Ed25519PublicKey.from_public_bytes).key(RAW[:-1])


def test_few_results_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "REMEMBERED", 2)
    checks = SharedChecks(loads := Loads())
    for data in (b"1", b"2", b"3", b"3", b"1"):
        checks.key(RAW).verify(KEY.sign(data), data)
    assert loads.count == 4


def test_a_run_shares_results_and_ends_with_them() -> None:
    async def main() -> object:
        shared = Ed25519PublicKey.from_public_bytes(RAW)
        assert shared.public_bytes_raw() == RAW  # the rest of the key's interface
        return shared

    assert isinstance(World(1).run(main), signatures.SharedKey)
    assert not isinstance(Ed25519PublicKey.from_public_bytes(RAW), signatures.SharedKey)
