"""Use of the libp2p package: keys, peer ids, multiaddrs and protobuf messages.

Connections and streams are implemented in this project, because the package does not limit their
memory (docs/adr/0035-libp2p-package.md).
"""

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from ..address import Address
from ..handshake.certificate import identity_key
from ..lane.frame import Fault
from . import defaults

if TYPE_CHECKING:
    from .classes import Package

_AnyMessage = TypeVar("_AnyMessage", bound=Message)


def package() -> "Package":
    """Return the package's classes. The first call imports them.

    Make the first call in a thread (`offload`) when a libp2p peer or relay appears. Calls in other
    threads then wait, as for any module that is being imported.
    """
    from .classes import PACKAGE

    return PACKAGE


def decode(kind: type[_AnyMessage], data: bytes) -> _AnyMessage:
    """Decode a protobuf message whose size the caller has limited.

    Raises Fault (`bad-message`) if it is malformed.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Fault("bad-message") from None


# Keys and peer ids.


def encode_key(public_key: bytes) -> bytes:
    """Encode an Ed25519 public key (32 bytes) as a PublicKey message."""
    encoded: bytes = package().Ed25519PublicKey.from_bytes(public_key).serialize()
    return encoded


def proven_peer(encoded: bytes, data: bytes, signature: bytes) -> str:
    """Check a signature of `data` by an encoded identity key, and return the peer id of that key.

    Raises Fault (`bad-identity`) if the signature is wrong. For a key that is not Ed25519, this is
    raised before anything is verified.
    """
    try:
        key = package().Ed25519PublicKey.from_bytes(identity_key(encoded))
        if not key.verify(data, signature):
            raise Fault("bad-identity")
    except ValueError:  # also a signature that has not 64 bytes
        raise Fault("bad-identity") from None
    peer: str = package().ID.from_pubkey(key).to_base58()
    return peer


def encode_peer(peer: str) -> bytes:
    """Return a peer id, given as text, in its binary form (a multihash)."""
    encoded: bytes = package().ID.from_base58(peer).to_bytes()
    return encoded


def decode_peer(data: bytes) -> str:
    """Return a peer id, given in its binary form, as text. Raises Fault (`bad-message`) if `data`
    is not a peer id."""
    if not data or len(data) > defaults.PEER_ID_BYTES:
        raise Fault("bad-message")
    peer: str = package().ID(data).to_base58()
    return peer


# Addresses.


def encode_address(address: Address) -> bytes:
    """Encode an address, with its relay and its peer if it has them, as a binary multiaddr."""
    encoded: bytes = package().Multiaddr(str(address)).to_bytes()
    return encoded
