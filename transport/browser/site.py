"""The gate's web site: its pages, the host names and origins that it accepts, and its headers. No
I/O.

Any page in the owner's browser can send requests to an address on the owner's machine. A hostile
DNS server can even make them same-origin requests, by resolving its own name to that address (DNS
rebinding). A request must therefore name a host that the owner has configured. It must also come
from a page of the gate itself, or of an origin that the owner has listed.
"""

from collections.abc import Collection, Mapping
from typing import Final

from .exchange import HttpRefusal, HttpRequest, HttpResponse

JOIN: Final = "/webrtc"
_TYPES: Final = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FILES: Final = (
    "shoal.js",
    "bytes.js",
    "frame.js",
    "identity.js",
    "link.js",
    "msgpack.js",
    "page.js",
)
PAGES: Final = {"/": "index.html", **{f"/{name}": name for name in _FILES}}
_SAFE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}


class GateSite:
    """The responses of the gate's web site. `pages` maps file names to contents. `hosts` are the
    accepted values of the Host header, in lower case. `origins` are the other sites whose pages may
    join here (`https://example.org`)."""

    def __init__(
        self, pages: Mapping[str, bytes], hosts: Collection[str], origins: Collection[str]
    ) -> None:
        self._pages = pages
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)

    def check(self, request: HttpRequest) -> None:
        """Check that a request names an accepted host and comes from an allowed origin. Raises
        HttpRefusal if not."""
        host = request.headers.get("host", "").lower()
        if host not in self._hosts:
            raise HttpRefusal(421, "this name is not served here")
        origin = request.headers.get("origin")
        if origin is not None and not self._may_ask(origin, host):
            raise HttpRefusal(403, "this origin may not ask")

    def _may_ask(self, origin: str, host: str) -> bool:
        return origin in self._origins or origin.lower() in (f"http://{host}", f"https://{host}")

    def answer(self, request: HttpRequest) -> HttpResponse | None:
        """Return the response to a request, or None if it is a request to join. Raises HttpRefusal
        if there is no such page or the method is not allowed."""
        path = request.target.partition("?")[0]
        if path == JOIN:
            return self._before_join(request)
        name = PAGES.get(path)
        if name is None:
            raise HttpRefusal(404, "no such page")
        if request.method not in ("GET", "HEAD"):
            raise HttpRefusal(405, "pages are only read")
        kind = _TYPES[name.rpartition(".")[2]]
        return HttpResponse(200, self._pages[name], {"Content-Type": kind, **_SAFE})

    def _before_join(self, request: HttpRequest) -> HttpResponse | None:
        if request.method == "OPTIONS":
            return HttpResponse(204, b"", self.sharing(request))
        if request.method != "POST":
            raise HttpRefusal(405, "an offer is posted")
        # A page of another site cannot send this type without a preflight request (CORS).
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HttpRefusal(415, "an offer is posted as application/json")
        return None

    def sharing(self, request: HttpRequest) -> dict[str, str]:
        """Return the CORS headers that let a page of a listed origin read the response. For other
        origins, return no headers."""
        origin = request.headers.get("origin")
        if origin not in self._origins or origin is None:
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": "content-type",
            "Vary": "Origin",
        }

    def document(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the response to a request to join. `body` is the JSON document."""
        headers = {"Content-Type": "application/json", **_SAFE, **self.sharing(request)}
        return HttpResponse(200, body, headers)


def refusal(refused: HttpRefusal) -> HttpResponse:
    """Return the HTTP response for a refused request."""
    headers = {"Content-Type": "text/plain; charset=utf-8", **_SAFE}
    return HttpResponse(refused.status, f"{refused.words}\n".encode(), headers)
