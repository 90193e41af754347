"""Addresses of peers, written as multiaddrs (https://github.com/multiformats/multiaddr).

An address consists of an IP address or a DNS name, a port, optionally the peer that must answer
there, and optionally the relay through which that peer is reached.
"""

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .defaults import ADDRESS_LETTERS
from .errors import TransportError
from .identity import PeerId, parse_peer_id

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_NAME_LETTERS = 253  # RFC 1035, section 2.3.4

DnsKind = Literal["dns", "dns4", "dns6"]
Transport = Literal["tcp", "udp"]
_CIRCUIT = "/p2p-circuit"
_AFTER_PORT = {"tcp": "", "udp": "/quic-v1"}  # what follows the port in a multiaddr


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a peer. `host` is an IP address or a DNS name, and `port` a TCP or UDP port.
    `peer`, if given, is the peer that must answer there.

    `dns` names the IP version to which a DNS name is resolved (`dns` means either version). For an
    IP address it has no meaning. If `relay` is given, the peer is reached through that node, and
    `host`, `port`, `dns` and `transport` are those of the relay. The method `through` builds such
    an address. `str()` returns the multiaddr.
    """

    host: str
    port: int
    peer: PeerId | None = None
    dns: DnsKind = "dns"
    transport: Transport = "tcp"
    relay: "Address | None" = None

    def __post_init__(self) -> None:
        relay = self.relay
        if relay is not None and (
            self.peer is None
            or relay.peer in (None, self.peer)
            or relay.relay is not None  # a relay behind a relay is not allowed
            or (self.host, self.port, self.dns, self.transport)
            != (relay.host, relay.port, relay.dns, relay.transport)
        ):
            raise ValueError("an address through a relay is made by `relay.through(peer)`")

    def through(self, peer: PeerId) -> "Address":
        """Return the address of `peer` through the relay at this address. This address must name
        its own peer, which is the relay.

        Raises ValueError if this address already leads through a relay, if it names no peer, or if
        `peer` is the relay itself.
        """
        return Address(self.host, self.port, peer, self.dns, self.transport, self)

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse a multiaddr, or `host:port` such as `[::1]:4001`. Multiaddrs look like
        `/ip4/1.2.3.4/tcp/4001/p2p/12D3…` or `/ip4/1.2.3.4/udp/4001/quic-v1/p2p/12D3…`, either one
        optionally followed by `/p2p-circuit/p2p/12D3…`.

        Raises TransportError with code `bad-address` if the text has neither form.
        """
        if len(text) > ADDRESS_LETTERS:
            raise _bad(text[:40] + "…", f"it has more than {ADDRESS_LETTERS} letters")
        return _parsed(text)

    @classmethod
    def _parse(cls, text: str) -> "Address":
        if not text.startswith("/"):
            return cls._parse_plain(text)
        front, circuit, behind = text.partition(_CIRCUIT)
        address = cls._parse_multiaddr(text, front)
        return address._parse_target(text, behind) if circuit else address

    def _parse_target(self, text: str, behind: str) -> "Address":
        if self.peer is None:
            raise _bad(text, "it does not say which relay this is")
        if not behind.startswith("/p2p/"):
            raise _bad(text, "it does not name the peer behind the relay")
        try:
            return self.through(_peer(text, behind.removeprefix("/p2p/")))
        except ValueError:
            raise _bad(text, "the relay leads to itself") from None

    @classmethod
    def _parse_multiaddr(cls, text: str, front: str) -> "Address":
        parts = front.split("/")[1:]
        if len(parts) < 4 or parts[2] not in ("tcp", "udp"):
            raise _bad(text, "expected a form like `/ip4/1.2.3.4/tcp/4001/p2p/12D3…`")
        (kind, host, carrier, port), rest = parts[:4], parts[4:]
        transport: Transport = "udp" if carrier == "udp" else "tcp"
        if transport == "udp":
            if rest[:1] != ["quic-v1"]:
                raise _bad(
                    text, "the protocol over UDP is missing", hint="write `/udp/4001/quic-v1`"
                )
            del rest[0]
        if rest and (len(rest) != 2 or rest[0] != "p2p"):
            raise _bad(text, f"`/{'/'.join(rest)}` is not understood")
        peer = _peer(text, rest[1]) if rest else None
        number = _port(text, port)
        if kind in ("ip4", "ip6"):
            return cls(_ip(text, host, int(kind[2])), number, peer, "dns", transport)
        if kind not in ("dns", "dns4", "dns6"):
            raise _bad(text, f"`/{kind}` is not understood")
        dns: DnsKind = kind  # type: ignore[assignment]  # mypy does not narrow by `in`
        return cls(_name(text, host), number, peer, dns, transport)

    @classmethod
    def _parse_plain(cls, text: str) -> "Address":
        host, colon, port = text.rpartition(":")
        if not colon:
            raise _bad(text, "the port is missing", hint=f"write `{text}:4001`")
        if host.startswith("[") and host.endswith("]"):
            return cls(_ip(text, host[1:-1], 6), _port(text, port))
        if ":" in host:
            raise _bad(text, "an IPv6 address needs brackets", hint=f"write `[{host}]:{port}`")
        if re.fullmatch(r"[0-9.]+", host, re.ASCII):
            return cls(_ip(text, host, 4), _port(text, port))
        return cls(_name(text, host), _port(text, port))

    def __str__(self) -> str:
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        if self.relay is not None:
            return f"{self.relay}{_CIRCUIT}{suffix}"
        kind = self.dns if not _is_ip(self.host) else "ip6" if ":" in self.host else "ip4"
        after = _AFTER_PORT[self.transport]
        return f"/{kind}/{self.host}/{self.transport}/{self.port}{after}{suffix}"


@lru_cache(1024)  # a node parses each address of a record whenever it may dial the member
def _parsed(text: str) -> Address:
    return Address._parse(text)


def _bad(text: str, reason: str, *, hint: str | None = None) -> TransportError:
    shown = text if text.isprintable() else ascii(text)
    return TransportError("bad-address", f"`{shown}` is not an address: {reason}", hint=hint)


@lru_cache(4096)  # each address is converted to text many times
def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _ip(text: str, host: str, version: int) -> str:
    try:
        if "%" in host:  # a zone (RFC 4007) has a meaning on one machine only
            raise ValueError(host)
        address = ipaddress.IPv4Address(host) if version == 4 else ipaddress.IPv6Address(host)
    except ValueError:
        raise _bad(text, f"`{host}` is not an IPv{version} address") from None
    return str(address)


def _port(text: str, port: str) -> int:
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise _bad(text, f"`{port}` is not a port from 1 to 65535")
    return int(port)


def _name(text: str, name: str) -> str:
    name = name.lower()
    labels = name.split(".")
    good = len(name) <= _NAME_LETTERS and all(map(_LABEL.fullmatch, labels))
    if not good or labels[-1].isdigit():  # a name that ends in a number is a mistyped IPv4
        raise _bad(text, f"`{name}` is not a DNS name")
    return name


def _peer(text: str, peer: str) -> PeerId:
    try:
        return parse_peer_id(peer)
    except TransportError as error:
        raise _bad(text, error.message) from None
