"""A filter between a browser and aiortc, which checks first DTLS records and then SCTP packets. No
I/O.

aiortc 1.16 trusts every peer that completes the DTLS handshake, but any browser can do that. Its
source code has these faults: a parameter of length 0 causes an endless loop. A selective
acknowledgement of 1 kB causes 19 million steps. Chunks beyond the advertised window are buffered
without a bound. A second INIT resets the association. An additional incomplete record in each
datagram is never freed. A packet that cannot be parsed ends a task with an exception.

Therefore each packet is checked before it is passed to aiortc: it must be one that a data channel
needs (RFC 9260, RFC 8831). Because DTLS authenticates the packets, a packet that violates the
protocol was sent by the browser itself, and closes its channel.
"""

import struct
from typing import Final

from ..defaults import KIB
from . import defaults

_RECORD_HEADER: Final = 13  # bytes (RFC 6347, section 4.1)
_APPLICATION_DATA: Final = 23  # DTLS content type
_COMMON_HEADER: Final = 12  # bytes (RFC 9260, section 3)
_CHUNK: Final = struct.Struct(">BBH")
_DATA: Final = struct.Struct(">IHHI")  # TSN, stream, sequence number, payload protocol
_SACK: Final = struct.Struct(">IIHH")
_PAIR: Final = struct.Struct(">HH")
_BINARY: Final = (53, 57)  # binary messages, and empty binary messages (RFC 8831, section 8)
_UNORDERED: Final = 0x04  # flag of a DATA chunk
_WINDOW_SLACK: Final = 16 * KIB  # bytes that a browser may send beyond the advertised window

# Chunk types (RFC 9260, section 3.2; RFC 6525; RFC 3758).
_TYPE_DATA: Final = 0
_TYPE_INIT: Final = 1
_TYPE_INIT_ACK: Final = 2
_TYPE_SACK: Final = 3
_TYPE_SHUTDOWN: Final = 7
_TYPE_RECONFIG: Final = 130
_TYPE_FORWARD_TSN: Final = 192
_WITH_PARAMETERS: Final = {  # chunk type: size of the fields before the parameters, in bytes
    _TYPE_INIT: 16,
    _TYPE_INIT_ACK: 16,
    4: 0,  # HEARTBEAT
    5: 0,  # HEARTBEAT ACK
    6: 0,  # ABORT
    9: 0,  # ERROR
    _TYPE_RECONFIG: 0,
}
_ONCE: Final = frozenset({_TYPE_SACK, *_WITH_PARAMETERS})  # at most once in a packet
_PARAMETERS: Final = 16  # most parameters of a chunk
_RECONFIG_BYTES: Final = {13: 12, 16: 8, 17: 8}  # parameter: fewest bytes that aiortc can parse
_INITS: Final = 16  # most INIT chunks of an association, including retransmissions


class Breach(Exception):
    """Raised for a packet that no correct browser sends. The text names the fault."""


def is_one_record(datagram: bytes) -> bool:
    """Return whether a datagram of an established DTLS connection is exactly one complete record.

    aiortc reads one record per datagram. A second one would stay in OpenSSL's memory.
    """
    if len(datagram) < _RECORD_HEADER:
        return False
    size = int.from_bytes(datagram[11:13])
    return len(datagram) == _RECORD_HEADER + size


def is_application_data(datagram: bytes) -> bool:
    """Return whether a DTLS record carries application data, and not an alert or a part of a
    handshake."""
    return datagram[:1] == bytes([_APPLICATION_DATA])


class Screen:
    """A filter for the SCTP packets of one association. The packets must be passed in the order of
    their arrival."""

    def __init__(self) -> None:
        self.dropped = 0  # valid packets that could not be accepted when they arrived
        self._inits = 0

    def admits(
        self, packet: bytes, *, established: bool, received: int | None, room: int, unread: int
    ) -> bool:
        """Return whether a packet may be passed to aiortc. If a valid packet is dropped, SCTP
        retransmits it.

        `established` is True if the association is established. `received` is the highest TSN up to
        which all chunks have arrived, or None before the first one. `room` is the number of bytes
        that the receive window still allows. `unread` is the number of bytes that wait for the
        reader, without those that wait for a gap to be filled. Raises Breach if no correct browser
        sends this packet.
        """
        chunks = _cut(packet)
        seen: set[int] = set()
        wanted = True
        for kind, flags, body in chunks:
            if kind in _ONCE and kind in seen:
                raise Breach("a chunk stands twice in a packet")
            seen.add(kind)
            if kind == _TYPE_DATA:
                wanted &= _is_wanted(flags, body, received, room, unread)
            else:
                wanted &= self._judge(kind, body, len(chunks), established)
        self.dropped += not wanted
        return wanted

    def _judge(self, kind: int, body: bytes, chunks: int, established: bool) -> bool:
        if kind in _WITH_PARAMETERS:
            _check_parameters(kind, body)
        if kind == _TYPE_INIT:
            return self._takes_init(chunks, established)
        if kind == _TYPE_INIT_ACK:
            return chunks == 1 and not established
        if kind == _TYPE_SACK:
            _check_sack(body)
        elif kind == _TYPE_SHUTDOWN and len(body) != 4:
            raise Breach("a shutdown of a wrong size")
        elif kind == _TYPE_FORWARD_TSN:
            raise Breach("a channel that keeps everything skips nothing")
        return True

    def _takes_init(self, chunks: int, established: bool) -> bool:
        self._inits += 1
        if chunks != 1 or self._inits > _INITS:
            raise Breach("an INIT among others, or too many")
        return not established  # otherwise it is a late copy of the first INIT


