"""Server of NAT-PMP (RFC 6886) and PCP (RFC 6887) without I/O: it gets datagrams and returns the
replies.
"""

import ipaddress
import struct
from enum import IntEnum
from typing import Final

from ...network.packet import TCP, UDP, Addr
from .leases import Full, Lease, Leases

PORT: Final = 5351
CLIENTS: Final[Addr] = ("224.0.0.1", 5350)
"""Destination of announcements: all hosts of the LAN."""
NAT_PMP: Final = 0
PCP: Final = 2
RESPONSE: Final = 0x80
MOST_BYTES: Final = 1100  # maximum size of a PCP message (RFC 6887 7)
LEAST_LEASE_S: Final = 120  # RFC 6887 15
ERROR_S: Final = 30  # lifetime of an error that may pass soon
LONG_ERROR_S: Final = 1800


class PmpResult(IntEnum):
    """Result codes of NAT-PMP (RFC 6886, section 3.5)."""

    SUCCESS = 0
    UNSUPPORTED_VERSION = 1
    NO_RESOURCES = 4
    UNSUPPORTED_OPCODE = 5


class ResultCode(IntEnum):
    """Result codes of PCP (RFC 6887, section 7.4)."""

    SUCCESS = 0
    UNSUPP_VERSION = 1
    NOT_AUTHORIZED = 2
    MALFORMED_REQUEST = 3
    UNSUPP_OPCODE = 4
    UNSUPP_OPTION = 5
    MALFORMED_OPTION = 6
    NO_RESOURCES = 8
    UNSUPP_PROTOCOL = 9
    CANNOT_PROVIDE_EXTERNAL = 11
    ADDRESS_MISMATCH = 12


class PcpRefused(Exception):
    """A PCP request is refused. `result` is the code for the error reply."""

    def __init__(self, result: ResultCode) -> None:
        super().__init__(result.name)
        self.result = result


ANNOUNCE: Final = 0
MAP: Final = 1
PREFER_FAILURE: Final = 2  # option code

_HEADER: Final = struct.Struct("!BBHI16s")  # version, opcode, reserved, lifetime, client
_REPLY: Final = struct.Struct("!BBBBII12x")  # version, opcode, reserved, result, lifetime, epoch
_MAP: Final = struct.Struct("!12sB3xHH16s")  # nonce, protocol, inside port, outside port, address
_PMP_MAP: Final = struct.Struct("!BBHHHI")
_PMP_PROTOS: Final = {1: UDP, 2: TCP}


