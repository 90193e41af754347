"""Where a peer can be reached: an IP address or a name, a TCP port, and who should answer."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, Self

from .defaults import ADDRESS_LETTERS
from .errors import TransportError
from .identity import PeerId, parse_peer_id

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_NAME_LETTERS = 253  # RFC 1035, 2.3.4

DnsKind = Literal["dns", "dns4", "dns6"]


@dataclass(frozen=True, slots=True)
class Address:
    """`host` is an IP address or a DNS name, `port` a TCP port, `peer` who must answer.

    `dns` says which IP version a name is resolved to (`dns`: any); it means nothing for an
    IP address. `str()` gives the multiaddr.
    """

    host: str
    port: int
    peer: PeerId | None = None
    dns: DnsKind = "dns"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a multiaddr (`/ip4/1.2.3.4/tcp/4001/p2p/12D3…`) or `host:port`, `[::1]:4001`.

        Raises `TransportError("bad-address")`.
        """
        if len(text) > ADDRESS_LETTERS:
            raise _bad(text[:40] + "…", f"it has more than {ADDRESS_LETTERS} letters")
        return cls._parse_multiaddr(text) if text.startswith("/") else cls._parse_plain(text)

    @classmethod
    def _parse_multiaddr(cls, text: str) -> Self:
        parts = text.split("/")[1:]
        if len(parts) not in (4, 6) or parts[2] != "tcp":
            raise _bad(text, "it is not like `/ip4/1.2.3.4/tcp/4001/p2p/12D3…`")
        peer = None
        if len(parts) == 6:
            if parts[4] != "p2p":
                raise _bad(text, f"`/{parts[4]}` is not understood")
            peer = _peer(text, parts[5])
        kind = parts[0]
        if kind in ("ip4", "ip6"):
            return cls(_ip(text, parts[1], int(kind[2])), _port(text, parts[3]), peer)
        if kind not in ("dns", "dns4", "dns6"):
            raise _bad(text, f"`/{kind}` is not understood")
        dns: DnsKind = kind  # type: ignore[assignment]  # mypy does not narrow by `in`
        return cls(_name(text, parts[1]), _port(text, parts[3]), peer, dns)

    @classmethod
    def _parse_plain(cls, text: str) -> Self:
        host, colon, port = text.rpartition(":")
        if not colon:
            raise _bad(text, "the port is missing", hint=f"write `{text}:4001`")
        if host.startswith("[") and host.endswith("]"):
            return cls(_ip(text, host[1:-1], 6), _port(text, port))
        if ":" in host:
            raise _bad(text, "an IPv6 address stands in brackets", hint=f"write `[{host}]:{port}`")
        if re.fullmatch(r"[0-9.]+", host, re.ASCII):
            return cls(_ip(text, host, 4), _port(text, port))
        return cls(_name(text, host), _port(text, port))

    def __str__(self) -> str:
        kind = self.dns if not _is_ip(self.host) else "ip6" if ":" in self.host else "ip4"
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        return f"/{kind}/{self.host}/tcp/{self.port}{suffix}"


def _bad(text: str, reason: str, *, hint: str | None = None) -> TransportError:
    shown = text if text.isprintable() else ascii(text)
    return TransportError("bad-address", f"`{shown}` is not an address: {reason}", hint=hint)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _ip(text: str, host: str, version: int) -> str:
    try:
        if "%" in host:  # a zone means something on one machine only
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
