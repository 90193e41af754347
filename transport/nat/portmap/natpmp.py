"""Encoding of NAT-PMP messages (RFC 6886) for a client. No I/O."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Final

from .mapping import Proto

SLEPT_S: Final = 10.0
"""Seconds by which the gateway's clock may be ahead of ours before `is_continued` returns False."""
PORT: Final = 5351
"""UDP port of the gateway for NAT-PMP and PCP."""
ANNOUNCEMENTS: Final = ("224.0.0.1", 5350)
"""Multicast group and UDP port on which gateways announce that they have restarted or have another
outer address (RFC 6886, section 3.2.1)."""
VERSION: Final = 0
ADDRESS: Final = 0  # opcode of a request for the outer address
_OPCODES: Final = {Proto.UDP: 1, Proto.TCP: 2}
_RESPONSE: Final = 0x80
_MAP: Final = struct.Struct("!BBHHHI")  # version, opcode, reserved, inner port, outer port, seconds
_HEAD: Final = struct.Struct("!BBHI")  # version, opcode, result, epoch
_MAPPED: Final = struct.Struct("!HHI")  # inner port, outer port, seconds
_PROTOS: Final = {number: proto for proto, number in _OPCODES.items()}


class NatPmpResult(IntEnum):
    """Result codes (RFC 6886, section 3.5)."""

    SUCCESS = 0
    UNSUPPORTED_VERSION = 1
    NOT_AUTHORIZED = 2
    NETWORK_FAILURE = 3
    OUT_OF_RESOURCES = 4
    UNSUPPORTED_OPCODE = 5


# Words for the user, to follow the name of the protocol. A success without a port is a refusal too.
WORDS: Final[Mapping[int, str]] = {
    NatPmpResult.SUCCESS: "says yes, and grants nothing",
    NatPmpResult.UNSUPPORTED_VERSION: "does not speak this version",
    NatPmpResult.NOT_AUTHORIZED: "does not allow it (mapping may be switched off in its settings)",
    NatPmpResult.NETWORK_FAILURE: "has no outer address itself",
    NatPmpResult.OUT_OF_RESOURCES: "has no port left",
    NatPmpResult.UNSUPPORTED_OPCODE: "does not know the request",
}


@dataclass(frozen=True, slots=True)
class PmpAnswer:
    """A response of the gateway. Fields that it does not have are empty."""

    proto: Proto | None  # None if it is about the outer address and not about a mapping
    result: int  # a `NatPmpResult`, or an unknown code
    epoch: int  # seconds since the gateway started or lost its mappings
    address: str = ""  # the outer address
    inside: int = 0  # the inner port
    outside: int = 0  # the outer port
    seconds: int = 0  # the lease

    @property
    def of_deletion(self) -> bool:
        """Whether this response confirms that a mapping was deleted (RFC 6886, section 3.4).

        No request waits for such a response.
        """
        return self.proto is not None and not self.result and not self.seconds

    @property
    def words(self) -> str:
        """The reason for a refusal, for the user, in our own words."""
        return WORDS.get(self.result, f"refused with code {self.result}")


def encode_address_request() -> bytes:
    """Encode a request for the outer address (RFC 6886, section 3.2)."""
    return bytes((VERSION, ADDRESS))


def encode_map(proto: Proto, inside: int, wish: int, seconds: int) -> bytes:
    """Encode a request to map the inner port `inside` (RFC 6886, section 3.3).

    `wish` is the outer port to have if possible, and `seconds` the lease. If both are 0, the
    mapping is deleted (section 3.4).
    """
    return _MAP.pack(VERSION, _OPCODES[proto], 0, inside, wish, seconds)


def decode(data: bytes) -> PmpAnswer | None:
    """Decode a response or an announcement. Return None if `data` is neither."""
    if len(data) < _HEAD.size:
        return None
    version, opcode, result, epoch = _HEAD.unpack_from(data)
    number = opcode & ~_RESPONSE
    if version != VERSION or not opcode & _RESPONSE or number not in (ADDRESS, *_PROTOS):
        return None
    proto, rest = _PROTOS.get(number), data[_HEAD.size :]
    if result:
        inside = int.from_bytes(rest[:2]) if proto is not None and len(rest) >= 2 else 0
        return PmpAnswer(proto, result, epoch, inside=inside)
    if proto is None:
        if len(rest) < 4:
            return None
        return PmpAnswer(None, 0, epoch, address=str(IPv4Address(rest[:4])))
    if len(rest) < _MAPPED.size:
        return None
    inside, outside, seconds = _MAPPED.unpack_from(rest)
    return PmpAnswer(proto, 0, epoch, inside=inside, outside=outside, seconds=seconds)


def is_continued(epoch: int, passed: float, before: int) -> bool:
    """Return whether the gateway's clock shows that its mappings still exist.

    The clock showed `before` `passed` seconds ago, and shows `epoch` now. If the clock is behind by
    more than an eighth of that time and 2 s (RFC 6886, section 3.6), the gateway has restarted. If
    the clock is far ahead, this computer was asleep, perhaps for longer than its lease.
    """
    return passed * 7 / 8 - 2 <= epoch - before <= passed * 9 / 8 + SLEPT_S
