"""A minimal HTTP/1.1 client for home routers: one request, one response of bounded size."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Final

from .defaults import BODY_BYTES, HEAD_BYTES, URL_LETTERS

_URL: Final = re.compile(r"http://([0-9.]{7,15})(?::([0-9]{1,5}))?(/[!-~]*)?", re.IGNORECASE)
_PATH: Final = re.compile(r"[!-~]+")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?")
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,6})(?:[ \t]*;[^\r\n]*)?")
_HTTP_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class Url:
    """An `http` URL with an IPv4 address; host names are refused, so that a device on the LAN
    cannot make this node look one up."""

    address: str
    port: int
    path: str


def parse_url(text: str) -> Url | None:
    """Parse an absolute http URL with an IPv4 address; return None for anything else."""
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
    """Resolve a reference inside a document that was read from `base` (the part of RFC 3986,
    section 5, that routers use); return None if it is not valid."""
    if "://" in text:
        return parse_url(text)
    if len(text) > URL_LETTERS or not _PATH.fullmatch(text) or text.startswith("//"):
        return None
    if text.startswith("/"):
        return replace(base, path=text)
    return replace(base, path=base.path.rpartition("/")[0] + "/" + text)


def encode_request(url: Url, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """Encode a GET, or a POST if there is a body; the server closes after its response."""
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
class Response:
    status: int
    body: bytes


class Bad(StrEnum):
    """Why there is no response."""

    UNREACHABLE = "it cannot be reached"
    LATE = "it took too long"
    TOO_LARGE = "its answer is too large"
    MALFORMED = "its answer makes no sense"
    CUT_OFF = "its answer ended early"


class ResponseReader:
    """Parses one response from its bytes; buffers at most `HEAD_BYTES` and `BODY_BYTES`."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._body: bytearray | None = None  # None while the head is read
        self._status = 0
        self._rest: int | None = None  # bytes of the body or chunk still to come; None: to the end
        self._chunked = False

    def feed(self, data: bytes) -> Response | Bad | None:
        """Add received bytes; return the response or what is wrong with it, None if incomplete."""
        self._data += data
        if self._body is None:
            fault = self._head()
            if fault is not None or self._body is None:
                return fault
        return self._chunks() if self._chunked else self._plain()

    def end(self) -> Response | Bad:
        """Take the end of the connection; return the response or what is wrong with it."""
        if self._body is None or self._chunked or self._rest is not None:
            return Bad.CUT_OFF
        return Response(self._status, bytes(self._body))

    def _head(self) -> Bad | None:
        end = self._data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        if end < 0:
            return Bad.TOO_LARGE if len(self._data) >= HEAD_BYTES else None
        first, *lines = bytes(self._data[:end]).split(b"\r\n")
        del self._data[: end + 4]
        found = _STATUS.fullmatch(first)
        if found is None:
            return Bad.MALFORMED
        self._status, self._body = int(found[1]), bytearray()
        return self._framing(_fields(lines))

    def _framing(self, fields: Mapping[bytes, bytes]) -> Bad | None:
        self._chunked = b"chunked" in fields.get(b"transfer-encoding", b"").lower()
        length = fields.get(b"content-length")
        if self._chunked or length is None:
            return None
        if not length.isdigit():
            return Bad.MALFORMED
        if len(length) > 9 or int(length) > BODY_BYTES:
            return Bad.TOO_LARGE
        self._rest = int(length)
        return None

    def _plain(self) -> Response | Bad | None:
        assert self._body is not None
        taken = self._data if self._rest is None else self._data[: self._rest]
        self._body += taken
        self._data.clear()
        if len(self._body) > BODY_BYTES:
            return Bad.TOO_LARGE
        if self._rest is not None:
            self._rest -= len(taken)
            if not self._rest:
                return Response(self._status, bytes(self._body))
        return None

    def _chunks(self) -> Response | Bad | None:
        """Read a chunked body (RFC 9112, section 7.1); return without waiting for trailers."""
        assert self._body is not None
        while True:
            if self._rest is None:
                end = self._data.find(b"\r\n", 0, 256)
                if end < 0:
                    return Bad.MALFORMED if len(self._data) >= 256 else None
                found = _SIZE.fullmatch(self._data[:end])
                if found is None:
                    return Bad.MALFORMED
                del self._data[: end + 2]
                self._rest = int(found[1], 16)
                if not self._rest:
                    return Response(self._status, bytes(self._body))
                if len(self._body) + self._rest > BODY_BYTES:
                    return Bad.TOO_LARGE
            if len(self._data) < self._rest + 2:
                return None
            if self._data[self._rest : self._rest + 2] != b"\r\n":
                return Bad.MALFORMED
            self._body += self._data[: self._rest]
            del self._data[: self._rest + 2]
            self._rest = None


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    """Return the header fields by lower-case name; the last one counts if a name repeats."""
    pairs = (line.partition(b":") for line in lines)
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}
