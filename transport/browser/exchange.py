"""One HTTP/1.1 request and its response (RFC 9112), parsed by h11 within the bounds of this
project. No I/O.

A connection carries only one request. A browser that joins sends three requests.
"""

from dataclasses import dataclass, field
from typing import Final

import h11

from . import defaults

_REASONS: Final = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    429: "Too Many Requests",
    503: "Service Unavailable",
}


class HttpRefusal(Exception):
    """Raised to refuse a request. `status` is the HTTP status, and `words` explain the reason to
    the author of the page."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A complete request. Header names are in lower case. If a header occurs several times, the
    last one counts, but a second Host header is refused."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response: its status, body and headers."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class HttpExchange:
    """The server's side of one HTTP connection."""

    def __init__(self) -> None:
        self._http = h11.Connection(
            h11.SERVER, max_incomplete_event_size=defaults.REQUEST_HEAD_BYTES
        )
        self._head: h11.Request | None = None
        self._body = b""

    def receive(self, data: bytes) -> HttpRequest | None:
        """Process received bytes (b"" at their end). Return the request once it is complete, and
        None before that.

        Raises HttpRefusal if the request is malformed, too large, or incomplete at the end.
        """
        try:
            self._http.receive_data(data)
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    self._take_head(event)
                elif isinstance(event, h11.Data):
                    self._take_body(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    return self._whole()
                elif event is h11.NEED_DATA:
                    return None
                else:
                    raise HttpRefusal(400, "the connection ended too early")
        except h11.RemoteProtocolError as error:
            status = 400 if error.error_status_hint not in _REASONS else error.error_status_hint
            raise HttpRefusal(status, "the request is malformed") from None

    def respond(self, response: HttpResponse) -> bytes:
        """Return the encoded response, which is the last one on this connection. Return b"" if no
        response can be sent any more."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return b""
        headers = {
            **response.headers,
            "Content-Length": str(len(response.body)),
            "Connection": "close",
        }
        head = h11.Response(
            status_code=response.status,
            reason=_REASONS[response.status].encode(),
            headers=list(headers.items()),
        )
        parts = [self._http.send(head)]
        if response.body and not self._asked_for_the_head:
            parts.append(self._http.send(h11.Data(data=response.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        return b"".join(part or b"" for part in parts)

    @property
    def _asked_for_the_head(self) -> bool:
        """Whether the request is HEAD. The response to it must not have a body and states only the
        body's length (RFC 9110, section 9.3.2)."""
        return self._head is not None and self._head.method == b"HEAD"

    def _take_head(self, head: h11.Request) -> None:
        self._head = head
        if head.method == b"CONNECT":
            raise HttpRefusal(405, "this is no proxy")
        length = self._headers().get("content-length", "0")
        if not length.isdecimal() or int(length[:9]) > defaults.BODY_BYTES or len(length) > 9:
            raise HttpRefusal(413, f"at most {defaults.BODY_BYTES} bytes are read")

    def _take_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > defaults.BODY_BYTES:
            raise HttpRefusal(413, f"at most {defaults.BODY_BYTES} bytes are read")

    def _headers(self) -> dict[str, str]:
        assert self._head is not None
        return {name.decode("ascii"): value.decode("latin-1") for name, value in self._head.headers}

    def _whole(self) -> HttpRequest:
        assert self._head is not None
        return HttpRequest(
            self._head.method.decode("ascii"),
            self._head.target.decode("ascii"),
            self._headers(),
            self._body,
        )
