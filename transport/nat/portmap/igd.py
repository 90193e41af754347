"""Encoding of the messages for UPnP Internet Gateway Devices. No I/O.

Covers the search for a gateway (SSDP, UPnP Device Architecture 1.1, section 1.3), its device
description, and its actions. Supports the services WANIPConnection:1, WANIPConnection:2 and
WANPPPConnection:1. "UDA" is the UPnP Device Architecture.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from .defaults import LOCATIONS, SEARCH_S, SSDP_BYTES
from .http import GatewayResponse, Url, parse_url, resolve_url
from .xmltree import Element, parse

_URN: Final = "urn:schemas-upnp-org:service:"
KINDS: Final = (_URN + "WANIPConnection:2", _URN + "WANIPConnection:1", _URN + "WANPPPConnection:1")
"""Types of services that map ports, the best first."""
_ENVELOPE: Final = "http://schemas.xmlsoap.org/soap/envelope/"
_VALUE_LETTERS: Final = 256  # longest value of a result, in characters

# Error codes of actions (WANIPConnection:2, section 2.5; UDA 1.1, section 3.2.2).
INVALID_ACTION: Final = 401
INVALID_ARGS: Final = 402
OPTIONAL_ACTION: Final = 602
NO_SUCH_ENTRY: Final = 714
CONFLICT: Final = 718
SAME_PORT: Final = 724
ONLY_PERMANENT: Final = 725
NO_PORTS: Final = 728
OTHER_CONFLICT: Final = 729

# Words for the user, to follow the name of the protocol.
WORDS: Final = {
    INVALID_ACTION: "does not know the request",
    INVALID_ARGS: "does not take such a request",
    501: "could not do it",
    606: "does not allow it (mapping may be switched off in its settings)",
    CONFLICT: "has given the port to another computer",
    SAME_PORT: "gives no port but the computer's own number, which another computer has",
    ONLY_PERMANENT: "gives ports without an end only",
    NO_PORTS: "has no port left",
    OTHER_CONFLICT: "uses the port itself",
}


@dataclass(frozen=True, slots=True)
class IgdService:
    """A service of a gateway."""

    kind: str  # one of `KINDS`
    control: Url  # to which actions are sent

    @property
    def any_port(self) -> bool:
        """Whether the service has the action AddAnyPortMapping, with which it chooses the port."""
        return self.kind == KINDS[0]


@dataclass(frozen=True, slots=True)
class IgdFault:
    """A gateway's refusal of an action."""

    code: int  # one of the codes above, or another one; 0 if the gateway stated none

    @property
    def words(self) -> str:
        """The reason for the refusal, for the user, in our own words."""
        return WORDS.get(self.code, f"refused with code {self.code}")


def decode_description(body: bytes, base: Url) -> list[IgdService]:
    """Decode a device description. Return its services that map ports, the best first.

    There are at most `LOCATIONS` of them. `base` is the URL of the description. Services at another
    IP address than the description are left out.
    """
    root = parse(body)
    if root is None:
        return []
    stated = resolve_url(root.value("URLBase") or "/", base)
    origin = stated if root.find("URLBase") is not None and stated is not None else base
    found = [_service(element, origin) for element in root.walk() if element.name == "service"]
    services = [item for item in found if item and item.control.address == base.address]
    return sorted(dict.fromkeys(services), key=lambda item: KINDS.index(item.kind))[:LOCATIONS]


def _service(element: Element, base: Url) -> IgdService | None:
    """Decode one element `service`. Return None if the service does not map ports."""
    kind, control = element.value("serviceType"), element.value("controlURL")
    url = resolve_url(control, base) if kind in KINDS else None
    return IgdService(kind, url) if url is not None else None


def encode_action(
    service: IgdService, name: str, arguments: Mapping[str, str]
) -> tuple[dict[str, str], bytes]:
    """Encode an action as a SOAP request (UDA 1.1, section 3.1.1). Return (header fields, body)."""
    inner = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in arguments.items())
    body = (
        f'<?xml version="1.0"?>\r\n<s:Envelope xmlns:s="{_ENVELOPE}" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
        f'<u:{name} xmlns:u="{service.kind}">{inner}</u:{name}></s:Body></s:Envelope>\r\n'
    )
    fields = {
        "Content-Type": 'text/xml; charset="utf-8"',
        "SOAPAction": f'"{service.kind}#{name}"',
    }
    return fields, body.encode()


def decode_result(name: str, response: GatewayResponse) -> dict[str, str] | IgdFault:
    """Decode the response to an action. Return its results by name, or the refusal.

    Values are truncated to 256 characters.
    """
    root = parse(response.body)
    if root is None:
        return IgdFault(0)
    elements = root.walk()
    if response.status == 200:
        for element in elements:
            if element.name == name + "Response":
                return {child.name: child.text[:_VALUE_LETTERS] for child in element.children[:32]}
    codes = [element.text for element in elements if element.name == "errorCode"]
    return IgdFault(number(codes[0], 9999) if codes else 0)


def number(text: str, most: int) -> int:
    """Parse a decimal number from the gateway. Return 0 if it is invalid or above `most`."""
    good = text.isascii() and text.isdecimal() and len(text) <= 10
    return int(text) if good and int(text) <= most else 0


GROUP: Final = ("239.255.255.250", 1900)
"""Multicast group and UDP port to which searches are sent."""
TARGETS: Final = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
"""Types of devices and services to search for, the best first."""


def encode_search(target: str) -> bytes:
    """Encode a search request (M-SEARCH) for one of the `TARGETS`."""
    return (
        f"M-SEARCH * HTTP/1.1\r\nHOST: {GROUP[0]}:{GROUP[1]}\r\n"
        f'MAN: "ssdp:discover"\r\nMX: {SEARCH_S}\r\nST: {target}\r\n\r\n'
    ).encode("ascii")


def decode_answer(data: bytes, gateway: str) -> Url | None:
    """Decode a reply to a search. Return the URL of the gateway's device description.

    Returns None if `data` is not a reply to a search, or if the URL has another address than
    `gateway`: any device in the LAN may reply.
    """
    if len(data) > SSDP_BYTES:
        return None
    first, *lines = data.decode("latin-1").split("\r\n")
    if not first.startswith("HTTP/1.1 200") and not first.startswith("HTTP/1.0 200"):
        return None
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if fields.get("st") not in TARGETS:
        return None
    url = parse_url(fields.get("location", ""))
    return url if url is not None and url.address == gateway else None
