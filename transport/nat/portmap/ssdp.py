"""Encoding of SSDP, the search for UPnP devices (UPnP Device Architecture 1.1, section 1.3)."""

from typing import Final

from .defaults import SEARCH_S, SSDP_BYTES
from .http import Url, parse_url

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
