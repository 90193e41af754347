"""Address of an engine, as its owner typed it. No I/O."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from .errors import ShareError

_HINT: Final = "give its address like `shoal share http://127.0.0.1:11434`"
_LOCAL: Final = "127.0.0.1"
_PATHS: Final = ("", "/", "/v1", "/v1/")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """IP address and TCP port of an engine's HTTP server."""

    ip: str
    port: int

    @property
    def url(self) -> str:
        """The base URL, without a path."""
        return f"http://{self.authority}"

    @property
    def authority(self) -> str:
        """IP:PORT, as in the header `Host`."""
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the engine is on this machine."""
        return ip_address(self.ip).is_loopback


def parse_address(text: str) -> EngineAddress:
    """Parse a URL, or IP:PORT. Raises ShareError `bad-address` if it names no HTTP server by its IP
    address.

    A host name is refused, except `localhost`: what it means could change behind the owner's back.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port, name = parts.port, parts.hostname or ""
    except ValueError:
        raise _refused(text, "expected an address like http://127.0.0.1:11434") from None
    if parts.scheme != "http":
        raise _refused(text, "expected `http`, because engines speak no other protocol")
    if parts.username is not None or parts.query or parts.fragment or parts.path not in _PATHS:
        raise _refused(text, "expected only an address and a port")
    if not port:
        raise _refused(text, "expected a port")
    return EngineAddress(_ip(text, name), port)


def _ip(text: str, name: str) -> str:
    if name == "localhost":
        return _LOCAL
    try:
        found = ip_address(name)
    except ValueError:
        raise _refused(text, "expected an IP address or `localhost`") from None
    if found.is_multicast or found.is_unspecified:
        raise _refused(text, "expected the address of one machine")
    return str(found)


def _refused(text: str, why: str) -> ShareError:
    return ShareError("bad-address", f"{ascii(text)[:80]} is not usable: {why}", hint=_HINT)
