"""Binary multiaddrs and peer ids, as libp2p's messages contain them.

The codes are in the multicodec table (https://github.com/multiformats/multicodec).
"""

from ipaddress import ip_address
from typing import Final

from ..address import Address
from ..identity import base58_decode, base58_encode
from ..lane.frame import Fault
from . import defaults
from .wire import prefixed, uvarint

_IP: Final = {4: 4, 6: 41}
_DNS: Final = {"dns": 53, "dns4": 54, "dns6": 55}
_TCP, _UDP, _QUIC_V1, _P2P, _CIRCUIT = 6, 273, 461, 421, 290


def encode_address(address: Address) -> bytes:
    """Encode an address, with its relay and its peer."""
    transport = uvarint(_UDP if address.transport == "udp" else _TCP)
    data = _host(address) + transport + address.port.to_bytes(2)
    if address.transport == "udp":
        data += uvarint(_QUIC_V1)
    if address.relay is not None and address.relay.peer is not None:
        data += _peer(address.relay.peer) + uvarint(_CIRCUIT)
    return data if address.peer is None else data + _peer(address.peer)


def encode_peer(peer: str) -> bytes:
    """Decode the text of a peer id to its multihash."""
    return base58_decode(peer)


def decode_peer(data: bytes | None) -> str:
    """Return the text of a peer id in a message. Raises Fault (`bad-message`)."""
    if not data or len(data) > defaults.PEER_ID_BYTES:
        raise Fault("bad-message")
    return base58_encode(data)


def _host(address: Address) -> bytes:
    try:
        ip = ip_address(address.host)
    except ValueError:
        return uvarint(_DNS[address.dns]) + prefixed(address.host.encode())
    return uvarint(_IP[ip.version]) + ip.packed


def _peer(peer: str) -> bytes:
    return uvarint(_P2P) + prefixed(encode_peer(peer))
