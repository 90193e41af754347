"""Name resolution: the DNS zone of a world, a resolver for its hosts, and a DNS server.

A program that uses trio's resolver gets the reply after a virtual round trip. A program that speaks
DNS itself can send its queries to UDP port 53 of a host that runs `NameServer`, which implements
RFC 1035 and AAAA records (RFC 3596).
"""

import socket as stdlib
import struct
from typing import Final, Literal

import trio

from .. import defaults
from ..host import CURRENT, Host

Zone = dict[str, list[str]]
"""Names without the final dot, each with its IPv4 and IPv6 addresses."""

PORT: Final = 53
_A, _AAAA, _ANY, _INTERNET = 1, 28, 255, 1
_FORMAT_ERROR, _NO_NAME, _NOT_IMPLEMENTED = 1, 3, 4
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _RECURSION = 0x8000, 0x0400, 0x0200, 0x0100
_LARGEST: Final = 512  # maximum bytes of a message over UDP (RFC 1035, section 4.2.1)
_TTL_S: Final = 60
_LONGEST_NAME, _LONGEST_LABEL = 255, 63  # bytes (RFC 1035, section 2.3.4)
Entry = (
    tuple[Literal[stdlib.AddressFamily.AF_INET], stdlib.SocketKind, int, str, tuple[str, int]]
    | tuple[
        Literal[stdlib.AddressFamily.AF_INET6], stdlib.SocketKind, int, str,
        tuple[str, int, int, int] | tuple[int, bytes],
    ]
)  # fmt: skip
"""An address in the form in which `socket.getaddrinfo` returns it."""
_KINDS: Final = {
    stdlib.SOCK_STREAM: stdlib.IPPROTO_TCP,
    stdlib.SOCK_DGRAM: stdlib.IPPROTO_UDP,
}


def lookup(zone: Zone, name: str) -> list[str] | None:
    """Return the addresses of a name, or None if the name does not exist."""
    found = zone.get(name.rstrip("."))
    return found if found is not None else zone.get(name.rstrip(".").lower())


class Resolver(trio.abc.HostnameResolver):
    """Substitute for trio's resolver, shared by all hosts of a world."""

    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Entry]:
        """Resolve a name or an address as libc does.

        Raises socket.gaierror: EAI_NONAME if the name has no suitable address, EAI_AGAIN if the
        host is offline, EAI_SERVICE if the port is not a number.
        """
        number = _service(port)
        asker = CURRENT.get(None)
        name = host.decode("ascii", "replace") if host is not None else ""
        if name.rstrip(".").lower() in ("localhost", "") or (asker and name == asker.name):
            await trio.lowlevel.checkpoint()
        else:
            await trio.sleep(defaults.DNS_ROUND_TRIP_S)
            if asker is not None and not _is_online(asker):
                raise stdlib.gaierror(stdlib.EAI_AGAIN, "Temporary failure in name resolution")
        found = self._addresses(name, family, flags)
        if not found:
            raise stdlib.gaierror(stdlib.EAI_NONAME, "Name or service not known")
        kinds = [type] if type else [stdlib.SOCK_STREAM, stdlib.SOCK_DGRAM]
        return [_entry(address, number, kind, proto) for address in found for kind in kinds]

    def _addresses(self, name: str, family: int, flags: int) -> list[str]:
        """Return the addresses of a name in this family, IPv6 before IPv4."""
        if name.rstrip(".").lower() == "localhost":
            found = ["::1", "127.0.0.1"]
        else:
            found = lookup(self._zone, name) or []
        six = [address for address in found if ":" in address]
        four = [address for address in found if ":" not in address]
        if family == stdlib.AF_INET:
            return four
        if family == stdlib.AF_INET6:
            mapped = [f"::ffff:{address}" for address in four]
            return six or (mapped if flags & stdlib.AI_V4MAPPED else [])
        return [*six, *four]

    async def getnameinfo(
        self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int
    ) -> tuple[str, str]:
        """Return (name, port) for a socket address. If the address has no name, or `flags` ask for
        no name, the name is the address as text. Raises socket.gaierror (EAI_NONAME) if `flags`
        require a name and there is none.
        """
        address, port = str(sockaddr[0]), int(sockaddr[1])
        await trio.sleep(defaults.DNS_ROUND_TRIP_S)
        if not flags & stdlib.NI_NUMERICHOST:
            for name, addresses in self._zone.items():
                if address in addresses:
                    return name, str(port)
            if flags & stdlib.NI_NAMEREQD:
                raise stdlib.gaierror(stdlib.EAI_NONAME, "Name or service not known")
        return address, str(port)


def _service(port: bytes | str | int | None) -> int:
    """Return a port as a number; None becomes 0. Raises socket.gaierror (EAI_SERVICE) if the text
    is not a decimal number.
    """
    text = port.decode("ascii", "replace") if isinstance(port, bytes) else port
    if text is None:
        return 0
    if isinstance(text, int) or text.isdecimal():
        return int(text)
    raise stdlib.gaierror(stdlib.EAI_SERVICE, "Servname not supported for ai_socktype")


