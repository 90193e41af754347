"""Encoding of NAT-PMP (RFC 6886) for a client. Bytes only, no sockets."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Final

from .mapping import Proto

SLEPT_S: Final = 10.0
PORT: Final = 5351
"""UDP port of the gateway for NAT-PMP and PCP."""
ANNOUNCEMENTS: Final = ("224.0.0.1", 5350)
"""Multicast group and port of gateways' announcements: they restarted or have another address
(section 3.2.1)."""
VERSION: Final = 0
ADDRESS: Final = 0  # opcode
_OPCODES: Final = {Proto.UDP: 1, Proto.TCP: 2}
_RESPONSE: Final = 0x80
_MAP: Final = struct.Struct("!BBHHHI")  # version, opcode, reserved, inside, outside, seconds
_HEAD: Final = struct.Struct("!BBHI")  # version, opcode, result, epoch
_MAPPED: Final = struct.Struct("!HHI")  # inside, outside, seconds
_PROTOS: Final = {number: proto for proto, number in _OPCODES.items()}


class Result(IntEnum):
    """Result codes (section 3.5)."""

    SUCCESS = 0
    UNSUPPORTED_VERSION = 1
    NOT_AUTHORIZED = 2
    NETWORK_FAILURE = 3
    OUT_OF_RESOURCES = 4
    UNSUPPORTED_OPCODE = 5


WORDS: Final[Mapping[int, str]] = {
    Result.SUCCESS: "says yes, and grants nothing",
    Result.UNSUPPORTED_VERSION: "does not speak this version",
    Result.NOT_AUTHORIZED: "does not allow it (mapping may be switched off in its settings)",
    Result.NETWORK_FAILURE: "has no outer address itself",
    Result.OUT_OF_RESOURCES: "has no port left",
    Result.UNSUPPORTED_OPCODE: "does not know the request",
}


@dataclass(frozen=True, slots=True)
class PmpAnswer:
    """A response. `proto` is None for the outer address; fields that a response lacks are empty."""

    proto: Proto | None
    result: int
    epoch: int
    address: str = ""
    inside: int = 0
    outside: int = 0
    seconds: int = 0

    @property
    def of_deletion(self) -> bool:
        """Whether it confirms a deletion (section 3.4); nothing waits for such a response."""
        return self.proto is not None and not self.result and not self.seconds

    @property
    def words(self) -> str:
        """The refusal for the user, in our words: none of the gateway's own text is in it."""
        return WORDS.get(self.result, f"refused with code {self.result}")


def encode_address_request() -> bytes:
    """Encode a request for the outer address (section 3.2)."""
    return bytes((VERSION, ADDRESS))


def encode_map(proto: Proto, inside: int, wish: int, seconds: int) -> bytes:
    """Encode a mapping request (section 3.3).

    `seconds` 0 deletes the mapping (then `wish` is 0, section 3.4).
    """
    return _MAP.pack(VERSION, _OPCODES[proto], 0, inside, wish, seconds)


def decode(data: bytes) -> PmpAnswer | None:
    """Decode a response or an announcement; return None for everything else."""
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
    """Return whether the gateway's clock continued since it showed `before`, `passed` seconds ago
    (section 3.6: up to an eighth slower, and 2 s). A clock far ahead of ours means that this
    computer slept, perhaps for longer than its lease."""
    return passed * 7 / 8 - 2 <= epoch - before <= passed * 9 / 8 + SLEPT_S
