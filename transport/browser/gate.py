"""The gate for browsers: a small HTTP server for pages and offers, and a UDP port for data
channels.

The gate is off by default. A browser fetches the page, posts an offer, receives the answer, and
opens a data channel. Once the browser has proven its peer id on that channel (proof.py), the gate
passes a `BrowserSession` to `deliver`. A lane runs over this session as over any other byte stream.

For host names and origins see docs/spec/browser.md, section 1. A page may use WebCrypto, which
joining requires, only if the browser trusts the page's origin. It does so for pages fetched over
https and for pages from its own machine (`localhost`).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from ..defaults import ACCEPT_PAUSE_S
from ..errors import AddressInUse, HostError
from ..guard import Guard
from ..host.datagrams import Datagrams, Place
from ..host.seam import Host
from ..identity import Identity
from ..limits import Crowd, CrowdEntry
from ..networks import plain_ip
from . import defaults
from .clear import BrowserSession
from .defaults import BrowserLimits
from .exchange import HttpExchange, HttpRefusal, HttpRequest, HttpResponse
from .site import PAGES, GateSite, refusal

if TYPE_CHECKING:  # asyncio is imported only when a gate runs
    from .visits import Visits

_WEB: Final = Path(__file__).parent / "web"
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, slots=True)
class GateStatus:
    """Figures for the user. `browsers` and `joining` are present numbers; the others count since
    the start."""

    browsers: int  # have proven their peer ids
    joining: int  # have received an answer but not proven their peer ids yet
    proven: int  # successful attempts to join
    bad_proofs: int  # attempts with a proof that was not valid
    breaches: int  # channels closed because the browser violated the protocol
    refused: int  # HTTP requests answered with an error status


@dataclass(frozen=True, slots=True)
class Exposure:
    """Host names, origins, proxies and addresses through which browsers may reach a gate, besides
    its own address."""

    hosts: Collection[str] = ()
    """Further values of the Host header to accept (`shoal.example.org`)."""
    origins: Collection[str] = ()
    """Other sites whose pages may join (`https://example.org`)."""
    proxies: Collection[str] = ()
    """IP addresses of reverse proxies whose X-Forwarded-For is trusted."""
    places: Callable[[], list[Place]] = list
    """Returns the addresses by which the UDP port can be reached from outside (port mappings), the
    best first."""


class BrowserGate:
    """A server for browsers on one IP address and one port number, for TCP and UDP.

    `deliver` is called with each session whose browser has proven its peer id. It must not block,
    and owns the byte stream from then on.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        deliver: Callable[[BrowserSession], None],
        *,
        exposure: Exposure | None = None,
        limits: BrowserLimits | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.port = 0
        self.udp_port = 0
        self._host = host
        self._guard = guard or Guard()
        self._identity = identity
        self._deliver = deliver
        self._exposure = exposure or Exposure()
        self._limits = limits or BrowserLimits()
        self._refused = 0
        self._visits: Visits | None = None
        # Connections are counted by subnet in the same way as those to the node's own port.
        each = self._limits.connections_per_subnet
        self._open = Crowd(self._limits.connections, each, each, apart=True)

    @property
    def status(self) -> GateStatus:
        """The present number of browsers, and the results of their attempts to join."""
        if self._visits is None:
            return GateStatus(0, 0, 0, 0, 0, self._refused)
        counts, joining = self._visits.counts, self._visits.joining
        return GateStatus(
            self._visits.count - joining,
            joining,
            counts.proven,
            counts.bad_proofs,
            counts.breaches,
            self._refused,
        )

    async def run(
        self,
        listen: str,
        port: int,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled. Reports the port number through `task_status`.

        Raises AddressInUse if the port is in use, and HostError if aiortc is not installed or the
        port cannot be opened for another reason.
        """
        try:
            from .bridge import open_bridge
            from .visits import Media, Visits
        except ImportError as error:
            raise HostError(
                f"browsers need a package that is not installed (`{error.name}`)",
                hint="`pip install 'shoal[browser]'`",
            ) from None
        pages = await self._host.offload(_load_pages, self._host)
        listener = await self._host.listen(listen, port)
        try:
            self.port = int(listener.socket.getsockname()[1])
            datagrams = await self._udp(listen)
            try:
                async with open_bridge() as bridge:
                    self._visits = Visits(
                        self._host,
                        self._identity,
                        self._deliver,
                        Media(bridge, datagrams),
                        limits=self._limits,
                        guard=self._guard,
                    )
                    site = GateSite(pages, self._hosts(listen), self._exposure.origins)
                    await self._serve(listener, site, self._visits, task_status)
            finally:
                datagrams.close()
        finally:
            listener.socket.close()

    async def _udp(self, listen: str) -> Datagrams:
        """Open the UDP port. It has the same number as the HTTP port if that is free, so that the
        owner has to open only one port number in a firewall."""
        try:
            datagrams = await self._host.datagrams(listen, self.port)
        except AddressInUse:
            datagrams = await self._host.datagrams(listen, 0)
        self.udp_port = datagrams.port
        return datagrams

    def _hosts(self, listen: str) -> set[str]:
        """Return the values of the Host header that this gate accepts."""
        ip = ip_address(listen)
        local = {"127.0.0.1", "[::1]", "localhost"}
        if not ip.is_unspecified:
            local = {f"[{ip}]" if ip.version == 6 else str(ip)}
            local |= {"localhost"} if ip.is_loopback else set()
        further = {name.lower() for name in self._exposure.hosts}
        return further | {f"{name}:{self.port}" for name in local}

    async def _serve(
        self,
        listener: trio.SocketListener,
        site: GateSite,
        visits: "Visits",
        task_status: trio.TaskStatus[int],
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visits.receive)
            task_status.started(self.port)
            while True:
                try:
                    stream = await listener.accept()
                    source = _plain(stream.socket.getpeername()[0])
                    local = _plain(stream.socket.getsockname()[0])
                except OSError:  # out of file descriptors, or the browser has disconnected already
                    await trio.sleep(ACCEPT_PAUSE_S)
                    continue
                entry = self._open.enter(source, self._host.now())
                if entry is None:
                    stream.socket.close()
                    continue
                front = _Front(self, site, visits, nursery, source, local)
                self._guard.start(
                    nursery, source, self._converse, stream, front, entry, end=stream.socket.close
                )

    async def _converse(
        self, stream: trio.SocketStream, front: "_Front", entry: CrowdEntry
    ) -> None:
        """Read one request and send one response, each with a timeout of `request_s` seconds."""
        exchange = HttpExchange()
        response = HttpResponse(408)
        try:
            try:
                with trio.move_on_after(self._limits.request_s):
                    response = front.respond(await _read(stream, exchange))
            except HttpRefusal as refused:
                response = refusal(refused)
            self._refused += response.status >= 400
            with trio.move_on_after(self._limits.request_s):
                await stream.send_all(exchange.respond(response))
                await _hang_up(stream)
        except _GONE:
            pass
        finally:
            self._open.leave(entry)
            stream.socket.close()

    def client(self, request: HttpRequest, source: str) -> str:
        """Return the browser's IP address. If the request came from a trusted proxy, this is the
        last address in X-Forwarded-For."""
        if source not in self._exposure.proxies:
            return source
        said = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        return plain_ip(said) or source

    def candidates(self, local: str) -> list[Place]:
        """Return addresses of the UDP port to offer to a browser. The first one is the address at
        which the browser has reached the HTTP server."""
        return [(local, self.udp_port), *self._exposure.places()]


@dataclass(frozen=True, slots=True)
class _Front:
    """The gate together with the state of one HTTP connection."""

    gate: BrowserGate
    site: GateSite
    visits: "Visits"
    nursery: trio.Nursery
    source: str
    local: str

    def respond(self, request: HttpRequest) -> HttpResponse:
        self.site.check(request)
        response = self.site.answer(request)
        if response is not None:
            return response
        source = self.gate.client(request, self.source)
        places = self.gate.candidates(self.local)
        body = self.visits.join(request.body, source, places, self.nursery)
        return self.site.document(request, body)


async def _read(stream: trio.SocketStream, exchange: HttpExchange) -> HttpRequest:
    """Read a complete request. Raises HttpRefusal if it is not acceptable, and trio's errors if the
    browser disconnects."""
    while True:
        request = exchange.receive(await stream.receive_some(defaults.REQUEST_HEAD_BYTES))
        if request is not None:
            return request


async def _hang_up(stream: trio.SocketStream) -> None:
    """Close the sending side and read the rest of the request. If the socket were closed with
    unread bytes, the connection would be reset and the browser might not get the response."""
    await stream.send_eof()
    left = defaults.IGNORED_BYTES
    while left > 0 and (data := await stream.receive_some(defaults.REQUEST_HEAD_BYTES)):
        left -= len(data)


def _plain(address: str) -> str:
    """Return the IP address of a socket in canonical spelling and without its zone."""
    return plain_ip(address.partition("%")[0]) or address


def _load_pages(host: Host) -> Mapping[str, bytes]:
    names = dict.fromkeys(PAGES.values())
    return {name: host.files.read(_WEB / name, limit=defaults.PAGE_BYTES) for name in names}