def _entry(address: str, port: int, kind: int, proto: int) -> Entry:
    """Return an address in the form in which `socket.getaddrinfo` returns it."""
    protocol = proto or _KINDS.get(stdlib.SocketKind(kind), 0)
    if ":" in address:
        return stdlib.AF_INET6, stdlib.SocketKind(kind), protocol, "", (address, port, 0, 0)
    return stdlib.AF_INET, stdlib.SocketKind(kind), protocol, "", (address, port)


def _is_online(host: Host) -> bool:
    """Return whether a host has an address and, if it is behind a gateway, whether the gateway is
    on.
    """
    return any(
        item.addresses and (gateway is None or gateway.owner.up)
        for item in host.attachments
        for gateway in [item.subnet.gateway]
    )


# The wire format.


class BadQuery(ValueError):
    """A message is not a valid query. `identifier` is the query's identifier, or None if the
    message gets no reply. `code` is the response code (RFC 1035, section 4.1.1).
    """

    def __init__(self, identifier: int | None, code: int) -> None:
        super().__init__(code)
        self.identifier = identifier
        self.code = code


def parse_query(message: bytes) -> tuple[int, int, str, int, bytes]:
    """Return (identifier, flags, name, record type, bytes of the question section). Raises BadQuery
    if the message is not a query with one question.
    """
    if len(message) < 12:
        raise BadQuery(None, _FORMAT_ERROR)
    identifier, flags, questions, answers, authorities, _ = struct.unpack_from("!6H", message)
    if flags & _RESPONSE:
        raise BadQuery(None, _FORMAT_ERROR)  # replies to replies would never end
    if flags >> 11 & 15:
        raise BadQuery(identifier, _NOT_IMPLEMENTED)
    if questions != 1 or answers or authorities:
        raise BadQuery(identifier, _FORMAT_ERROR)
    name, end = _parse_name(identifier, message)
    if len(message) < end + 4:
        raise BadQuery(identifier, _FORMAT_ERROR)
    kind, network = struct.unpack_from("!2H", message, end)
    if network not in (_INTERNET, _ANY):
        raise BadQuery(identifier, _NOT_IMPLEMENTED)
    return identifier, flags, name, kind, message[12 : end + 4]


def _parse_name(identifier: int, message: bytes) -> tuple[str, int]:
    """Return the name in the question and the offset of its end. Raises BadQuery if the name is
    malformed or compressed: compression refers to an earlier name, and the question has none.
    """
    labels: list[str] = []
    at = 12
    while True:
        if at >= len(message) or at - 12 >= _LONGEST_NAME:
            raise BadQuery(identifier, _FORMAT_ERROR)
        size = message[at]
        at += 1
        if size == 0:
            return ".".join(labels), at
        if size > _LONGEST_LABEL or at + size > len(message):
            raise BadQuery(identifier, _FORMAT_ERROR)
        labels.append(message[at : at + size].decode("ascii", "replace"))
        at += size


def answer(zone: Zone, message: bytes) -> bytes | None:
    """Return the response to a query, or None if the message gets no response."""
    try:
        identifier, flags, name, kind, question = parse_query(message)
    except BadQuery as bad:
        if bad.identifier is None:
            return None
        return struct.pack("!6H", bad.identifier, _RESPONSE | bad.code, 0, 0, 0, 0)
    addresses = lookup(zone, name)
    head = _RESPONSE | _AUTHORITATIVE | (flags & _RECURSION)
    if addresses is None:
        return struct.pack("!6H", identifier, head | _NO_NAME, 1, 0, 0, 0) + question
    records = [_record(address) for address in addresses if kind in (_kind(address), _ANY)]
    room = (_LARGEST - 12 - len(question)) // 28
    if len(records) > room:
        records, head = records[:room], head | _TRUNCATED
    return (
        struct.pack("!6H", identifier, head, 1, len(records), 0, 0) + question + b"".join(records)
    )


def _kind(address: str) -> int:
    """Return the type of the DNS record of an address."""
    return _AAAA if ":" in address else _A


def _record(address: str) -> bytes:
    """Return the encoded DNS record of an address."""
    family = stdlib.AF_INET6 if ":" in address else stdlib.AF_INET
    data = stdlib.inet_pton(family, address)
    # 0xC00C points to the name in the question (RFC 1035, section 4.1.4).
    return struct.pack("!3HIH", 0xC00C, _kind(address), _INTERNET, _TTL_S, len(data)) + data


class NameServer:
    """DNS server, as a program for a host. It answers queries from a zone, on UDP port 53."""

    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.socket.socket(stdlib.AF_INET6, stdlib.SOCK_DGRAM) as sock:
            await sock.bind(("::", PORT))
            task_status.started()
            while True:
                message, source = await sock.recvfrom(4096)
                response = answer(self._zone, message)
                if response is not None:
                    await sock.sendto(response, source)