class PortControlServer:
    """Server of NAT-PMP, PCP or both. `external` is the outer address to report; None means the
    real one.
    """

    def __init__(self, leases: Leases, *, pmp: bool, pcp: bool, external: str | None) -> None:
        self._leases = leases
        self._speaks_pmp = pmp
        self._speaks_pcp = pcp
        self._external = external

    @property
    def external(self) -> str:
        return self._external or self._leases.gateway.address

    def announcements(self) -> list[bytes]:
        """Return the announcements for the LAN that leases are lost or that the outer address has
        changed, one per protocol (RFC 6886, section 3.2.1; RFC 6887, section 14.1).
        """
        found = []
        if self._speaks_pmp:
            found.append(self._pmp_address())
        if self._speaks_pcp:
            found.append(self._head(ANNOUNCE, ResultCode.SUCCESS, 0))
        return found

    def answer(self, data: bytes, source: Addr) -> bytes | None:
        """Return the reply to a message from an inner host, or None if it gets no reply."""
        if len(data) < 2 or data[1] & RESPONSE:
            return None
        if data[0] == NAT_PMP and self._speaks_pmp:
            return self._answer_pmp(data, source[0])
        if self._speaks_pcp:
            return self._answer_pcp(data, source[0])
        head = bytes((NAT_PMP, data[1] | RESPONSE))
        return head + struct.pack("!HI", PmpResult.UNSUPPORTED_VERSION, self._leases.epoch)

    # NAT-PMP.

    def _answer_pmp(self, data: bytes, client: str) -> bytes | None:
        opcode = data[1]
        if opcode == 0:
            return self._pmp_address()
        if opcode not in _PMP_PROTOS:
            bits = struct.pack("!BBH", NAT_PMP, opcode | RESPONSE, PmpResult.UNSUPPORTED_OPCODE)
            return bits + data[4:MOST_BYTES]
        if len(data) < _PMP_MAP.size:
            return None
        _, _, _, inside, wish, seconds = _PMP_MAP.unpack_from(data)
        result, outside, granted = PmpResult.SUCCESS, 0, 0
        if seconds == 0:
            self._pmp_delete(_PMP_PROTOS[opcode], client, inside)
        else:
            try:
                lease = self._pmp_map(_PMP_PROTOS[opcode], (client, inside), wish, seconds)
                outside, granted = lease.port, round(lease.expires - self._leases.now)
            except Full:
                result = PmpResult.NO_RESOURCES
        head = struct.pack("!BBHI", NAT_PMP, opcode | RESPONSE, result, self._leases.epoch)
        return head + struct.pack("!HHI", inside, outside, granted)

    def _pmp_address(self) -> bytes:
        head = struct.pack("!BBHI", NAT_PMP, RESPONSE, PmpResult.SUCCESS, self._leases.epoch)
        return head + ipaddress.IPv4Address(self.external).packed

    def _pmp_map(self, proto: int, inner: Addr, wish: int, seconds: int) -> Lease:
        lease = self._leases.of(proto, inner)
        port = lease.port if lease is not None else self._leases.free_port(proto, wish)
        return self._leases.add(proto, port, inner, min(seconds, self._leases.longest))

    def _pmp_delete(self, proto: int, client: str, inside: int) -> None:
        """Delete the client's lease of the inner port `inside`, if it exists. Port 0 means all of
        the client's leases of this protocol (RFC 6886, section 3.4).
        """
        for lease in self._leases:
            mine = lease.proto == proto and lease.inner[0] == client
            if mine and inside in (0, lease.inner[1]):
                self._leases.remove(lease)

    # PCP.

    def _answer_pcp(self, data: bytes, client: str) -> bytes:
        try:
            return self._serve(data, client)
        except PcpRefused as refused:
            return self._refusal(data, refused.result)

    def _refusal(self, data: bytes, result: ResultCode) -> bytes:
        """Return an error reply: a header, then a copy of the request's bytes after its own header
        (RFC 6887, section 8.2).
        """
        passing = result in (ResultCode.NO_RESOURCES, ResultCode.CANNOT_PROVIDE_EXTERNAL)
        head = self._head(data[1], result, ERROR_S if passing else LONG_ERROR_S)
        rest = data[_HEADER.size : MOST_BYTES]
        return head + rest + bytes(-len(rest) % 4)

    def _head(self, opcode: int, result: ResultCode, seconds: int) -> bytes:
        opcode |= RESPONSE
        return _REPLY.pack(PCP, opcode, 0, result, seconds, self._leases.epoch)

    def _serve(self, data: bytes, client: str) -> bytes:
        if data[0] != PCP:
            raise PcpRefused(ResultCode.UNSUPP_VERSION)
        if not _HEADER.size <= len(data) <= MOST_BYTES or len(data) % 4:
            raise PcpRefused(ResultCode.MALFORMED_REQUEST)
        _, opcode, _, seconds, address = _HEADER.unpack_from(data)
        if opcode not in (ANNOUNCE, MAP):
            raise PcpRefused(ResultCode.UNSUPP_OPCODE)
        if address != _mapped(client):
            raise PcpRefused(ResultCode.ADDRESS_MISMATCH)
        if opcode == ANNOUNCE:
            return self._head(ANNOUNCE, ResultCode.SUCCESS, 0)
        return self._map(data, seconds, client)

    def _map(self, data: bytes, seconds: int, client: str) -> bytes:
        if len(data) < _HEADER.size + _MAP.size:
            raise PcpRefused(ResultCode.MALFORMED_REQUEST)
        nonce, proto, inside, wish, address = _MAP.unpack_from(data, _HEADER.size)
        exact = _options(data[_HEADER.size + _MAP.size :])
        if not proto and inside:
            raise PcpRefused(ResultCode.MALFORMED_REQUEST)
        if seconds == 0:
            outside = self._delete(nonce, proto, (client, inside), wish)
        else:
            lease = self._lease(nonce, proto, (client, inside), wish, seconds, exact)
            outside, seconds = lease.port, round(lease.expires - self._leases.now)
            address = _mapped(self.external)
        head = self._head(MAP, ResultCode.SUCCESS, seconds)
        return head + _MAP.pack(nonce, proto, inside, outside, address)

    def _lease(
        self, nonce: bytes, proto: int, inner: Addr, wish: int, seconds: int, exact: bool
    ) -> Lease:
        if proto not in (TCP, UDP) or not inner[1]:
            raise PcpRefused(ResultCode.UNSUPP_PROTOCOL)
        lease = self._mine(nonce, proto, inner)
        try:
            port = lease.port if lease is not None else self._leases.free_port(proto, wish)
            if exact and wish and port != wish:
                raise PcpRefused(ResultCode.CANNOT_PROVIDE_EXTERNAL)
            granted = min(max(seconds, LEAST_LEASE_S), self._leases.longest)
            lease = self._leases.add(proto, port, inner, granted)
        except Full:
            raise PcpRefused(ResultCode.NO_RESOURCES) from None
        lease.nonce = nonce
        return lease

    def _mine(self, nonce: bytes, proto: int, inner: Addr) -> Lease | None:
        """Return the lease of an inner endpoint, or None. Raises PcpRefused if the lease has
        another nonce, because only the client that created it may change it (RFC 6887, section
        11.3).
        """
        lease = self._leases.of(proto, inner)
        if lease is not None and lease.nonce is not None and lease.nonce != nonce:
            raise PcpRefused(ResultCode.NOT_AUTHORIZED)
        return lease

    def _delete(self, nonce: bytes, proto: int, inner: Addr, wish: int) -> int:
        """Delete the lease of an inner endpoint, if it exists. Inner port 0 means all leases of the
        client. Return the outer port for the reply.
        """
        if inner[1]:
            lease = self._mine(nonce, proto, inner)
            if lease is None:
                return wish
            self._leases.remove(lease)
            return lease.port
        for lease in self._leases:
            mine = lease.inner[0] == inner[0] and lease.nonce in (None, nonce)
            if mine and proto in (0, lease.proto):
                self._leases.remove(lease)
        return wish


def _mapped(address: str) -> bytes:
    """Return an address as 16 bytes. An IPv4 address becomes an IPv4-mapped IPv6 address (RFC 6887,
    section 5).
    """
    ip = ipaddress.ip_address(address)
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


def _options(data: bytes) -> bool:
    """Return whether the options of a MAP request contain PREFER_FAILURE. Ignore other options with
    codes from 128 on (RFC 6887, section 7.3).

    Raises PcpRefused if an option is malformed, or has another code below 128.
    """
    exact = False
    while data:
        if len(data) < 4:
            raise PcpRefused(ResultCode.MALFORMED_OPTION)
        code, length = struct.unpack_from("!BxH", data)
        size = 4 + length + -length % 4
        if size > len(data) or (code == PREFER_FAILURE and length):
            raise PcpRefused(ResultCode.MALFORMED_OPTION)
        if code == PREFER_FAILURE:
            exact = True
        elif code < 128:
            raise PcpRefused(ResultCode.UNSUPP_OPTION)
        data = data[size:]
    return exact
