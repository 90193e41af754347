"""Identify message (libp2p specification, `identify/README.md`)."""

from collections.abc import Sequence
from typing import Final

from ... import __version__
from ..address import Address
from .multiaddr import encode_address
from .wire import bytes_field, prefixed

IDENTIFY: Final = "/ipfs/id/1.0.0"
IDENTIFY_PUSH: Final = "/ipfs/id/push/1.0.0"
_FAMILY: Final = b"ipfs/0.1.0"  # the protocol version that go, rust and py peers announce
_KEY_PREFIX: Final = b"\x08\x01\x12\x20"  # protobuf PublicKey{Type: Ed25519, Data: 32 bytes}


def identify_answer(
    public_key: bytes,
    listening: Sequence[Address],
    observed: Address | None,
    protocols: Sequence[str],
) -> bytes:
    """Encode this node's identity, addresses and protocols, with a length prefix."""
    parts = [bytes_field(1, _KEY_PREFIX + public_key)]
    parts += [bytes_field(2, encode_address(address)) for address in listening]
    parts += [bytes_field(3, protocol.encode()) for protocol in protocols]
    if observed is not None:
        parts.append(bytes_field(4, encode_address(observed)))
    parts.append(bytes_field(5, _FAMILY))
    parts.append(bytes_field(6, f"shoal/{__version__}".encode()))
    return prefixed(b"".join(parts))
