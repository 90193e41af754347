"""Message of libp2p's identify protocol (libp2p specification, `identify/README.md`)."""

from collections.abc import Sequence
from typing import Final

from ... import __version__
from ..address import Address
from .package import encode_address, encode_key, package
from .varint import prefixed

IDENTIFY: Final = "/ipfs/id/1.0.0"
IDENTIFY_PUSH: Final = "/ipfs/id/push/1.0.0"
_FAMILY: Final = "ipfs/0.1.0"  # the version that go-libp2p, rust-libp2p and py-libp2p announce


def identify_answer(
    public_key: bytes,
    listening: Sequence[Address],
    observed: Address | None,
    protocols: Sequence[str],
) -> bytes:
    """Encode this node's identity, addresses and protocols, with a length prefix.

    `observed` is the address at which this node sees the peer; None on a circuit.
    """
    message = package().Identify(
        public_key=encode_key(public_key),
        listen_addrs=[encode_address(address) for address in listening],
        protocols=protocols,
        protocol_version=_FAMILY,
        agent_version=f"shoal/{__version__}",
    )
    if observed is not None:
        message.observed_addr = encode_address(observed)
    return prefixed(message.SerializeToString())
