"""Second paths over UDP for links with a long round trip and much traffic.

The bytes in flight on a TCP connection are bounded by its receiver's buffer, about 3 MB on Linux.
Over 200 ms that is 15 MB/s even on the fastest line, and a lost packet halves it for seconds. A
node cannot raise that bound without the owner's rights. QUIC's window is our own (udp/window.py),
and its congestion control does not take random loss for congestion. But it costs ten times the CPU,
so it carries only long paths, and is set up only when there is traffic for it.
"""

from collections.abc import Awaitable, Callable

import trio

from .. import defaults
from ..errors import DialFailed
from ..host.datagrams import Place
from ..host.seam import Host
from ..identity import PeerId
from ..link.link import Link
from .endpoint import Endpoint

Dial = Callable[[Place, PeerId], Awaitable[Link]]


class LongPaths:
    """Dialer of the UDP port that a peer's hello names, at the IP address where its TCP
    answered."""

    def __init__(self, host: Host, endpoint: Endpoint, dial: Dial) -> None:
        """`dial` gets the peer's link a path to that place. Raises DialFailed."""
        self._host = host
        self._endpoint = endpoint
        self._dial = dial
        self._carried: dict[PeerId, tuple[Link, int]] = {}
        self._tried: dict[PeerId, float] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(defaults.LONG_LOOK_S)
                for link in self._busy():
                    self._endpoint.guard.start(nursery, link.peer, self._try, link)

    def _busy(self) -> list[Link]:
        """Return the links that need a UDP path and have none."""
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
        self._tried[link.peer] = self._host.now()
        place = link.udp_place
        if place is not None:
            try:
                await self._dial(place, link.peer)
            except DialFailed:
                return  # TCP carries on, and `LONG_AGAIN_S` later it is tried again
