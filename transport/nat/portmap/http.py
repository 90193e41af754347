"""HTTP/1.1 with a home router, without I/O.

Encodes one request, and parses one response of bounded size with h11.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Final

import h11

from .defaults import BODY_BYTES, HEAD_BYTES, URL_LETTERS

_URL: Final = re.compile(r"http://([0-9.]{7,15})(?::([0-9]{1,5}))?(/[!-~]*)?", re.IGNORECASE)
_PATH: Final = re.compile(r"[!-~]+")
_HTTP_PORT: Final = 80
_HEAD_TOO_LARGE: Final = 431


@dataclass(frozen=True, slots=True)
class Url:
    """URL of the scheme `http`. Its host is an IPv4 address.

    Host names are not accepted: a stranger must not make this node look up a name.
    """

    address: str
    port: int
    path: str


def parse_url(text: str) -> Url | None:
    """Parse an absolute `http` URL. Return None if it is malformed or has no IPv4 address."""
    found = _URL.fullmatch(text) if len(text) <= URL_LETTERS else None
    if found is None:
        return None
    try:
        address = str(IPv4Address(found[1]))
    except ValueError:
        return None
    port = int(found[2] or _HTTP_PORT)
    return Url(address, port, found[3] or "/") if 0 < port <= 65535 else None


def resolve_url(text: str, base: Url) -> Url | None:
    """Resolve a URL reference in a document that was read from `base` (RFC 3986, section 5).

    Supports absolute URLs, absolute paths and relative paths, as routers use them. Returns None for
    everything else.
    """
    if "://" in text:
        return parse_url(text)
    if len(text) > URL_LETTERS or not _PATH.fullmatch(text) or text.startswith("//"):
        return None
    if text.startswith("/"):
        return replace(base, path=text)
    return replace(base, path=base.path.rpartition("/")[0] + "/" + text)


def encode_request(url: Url, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """Encode a POST request if there is a body, else a GET request.

    The request asks the server to close the connection after its response. `fields` are additional
    header fields.
    """
    lines = [
        f"{'POST' if body else 'GET'} {url.path} HTTP/1.1",
        f"Host: {url.address}:{url.port}",
        "User-Agent: shoal UPnP/1.1",
        "Connection: close",
        *(f"{name}: {value}" for name, value in fields.items()),
        *([f"Content-Length: {len(body)}"] if body else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """An HTTP response."""

    status: int
    body: bytes


class Bad(StrEnum):
    """Reason why there is no valid response, in words for the user."""

    UNREACHABLE = "it cannot be reached"
    LATE = "it took too long"
    TOO_LARGE = "its answer is too large"
    MALFORMED = "its answer makes no sense"
    CUT_OFF = "its answer ended early"


class ResponseReader:
    """Parser of one response, at most `HEAD_BYTES` of head and `BODY_BYTES` of body."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        # h11 parses a response only after a request. It does not encode ours (see
        # `encode_request`).
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "router")]))
        self._http.send(h11.EndOfMessage())
        self._status = 0
        self._body = bytearray()

    def feed(self, data: bytes) -> GatewayResponse | Bad | None:
        """Parse further bytes of the response.

        Returns the response once it is complete, or the reason if it is invalid, else None.
        """
        if not data:  # h11 would interpret this as the end of the connection
            return None
        try:
            self._http.receive_data(data)
            return self._read()
        except h11.RemoteProtocolError as error:
            return Bad.TOO_LARGE if error.error_status_hint == _HEAD_TOO_LARGE else Bad.MALFORMED

    def end(self) -> GatewayResponse | Bad:
        """Process the end of the connection. Return the response, or why there is none."""
        try:
            self._http.receive_data(b"")
            return self._read() or Bad.CUT_OFF
        except h11.RemoteProtocolError:
            return Bad.CUT_OFF

    def _read(self) -> GatewayResponse | Bad | None:
        """Process what h11 has parsed. Raises h11.RemoteProtocolError if it is malformed."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self._status = event.status_code
                if int(dict(event.headers).get(b"content-length", b"0")) > BODY_BYTES:
                    return Bad.TOO_LARGE
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_BYTES:
                    return Bad.TOO_LARGE
            elif isinstance(event, h11.EndOfMessage):
                return GatewayResponse(self._status, bytes(self._body))
            elif not isinstance(event, h11.InformationalResponse):
                return None
