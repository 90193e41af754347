"""Additional UDP paths for links with a long round trip and much traffic.

The receiver's buffer limits the bytes in flight on a TCP connection, on Linux to about 3 MB. With a
round trip of 200 ms, that is 15 MB/s even on the fastest line, and a lost packet halves it for
seconds. A node cannot raise this limit without the rights of an administrator. The window of QUIC
is set by this program (udp/window.py), whose congestion control does not mistake random loss for
congestion. QUIC costs ten times the CPU, however. It therefore carries only long paths, and only
while there is much traffic.
"""

from collections.abc import Awaitable, Callable
from math import inf

import trio

from .. import defaults
from ..errors import DialFailed
from ..host.datagrams import Place
from ..host.seam import Host
from ..identity import PeerId
from ..link.link import Link
from .endpoint import Endpoint

Dial = Callable[[Place, PeerId], Awaitable[Link]]
"""Adds a path to the peer's link by dialling a UDP address. Raises DialFailed if that fails."""


class LongPaths:
    """Dialer of UDP paths beside long TCP paths.

    It dials the UDP port that the peer's hello names, at the IP address where the peer's TCP port
    answered.
    """

    def __init__(self, host: Host, endpoint: Endpoint, dial: Dial) -> None:
        """`dial` adds a path to the link of a peer by dialling its UDP address."""
        self._host = host
        self._endpoint = endpoint
        self._dial = dial
        self._nursery: trio.Nursery | None = None
        self._tried: dict[PeerId, float] = {}
        endpoint.on_much_traffic(self._look)

    async def run(self) -> None:
        """Dial a UDP path for each link that needs one, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None  # links may carry much until they are closed

    def _look(self, link: Link) -> None:
        """Dial a UDP path for a long link with much traffic, unless it has one or its UDP port was
        dialled recently."""
        now = self._host.now()
        again = self._tried.get(link.peer, -inf) + defaults.LONG_AGAIN_S
        if self._nursery is not None and link.udp_place is not None and now >= again:
            self._tried = {
                peer: at for peer, at in self._tried.items() if now < at + defaults.LONG_AGAIN_S
            }
            self._tried[link.peer] = now
            self._endpoint.guard.start(self._nursery, link.peer, self._try, link)

    async def _try(self, link: Link) -> None:
        """Dial the UDP port of a link's peer."""
        place = link.udp_place
        if place is not None:
            try:
                await self._dial(place, link.peer)
            except DialFailed:
                return  # TCP carries the link; UDP is dialled again after `LONG_AGAIN_S`
