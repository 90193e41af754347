"""Checks of the headers that every request must pass before anything else of it is read. No I/O.

Any page in a browser on this machine can send requests to the API's port, and a hostile DNS server
can make them same-origin requests by resolving its own name to loopback (DNS rebinding). Therefore
the Host header must name loopback, and a request from a page of another origin is refused. Other
users of this machine can connect too, so each request needs the token of the data folder.
"""

import re
from collections.abc import Iterable
from hmac import compare_digest
from typing import Final

from ..errors import ApiRefusal

Headers = Iterable[tuple[bytes, bytes]]
"""Pairs of a name in lower case and a value."""
_LOOPBACK: Final = re.compile(rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?")
_BEARER: Final = re.compile(rb"bearer +([\x21-\x7e]+)", re.IGNORECASE)


class Door:
    """Checks of one node's API."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def check(self, headers: Headers) -> None:
        """Raise ApiRefusal unless the request names a loopback host, comes from no foreign page,
        and has the token."""
        values: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"authorization": []}
        for name, value in headers:
            if name in values:
                values[name].append(value)
        host = self._host(values[b"host"])
        origins = values[b"origin"]
        if origins and origins != [b"http://" + host]:
            raise ApiRefusal(
                403, "forbidden_origin", "pages of another origin may not use this API"
            )
        self._authorize(values[b"authorization"])

    @staticmethod
    def _host(hosts: list[bytes]) -> bytes:
        """Return the value of the only Host header. Raises ApiRefusal if it is not a loopback
        name."""
        if len(hosts) != 1 or not _LOOPBACK.fullmatch(hosts[0].lower()):
            raise ApiRefusal(
                421,
                "wrong_host",
                "this API answers only requests whose Host header is 127.0.0.1, localhost or [::1]",
            )
        return hosts[0]

    def _authorize(self, given: list[bytes]) -> None:
        found = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if found is None or not compare_digest(found[1], self._token):
            what = "no token" if not given else "a wrong token"
            raise ApiRefusal(
                401,
                "invalid_api_key",
                f"expected the header `Authorization: Bearer TOKEN`, got {what}; "
                "`shoal api` prints the token",
            )


def check_body_headers(headers: Headers, limit: int) -> None:
    """Raise ApiRefusal unless the headers announce a JSON body, not compressed, of at most `limit`
    bytes."""
    found = dict(headers)
    kind = found.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ApiRefusal(415, "bad_content_type", "expected the Content-Type application/json")
    if b"content-encoding" in found:
        raise ApiRefusal(415, "bad_content_encoding", "expected a body without Content-Encoding")
    length = found.get(b"content-length", b"")
    if length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise too_large(limit)


def too_large(limit: int) -> ApiRefusal:
    """Return the refusal of a body that exceeds `limit` bytes."""
    return ApiRefusal(413, "request_too_large", f"expected a body of at most {limit} bytes")
