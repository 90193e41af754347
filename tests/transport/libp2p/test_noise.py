"""Noise XX against another implementation of it, and against peers that cheat."""

import importlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p.noise import Handshake, Noise
from shoal.transport.libp2p.package import package

A, B = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)


def entropy(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def pair(**options: Any) -> tuple[Noise, Noise]:
    return (
        Noise(A, initiator=True, entropy=entropy(1), **options),
        Noise(B, initiator=False, entropy=entropy(2)),
    )


def shake(a: Noise, b: Noise) -> None:
    for _ in range(3):
        b.receive(a.outgoing())
        a.receive(b.outgoing())


def test_both_ends_prove_their_peer_ids() -> None:
    a, b = pair(expect=B.peer)
    shake(a, b)
    assert a.established and b.established
    assert (a.peer, b.peer) == (B.peer, A.peer)
    a.send(b"hello" * 40_000)  # more than one message
    assert b.receive(a.outgoing()) == b"hello" * 40_000
    b.send(b"you too")
    assert a.receive(b.outgoing()) == b"you too"


def test_any_fragmentation_will_do() -> None:
    a, b = pair()
    draw = random.Random(3)
    for _ in range(4):
        for near, far in ((a, b), (b, a)):
            data = near.outgoing()
            while data:
                cut = draw.randrange(1, 20)
                far.receive(data[:cut])
                data = data[cut:]
    a.send(b"x" * 1000)
    data, got = a.outgoing(), b""
    for at in range(0, len(data), 7):
        got += b.receive(data[at : at + 7])
    assert got == b"x" * 1000


@pytest.mark.parametrize("initiator", [True, False])
def test_messages_are_those_of_another_implementation(initiator: bool) -> None:
    """`noiseprotocol` reads what we write, at every step, and we read it."""
    library = importlib.import_module("noise.connection")
    keypair = library.Keypair.STATIC
    keys = [bytes([n]) * 32 for n in (1, 2, 3)]
    theirs = library.NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256")
    theirs.set_keypair_from_private_bytes(keypair, keys[2])
    theirs.set_as_responder() if initiator else theirs.set_as_initiator()
    theirs.start_handshake()
    ours = Handshake(initiator=initiator, static=keys[0], ephemeral=keys[1])
    for step in range(3):
        payload = b"payload %d" % step
        if (step % 2 == 0) == initiator:
            assert theirs.read_message(ours.write(step, payload)) == payload
        else:
            assert ours.read(step, bytes(theirs.write_message(payload))) == payload
    send, receive = ours.split()
    for number in range(3):
        assert theirs.decrypt(send.encrypt(b"%d" % number)) == b"%d" % number
        assert receive.decrypt(theirs.encrypt(b"%d" % number)) == b"%d" % number


def test_another_peer_than_expected_is_refused() -> None:
    a, b = pair(expect=A.peer)
    b.receive(a.outgoing())
    with pytest.raises(Fault, match="wrong-peer"):
        a.receive(b.outgoing())
    assert not a.established and a.peer is None


def payload(key: bytes, signature: bytes) -> bytes:
    """NoiseHandshakePayload{identity_key, identity_sig}."""
    message = package().NoiseHandshakePayload(identity_key=key, identity_sig=signature)
    return message.SerializeToString()


class Liar(Noise):
    """Says another's public key, with its own signature."""

    def _payload(self, static_key: bytes) -> bytes:
        signature = self._identity.sign_for_libp2p(b"noise-libp2p-static-key:" + static_key)
        return payload(b"\x08\x01\x12\x20" + B.public_key, signature)


class Replayer(Noise):
    """Says another's key with the signature that this one made over another static key."""

    def _payload(self, static_key: bytes) -> bytes:
        return Noise(B, initiator=False, entropy=entropy(9))._payload(b"k" * 32)


@pytest.mark.parametrize("kind", [Liar, Replayer])
def test_a_key_that_is_not_its_own_is_refused(kind: type[Noise]) -> None:
    a = kind(A, initiator=True, entropy=entropy(1))
    b = Noise(B, initiator=False, entropy=entropy(2))
    with pytest.raises(Fault, match="bad-identity"):
        shake(a, b)


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\x0a\x01k", b"\x12\x01s"])
def test_a_payload_without_a_proof_is_refused(data: bytes) -> None:
    a, b = pair()
    a._payload = lambda static_key: data  # type: ignore[method-assign]
    with pytest.raises(Fault):
        shake(a, b)


def test_a_changed_bit_is_noticed_wherever_it_is() -> None:
    draw = random.Random(4)
    for _ in range(60):
        a, b = pair()
        with pytest.raises(Fault):
            for _ in range(3):
                data = bytearray(a.outgoing())
                if a.established:
                    data[draw.randrange(2, len(data))] ^= 1 << draw.randrange(8)
                b.receive(bytes(data))
                a.receive(b.outgoing())


def test_a_point_of_small_order_is_refused() -> None:
    ours = Handshake(initiator=False, static=b"s" * 32, ephemeral=b"e" * 32)
    ours.read(0, bytes(32))
    with pytest.raises(Fault, match="bad-noise"):
        ours.write(1)


def test_a_handshake_message_may_not_be_long() -> None:
    b = Noise(B, initiator=False, entropy=entropy(2))
    with pytest.raises(Fault, match="bad-noise"):
        b.receive(b"\xff\xff")


def test_garbage_raises_nothing_but_faults() -> None:
    draw = random.Random(5)
    for _ in range(300):
        b = Noise(B, initiator=False, entropy=entropy(2))
        size = draw.randrange(100)
        with pytest.raises(Fault):
            for _ in range(30):
                b.receive(size.to_bytes(2) + draw.randbytes(size))


@pytest.mark.parametrize("kind", ["rsa", "secp256k1"])
def test_keys_of_other_kinds_are_refused_before_a_signature_is_verified(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-libp2p's, as go's and js's, are Ed25519 keys unless they are asked for others."""
    from libp2p.crypto import rsa, secp256k1

    keys = rsa.create_new_key_pair(2048) if kind == "rsa" else secp256k1.create_new_key_pair()
    a, b = pair()

    def signed(static_key: bytes) -> bytes:
        signature = keys.private_key.sign(b"noise-libp2p-static-key:" + static_key)
        return payload(keys.public_key.serialize(), signature)

    a._payload = signed  # type: ignore[method-assign]
    verified = list[bytes]()
    real = package().Ed25519PublicKey.verify

    def verify(key: Any, data: bytes, signature: bytes) -> bool:
        verified.append(key.to_bytes())
        return bool(real(key, data, signature))

    monkeypatch.setattr(package().Ed25519PublicKey, "verify", verify)
    with pytest.raises(Fault, match="bad-identity"):
        shake(a, b)
    assert verified == [B.public_key], "its own is verified, the other's is not"


def test_static_keys_are_the_hosts_entropy() -> None:
    draw = entropy(7)
    expected = X25519PrivateKey.from_private_bytes(entropy(7)(32)).public_key().public_bytes_raw()
    handshake = Handshake(initiator=True, static=draw(32), ephemeral=draw(32))
    assert handshake.static_key == expected
