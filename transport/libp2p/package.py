"""The part that the libp2p package does: keys, peer ids, multiaddrs and protobuf messages.

Connections and streams are our own code, because the package does not limit what they hold
(docs/adr/0035-libp2p-package.md).
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
    """Return the package's classes.

    The first call imports them, so make it in a thread (`offload`) once a libp2p peer or relay
    comes. Calls in other threads then wait, as for any module that is being imported.
    """
    from .classes import PACKAGE

    return PACKAGE


def decode(kind: type[_AnyMessage], data: bytes) -> _AnyMessage:
    """Decode a message whose size the caller has limited. Raises Fault (`bad-message`)."""
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
    """Return the peer id of the encoded identity key that signed `data`.

    Raises Fault (`bad-identity`); for other kinds than Ed25519, before anything is verified.
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
    """Decode the text of a peer id to its multihash."""
    encoded: bytes = package().ID.from_base58(peer).to_bytes()
    return encoded


def decode_peer(data: bytes) -> str:
    """Return the text of a peer id in a message. Raises Fault (`bad-message`)."""
    if not data or len(data) > defaults.PEER_ID_BYTES:
        raise Fault("bad-message")
    peer: str = package().ID(data).to_base58()
    return peer


# Addresses.


def encode_address(address: Address) -> bytes:
    """Encode an address, with its relay and its peer, as a binary multiaddr."""
    encoded: bytes = package().Multiaddr(str(address)).to_bytes()
    return encoded