def _cut(packet: bytes) -> list[tuple[int, int, bytes]]:
    """Split a packet into its chunks, each as (type, flags, body). Raises Breach if the packet is
    malformed."""
    if not _COMMON_HEADER < len(packet) <= defaults.PACKET_BYTES:
        raise Breach("a packet of a wrong size")
    chunks: list[tuple[int, int, bytes]] = []
    at = _COMMON_HEADER
    while at < len(packet):
        if len(packet) - at < _CHUNK.size or len(chunks) == defaults.CHUNKS:
            raise Breach("half a chunk, or too many")
        kind, flags, size = _CHUNK.unpack_from(packet, at)
        if size < _CHUNK.size or at + size > len(packet):
            raise Breach("a chunk of a wrong size")
        chunks.append((kind, flags, packet[at + _CHUNK.size : at + size]))
        at += size + -size % 4
    return chunks


def _is_wanted(flags: int, body: bytes, received: int | None, room: int, unread: int) -> bool:
    """Return whether a DATA chunk fits into the receive window, in bytes and in chunks. Raises
    Breach if the chunk is malformed or not for our channel."""
    if len(body) <= _DATA.size:
        raise Breach("data without any")
    tsn, stream, _, protocol = _DATA.unpack_from(body)
    if stream != defaults.CHANNEL or protocol not in _BINARY or flags & _UNORDERED:
        raise Breach("data for another channel, or of another kind")
    if received is None:
        return False
    ahead = (tsn - received) % (1 << 32)
    if ahead > 1 << 31 or not ahead:  # a duplicate
        return True
    if ahead == 1:  # the next chunk, which may fill the gap before chunks that arrived earlier
        return unread < defaults.WINDOW_BYTES
    return ahead <= defaults.TSN_WINDOW and room + _WINDOW_SLACK >= len(body)


def _check_sack(body: bytes) -> None:
    if len(body) < _SACK.size:
        raise Breach("an acknowledgement of a wrong size")
    _, _, gaps, duplicates = _SACK.unpack_from(body)
    if len(body) != _SACK.size + 4 * (gaps + duplicates):
        raise Breach("an acknowledgement of a wrong size")
    last = 0
    for at in range(_SACK.size, _SACK.size + 4 * gaps, 4):
        start, end = _PAIR.unpack_from(body, at)
        if not last < start <= end:
            raise Breach("an acknowledgement with gaps out of order")
        last = end
    if last > defaults.SACK_SPAN:
        raise Breach("an acknowledgement of more than was sent")


def _check_parameters(kind: int, body: bytes) -> None:
    """Check the lengths of the type-length-value parameters of a chunk (RFC 9260, section 3.2.1).
    Raises Breach if they are not consistent."""
    at = _WITH_PARAMETERS[kind]
    if len(body) < at:
        raise Breach("a chunk too short for its fields")
    found = 0
    while at < len(body):
        if len(body) - at < 4 or found == _PARAMETERS:
            raise Breach("half a parameter, or too many")
        parameter, size = _PAIR.unpack_from(body, at)
        if size < 4 or at + size > len(body):
            raise Breach("a parameter of a wrong size")
        if kind == _TYPE_RECONFIG:
            _check_reconfig(parameter, size - 4)
        found += 1
        at += size + -size % 4


def _check_reconfig(parameter: int, size: int) -> None:
    least = _RECONFIG_BYTES.get(parameter, 0)
    if size < least or (parameter == 13 and size % 2):
        raise Breach("a reconfiguration of a wrong size")
