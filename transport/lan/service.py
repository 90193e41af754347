"""DNS-SD service (RFC 6763) by which a node announces itself on a LAN and finds other nodes.

The PTR record of `_shoal._udp.local` names an instance, `<random>._shoal._udp.local`. The records
of the instance give a port, the address of the interface, and a text with the peer id and a tag of
the swarm. This is the usual form of a service, so ordinary tools display it. The instance name is
random and changes with every start of the node.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from ..errors import TransportError
from ..host.datagrams import Place
from ..identity import PeerId, parse_peer_id
from . import dns
from .defaults import LONGEST_TTL_S, SERVICE, TTL_S
from .dns import DnsMessage, DnsQuestion, DnsRecord, Name, Type

_VERSION: Final = b"v=1"
_TAG_BYTES: Final = 8
_INSTANCE_BYTES: Final = 8
_EVERY_SERVICE: Final = (b"_services", b"_dns-sd", b"_udp", b"local")  # RFC 6763, section 9


def tag_of(swarm: bytes) -> bytes:
    """Return a hash of a swarm's public name. Only nodes that know the name can recognize it."""
    return hashlib.sha256(b"shoal/lan/1\0" + swarm).digest()[:_TAG_BYTES].hex().encode()


@dataclass(frozen=True, slots=True)
class FoundPeer:
    """A peer of this node's swarm, and the address that it announced. `ttl` is in seconds; 0 means
    that the peer is leaving. `instance` is its label in the service's names."""

    peer: PeerId
    place: Place
    ttl: int
    instance: bytes


class Announcement:
    """This node's records on one interface. `entropy` is 8 random bytes, drawn when the node
    starts."""

    def __init__(self, peer: PeerId, swarm: bytes, address: str, port: int, entropy: bytes) -> None:
        self.instance = entropy[:_INSTANCE_BYTES].hex().encode()
        """Random name of this run, in hex digits, by which a node knows its own announcements."""
        self._peer = peer
        self._tag = tag_of(swarm)
        self._name: Name = (self.instance, *SERVICE)
        self._host: Name = (self.instance, b"local")
        self._address = IPv4Address(address)
        self._port = port

    def records(self, ttl: int = TTL_S) -> list[DnsRecord]:
        """Return this node's PTR, SRV, TXT and A records, with a TTL in seconds."""
        text = (_VERSION, b"p=" + self._peer.encode(), b"s=" + self._tag)
        return [
            DnsRecord(SERVICE, Type.PTR, self._name, ttl, shared=True),
            DnsRecord(self._name, Type.SRV, dns.SrvData(self._port, self._host), ttl),
            DnsRecord(self._name, Type.TXT, text, ttl),
            DnsRecord(self._host, Type.A, self._address, ttl),
        ]

    def encode(self, ttl: int = TTL_S) -> bytes:
        """Return the encoded announcement of this node. With a TTL of 0 it is a goodbye (RFC 6762,
        section 10.1)."""
        return dns.encode(DnsMessage(True, [], self.records(ttl)))

    def encode_service(self) -> bytes:
        """Return the encoded reply to a query for all types of services (RFC 6763, section 9)."""
        kind = DnsRecord(_EVERY_SERVICE, Type.PTR, SERVICE, TTL_S, shared=True)
        return dns.encode(DnsMessage(True, [], [kind]))

    def asks_for_kinds(self, message: DnsMessage) -> bool:
        """Return whether a query asks for all types of services."""
        wanted = _EVERY_SERVICE
        return any(each.name == wanted and _is(each, Type.PTR) for each in message.questions)

    def is_asked(self, message: DnsMessage) -> bool:
        """Return whether a query asks for this node and does not list it as already known (RFC
        6762, section 7.1)."""
        return any(map(self._is_ours, message.questions)) and not any(
            record.type is Type.PTR and record.data == self._name and record.ttl >= TTL_S / 2
            for record in message.records
        )

    def _is_ours(self, question: DnsQuestion) -> bool:
        wanted = {SERVICE: (Type.PTR,), self._name: (Type.SRV, Type.TXT), self._host: (Type.A,)}
        return any(_is(question, kind) for kind in wanted.get(question.name, ()))

    def read(self, message: DnsMessage, source: str) -> list[FoundPeer]:
        """Return the peers of this node's swarm in a response from the IP address `source`.

        A peer counts only if it announces the address from which the response was sent. A host
        therefore cannot make this node dial a third host, unless it forges its source address. This
        node's own announcements, which the multicast group returns to it, are left out.
        """
        found = [_read(message, name, source, self._tag) for name in _instances(message)]
        return [item for item in found if item is not None and item.peer != self._peer]


def query(known: Iterable[tuple[bytes, int]]) -> bytes:
    """Return an encoded query for peers. `known` has (instance, remaining TTL in seconds) of peers
    that need not reply."""
    records = [
        DnsRecord(SERVICE, Type.PTR, (instance, *SERVICE), ttl, shared=True)
        for instance, ttl in known
    ]
    return dns.encode(DnsMessage(False, [DnsQuestion(SERVICE, Type.PTR)], records))


def _is(question: DnsQuestion, kind: Type) -> bool:
    return question.type in (kind, Type.ANY)


def _instances(message: DnsMessage) -> list[Name]:
    """Return the names of the instances of our service in a message, without duplicates."""
    names = [
        record.name
        for record in message.records
        if record.type is Type.SRV and record.name[1:] == SERVICE
    ]
    return list(dict.fromkeys(names))


def _read(message: DnsMessage, name: Name, source: str, tag: bytes) -> FoundPeer | None:
    """Return the peer that an instance in a response belongs to. Return None unless all its records
    are present and consistent."""
    service: dns.SrvData | None = None
    texts: tuple[bytes, ...] = ()
    ttl = LONGEST_TTL_S
    for record in message.records:
        if record.name != name:
            continue
        if isinstance(record.data, dns.SrvData):
            service, ttl = record.data, min(ttl, record.ttl)
        elif record.type is Type.TXT and isinstance(record.data, tuple):
            texts, ttl = record.data, min(ttl, record.ttl)
    if service is None or not service.port or b"s=" + tag not in texts:
        return None
    if not _says(message, service.host, source):
        return None
    peer = _peer(texts)
    return FoundPeer(peer, (source, service.port), ttl, name[0]) if peer is not None else None


def _says(message: DnsMessage, host: Name, source: str) -> bool:
    """Return whether the response gives its source address as the address of `host`."""
    return any(
        record.type is Type.A and record.name == host and str(record.data) == source
        for record in message.records
    )


def _peer(texts: tuple[bytes, ...]) -> PeerId | None:
    for text in texts:
        if text.startswith(b"p="):
            try:
                return parse_peer_id(text[2:].decode("latin-1"))
            except TransportError:
                return None
    return None
