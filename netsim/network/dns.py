"""Name resolution: a world's zone, the look-ups of hosts, and a server that speaks DNS.

Programs that use trio's resolver get a reply after a virtual round trip. Programs that speak DNS
themselves find a real server on UDP port 53 (`NameServer`): RFC 1035, with AAAA (RFC 3596).
"""

import socket as stdlib
import struct
from typing import Final, Literal

import trio

from .. import defaults
from ..host import CURRENT, Host

Zone = dict[str, list[str]]
"""Names without the final dot, and their IPv4 and IPv6 addresses."""

PORT: Final = 53
_A, _AAAA, _ANY, _INTERNET = 1, 28, 255, 1
_FORMAT_ERROR, _NO_NAME, _NOT_IMPLEMENTED = 1, 3, 4
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _RECURSION = 0x8000, 0x0400, 0x0200, 0x0100
_LARGEST: Final = 512  # bytes over UDP (RFC 1035, 4.2.1)
_TTL_S: Final = 60
_LONGEST_NAME, _LONGEST_LABEL = 255, 63
Entry = (
    tuple[Literal[stdlib.AddressFamily.AF_INET], stdlib.SocketKind, int, str, tuple[str, int]]
    | tuple[
        Literal[stdlib.AddressFamily.AF_INET6], stdlib.SocketKind, int, str,
        tuple[str, int, int, int] | tuple[int, bytes],
    ]
)  # fmt: skip
"""An address as `socket.getaddrinfo` returns it."""
_KINDS: Final = {
    stdlib.SOCK_STREAM: stdlib.IPPROTO_TCP,
    stdlib.SOCK_DGRAM: stdlib.IPPROTO_UDP,
}


def lookup(zone: Zone, name: str) -> list[str] | None:
    """Return the addresses of a name; None if the name does not exist."""
    found = zone.get(name.rstrip("."))
    return found if found is not None else zone.get(name.rstrip(".").lower())


class Resolver(trio.abc.HostnameResolver):
    """Trio's resolver for every host of a world."""

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
        """Resolve like libc: raises socket.gaierror (EAI_NONAME, EAI_AGAIN, EAI_SERVICE)."""
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
        """Return the name of an address, or its text if it has none."""
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
    text = port.decode("ascii", "replace") if isinstance(port, bytes) else port
    if text is None:
        return 0
    if isinstance(text, int) or text.isdecimal():
        return int(text)
    raise stdlib.gaierror(stdlib.EAI_SERVICE, "Servname not supported for ai_socktype")


def _entry(address: str, port: int, kind: int, proto: int) -> Entry:
    protocol = proto or _KINDS.get(stdlib.SocketKind(kind), 0)
    if ":" in address:
        return stdlib.AF_INET6, stdlib.SocketKind(kind), protocol, "", (address, port, 0, 0)
    return stdlib.AF_INET, stdlib.SocketKind(kind), protocol, "", (address, port)


def _is_online(host: Host) -> bool:
    """Whether it has an address, and a running router if it needs one."""
    return any(
        item.addresses and (gateway is None or gateway.owner.up)
        for item in host.attachments
        for gateway in [item.subnet.gateway]
    )


# The wire format.


class BadQuery(ValueError):
    """Message that is not a valid query; `identifier` is None if even that could not be read."""

    def __init__(self, identifier: int | None, code: int) -> None:
        super().__init__(code)
        self.identifier = identifier
        self.code = code


def parse_query(message: bytes) -> tuple[int, int, str, int, bytes]:
    """Return identifier, flags, name, type and the bytes of the question. Raises BadQuery."""
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
    """Read the name of the question, which cannot be compressed because nothing precedes it."""
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
    """Return the response to a query; None if it gets none."""
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
    return _AAAA if ":" in address else _A


def _record(address: str) -> bytes:
    family = stdlib.AF_INET6 if ":" in address else stdlib.AF_INET
    data = stdlib.inet_pton(family, address)
    # 0xC00C points to the name in the question (RFC 1035, 4.1.4).
    return struct.pack("!3HIH", 0xC00C, _kind(address), _INTERNET, _TTL_S, len(data)) + data


class NameServer:
    """Program for a host: answers DNS queries from a zone, on UDP port 53."""

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
