"""Identities, peer ids, signatures, the key file."""

from pathlib import Path

import pytest

from shoal.transport.errors import HostError, TransportError
from shoal.transport.host.real import RealHost
from shoal.transport.identity import (
    Identity,
    PeerId,
    base58_decode,
    base58_encode,
    load_or_create_identity,
    parse_peer_id,
    peer_id_of,
    public_key_of,
    verify,
    verify_raw,
)

ALICE = Identity.from_seed(bytes(range(32)))
BOB = Identity.from_seed(bytes(32))


@pytest.mark.parametrize(
    ("data", "text"),
    [  # Bitcoin's base58 test vectors (src/test/data/base58_encode_decode.json)
        ("", ""),
        ("61", "2g"),
        ("73696d706c792061206c6f6e6720737472696e67", "2cFupjhnEsSn59qHXstmK2ffpLv2"),
        (
            "00eb15231dfceb60925886b67d065299925915aeb172c06647",
            "1NS17iag9jJgTHD1VXjvLCEnZuQ3rJDE9L",
        ),
        ("00000000000000000000", "1111111111"),
    ],
)
def test_base58(data: str, text: str) -> None:
    assert base58_encode(bytes.fromhex(data)) == text
    assert base58_decode(text) == bytes.fromhex(data)


def test_base58_refuses_other_letters() -> None:
    for text in ("0", "O", "I", "l", "a b", "é"):
        with pytest.raises(ValueError):
            base58_decode(text)


def test_peer_id_is_libp2ps() -> None:
    # The key of the libp2p TLS specification's first test certificate.
    key = bytes.fromhex("a77f1d92fedb59dddaea5a1c4abd1ac2fbde7d7b879ed364501809923d7c11b9")
    peer = peer_id_of(key)
    assert peer == "12D3KooWM6CgA9iBFZmcYAHA6A2qvbAxqfkmrYiRQuz3XEsk4Ksv"
    assert public_key_of(peer) == key
    assert parse_peer_id(peer) == peer


def test_rfc8032_key() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert Identity.from_seed(seed).public_key.hex() == public


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12D3KooW",
        ALICE.peer[:-1],
        ALICE.peer + "1",
        ALICE.peer[:-1] + "0",
        "1" + ALICE.peer[:-1],
        "QmfXbAwNjJLXfesgztEHe8HwgVDCMMpZ9Eax1HYq6hn9uE",  # an ECDSA key's
        "16Uiu2HAkutTMoTzDw1tCvSRtu6YoixJwS46S1ZFxW8hSx9fWHiPs",  # a secp256k1 key's
        "z" * 52,
        "1" * 1_000_000,
    ],
)
def test_bad_peer_ids(text: str) -> None:
    with pytest.raises(TransportError) as caught:
        parse_peer_id(text)
    assert caught.value.code == "bad-peer-id"
    assert len(caught.value.message) < 200


def test_long_text_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(text: str) -> bytes:
        raise AssertionError("decoding takes quadratic time")

    monkeypatch.setattr("shoal.transport.identity.base58_decode", decode)
    with pytest.raises(TransportError):
        parse_peer_id("z" * 1_000_000)


def test_a_signature_covers_domain_bytes_and_signer() -> None:
    signature = ALICE.sign("shoal/test/1", b"data")
    assert verify(ALICE.peer, "shoal/test/1", b"data", signature)
    assert not verify(ALICE.peer, "shoal/test/2", b"data", signature)
    assert not verify(ALICE.peer, "shoal/test/1", b"datb", signature)
    assert not verify(BOB.peer, "shoal/test/1", b"data", signature)
    assert not verify(ALICE.peer, "shoal/test/1", b"data", signature[:-1])
    assert not verify(ALICE.peer, "shoal/test/1", b"data", b"")


def test_a_byte_cannot_move_between_domain_and_data() -> None:
    signature = ALICE.sign("shoal/a", b"bc")
    assert not verify(ALICE.peer, "shoal/ab", b"c", signature)
    assert not verify(ALICE.peer, "shoal/", b"abc", signature)


def test_libp2p_and_our_signatures_do_not_mix() -> None:
    data = b"libp2p-tls-handshake:key"
    signature = ALICE.sign_for_libp2p(data)
    assert verify_raw(ALICE.public_key, data, signature)
    assert not verify(ALICE.peer, "libp2p-tls-handshake:", b"key", signature)


def test_the_seed_never_shows() -> None:
    assert ALICE.seed.hex() not in repr(ALICE) and repr(ALICE.seed) not in repr(ALICE)


@pytest.mark.trio
async def test_an_identity_is_created_once_and_stored(tmp_path: Path) -> None:
    host = RealHost()
    folder = tmp_path / "data"
    first = await load_or_create_identity(host, folder)
    assert (await load_or_create_identity(host, folder)) == first
    assert host.files.mode(folder / "identity.key") == 0o600
    assert first.peer != (await load_or_create_identity(host, tmp_path / "other")).peer


@pytest.mark.trio
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
async def test_a_file_that_other_users_can_access_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "it's here"
    await load_or_create_identity(RealHost(), folder)
    (folder / "identity.key").chmod(mode)
    with pytest.raises(HostError) as caught:
        await load_or_create_identity(RealHost(), folder)
    quoted = str(folder / "identity.key").replace("'", "'\"'\"'")
    assert caught.value.hint == f"`chmod 600 '{quoted}'`"
    assert f"{mode:04o}" in caught.value.message


def _one_digit_changed(good: bytes) -> bytes:
    at = len("shoal-identity-1 ") + 5
    return good[:at] + (b"1" if good[at : at + 1] == b"0" else b"0") + good[at + 1 :]


@pytest.mark.trio
@pytest.mark.parametrize("damage", ["empty", "cut", "binary", "long", "digit", "word"])
async def test_a_damaged_file_is_refused_and_kept(tmp_path: Path, damage: str) -> None:
    await load_or_create_identity(RealHost(), tmp_path)
    path = tmp_path / "identity.key"
    good = path.read_bytes()
    bad = {
        "empty": b"",
        "cut": good[:40],
        "binary": b"\xff" * 100,
        "long": good * 100,
        "digit": _one_digit_changed(good),
        "word": good.replace(b"identity-1", b"identity-2"),
    }[damage]
    path.write_bytes(bad)
    with pytest.raises(HostError, match="damaged") as caught:
        await load_or_create_identity(RealHost(), tmp_path)
    assert caught.value.hint is not None and f"rm {path}" in caught.value.hint
    assert path.read_bytes() == bad


def test_peer_id_of_wants_32_bytes() -> None:
    with pytest.raises(ValueError):
        peer_id_of(b"short")


def test_public_key_of_a_false_id() -> None:
    with pytest.raises(TransportError):
        public_key_of(PeerId("nobody"))
