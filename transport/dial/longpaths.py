"""Additional UDP paths for links with a long round trip and much traffic.

The receiver's buffer limits the bytes in flight on a TCP connection, on Linux to about 3 MB. With a
round trip of 200 ms, that is 15 MB/s even on the fastest line, and a lost packet halves it for
seconds. A node cannot raise this limit without the rights of an administrator. The window of QUIC
is set by this program (udp/window.py), whose congestion control does not mistake random loss for
congestion. QUIC costs ten times the CPU, however. It therefore carries only long paths, and only
while there is much traffic.
"""

from collections.abc import Awaitable, Callable

import trio

from .. import defaults
from ..errors import DialFailed
from ..host.datagrams import Place
from ..host.seam import Host, sleep_in_step
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
        self._carried: dict[PeerId, tuple[Link, int]] = {}
        self._tried: dict[PeerId, float] = {}

    async def run(self) -> None:
        """Look for links that need a UDP path, and dial one for each, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await sleep_in_step(defaults.LONG_LOOK_S)
                for link in self._busy():
                    self._endpoint.guard.start(nursery, link.peer, self._try, link)

    def _busy(self) -> list[Link]:
        """Return the links with a long round trip and much traffic that have no UDP path.

        Links whose UDP port was dialled recently are left out.
        """
        now, before = self._host.now(), self._carried
        links = [link for link in self._endpoint.links() if link.is_long]
        self._carried = {link.peer: (link, link.carried) for link in links}
        self._tried = {
            peer: at for peer, at in self._tried.items() if now < at + defaults.LONG_AGAIN_S
        }
        least = defaults.LONG_RATE * defaults.LONG_LOOK_S
        return [
            link
            for link in links
            if link.peer not in self._tried
            and link.udp_place is not None
            and before.get(link.peer, (None, 0))[0] is link
            and link.carried - before[link.peer][1] >= least
        ]

    async def _try(self, link: Link) -> None:
        """Dial the UDP port of a link's peer."""
        self._tried[link.peer] = self._host.now()
        place = link.udp_place
        if place is not None:
            try:
                await self._dial(place, link.peer)
            except DialFailed:
                return  # TCP carries the link; UDP is dialled again after `LONG_AGAIN_S`
