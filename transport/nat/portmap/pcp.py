"""Encoding of PCP messages (RFC 6887) for a client. No I/O."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import Final

from .defaults import DATAGRAM_BYTES
from .mapping import NUMBERS, Proto

VERSION: Final = 2
ANNOUNCE: Final = 0
MAP: Final = 1
NONCE_BYTES: Final = 12
_RESPONSE: Final = 0x80
_REQUEST: Final = struct.Struct("!BBHI16s")  # version, opcode, reserved, lifetime, client
_REPLY: Final = struct.Struct("!BBBBII12x")  # version, opcode, reserved, result, lifetime, epoch
_MAP: Final = struct.Struct("!12sB3xHH16s")  # nonce, protocol, inner and outer port, outer IP
_PROTOS: Final = {number: proto for proto, number in NUMBERS.items()}


class PcpResult(IntEnum):
    """Result codes (RFC 6887, section 7.4)."""

    SUCCESS = 0
    UNSUPP_VERSION = 1
    NOT_AUTHORIZED = 2
    MALFORMED_REQUEST = 3
    UNSUPP_OPCODE = 4
    UNSUPP_OPTION = 5
    MALFORMED_OPTION = 6
    NETWORK_FAILURE = 7
    NO_RESOURCES = 8
    UNSUPP_PROTOCOL = 9
    USER_EX_QUOTA = 10
    CANNOT_PROVIDE_EXTERNAL = 11
    ADDRESS_MISMATCH = 12
    EXCESSIVE_REMOTE_PEERS = 13


# Words for the user, to follow the name of the protocol. A success without a port is a refusal too.
WORDS: Final[Mapping[int, str]] = {
    PcpResult.SUCCESS: "says yes, and grants nothing",
    PcpResult.UNSUPP_VERSION: "does not speak this version",
    PcpResult.NOT_AUTHORIZED: "does not allow it (mapping may be switched off in its settings)",
    PcpResult.NETWORK_FAILURE: "has no outer address itself",
    PcpResult.NO_RESOURCES: "has no port left",
    PcpResult.USER_EX_QUOTA: "gives this computer no more ports",
    PcpResult.CANNOT_PROVIDE_EXTERNAL: "cannot give a port now",
    PcpResult.ADDRESS_MISMATCH: "sees another address of ours: there is a NAT before it",
}


@dataclass(frozen=True, slots=True)
class PcpAnswer:
    """A response to ANNOUNCE or MAP. `nonce` and the fields after it are empty for ANNOUNCE."""

    opcode: int  # ANNOUNCE or MAP
    result: int  # a `PcpResult`, or an unknown code
    seconds: int  # the lease; for an error, how long the error is expected to last
    epoch: int  # seconds since the server started or lost its mappings
    nonce: bytes = b""
    proto: Proto | None = None
    inside: int = 0  # the inner port
    outside: int = 0  # the outer port
    address: str = ""  # the outer address

    @property
    def of_deletion(self) -> bool:
        """Whether this response confirms that a mapping was deleted (RFC 6887, section 15).

        No request waits for such a response.
        """
        return self.opcode == MAP and not self.result and not self.seconds

    @property
    def words(self) -> str:
        """The reason for a refusal, for the user, in our own words."""
        return WORDS.get(self.result, f"refused with code {self.result}")


def encode_announce(client: str) -> bytes:
    """Encode an ANNOUNCE request, to which a working server replies (RFC 6887, section 14.1.2).

    `client` is our own IP address.
    """
    return _REQUEST.pack(VERSION, ANNOUNCE, 0, 0, _packed(client))


def encode_map(
    client: str, nonce: bytes, proto: Proto, inside: int, wish: int, seconds: int
) -> bytes:
    """Encode a request to map the inner port `inside` of `client` (RFC 6887, section 11.1).

    `wish` is the outer port to have if possible, and `seconds` the lease. A lease of 0 deletes the
    mapping.
    """
    anywhere = bytes(10) + b"\xff\xff" + bytes(4)  # the server chooses its outer IPv4 address
    body = _MAP.pack(nonce, NUMBERS[proto], inside, wish, anywhere)
    return _REQUEST.pack(VERSION, MAP, 0, seconds, _packed(client)) + body


def decode(data: bytes) -> PcpAnswer | None:
    """Decode a response or an announcement (RFC 6887, sections 8.3 and 11.4).

    Returns None if `data` is neither. The caller must compare the nonce, the protocol and the inner
    port of a MAP response with those of its request.
    """
    if not _REPLY.size <= len(data) <= DATAGRAM_BYTES or len(data) % 4:
        return None
    version, opcode, _, result, seconds, epoch = _REPLY.unpack_from(data)
    number = opcode & ~_RESPONSE
    if version != VERSION or not opcode & _RESPONSE or number not in (ANNOUNCE, MAP):
        return None
    if number == ANNOUNCE:
        return PcpAnswer(ANNOUNCE, result, seconds, epoch)
    if len(data) < _REPLY.size + _MAP.size:
        return None
    nonce, proto, inside, outside, address = _MAP.unpack_from(data, _REPLY.size)
    if proto not in _PROTOS:
        return None
    shown = _shown(address)
    return PcpAnswer(MAP, result, seconds, epoch, nonce, _PROTOS[proto], inside, outside, shown)


def is_continued(epoch: int, passed: float, before: int) -> bool:
    """Return whether the server's clock shows that its mappings still exist.

    The clock showed `before` `passed` seconds ago, and shows `epoch` now. If the clock has not
    advanced like ours, the server has lost its mappings (RFC 6887, section 8.5).
    """
    if epoch + 1 < before:
        return False
    server = epoch - before
    return not (passed + 2 < server - server / 16 or server + 2 < passed - passed / 16)


def _packed(address: str) -> bytes:
    """Encode an IP address in 16 bytes, IPv4 as IPv4-mapped IPv6 (RFC 6887, section 5)."""
    ip = ip_address(address)
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


def _shown(packed: bytes) -> str:
    """Decode an IP address of 16 bytes to text."""
    ip = IPv6Address(packed)
    return str(ip.ipv4_mapped if ip.ipv4_mapped is not None else ip)
