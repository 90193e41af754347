"""Linked peers, as seen by reachability: where this node sees them, and what they offer."""

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from ...errors import CallRefused, LinkClosed
from ...guard import Guard
from ...host.seam import Host
from ...identity import PeerId
from ...link.calls import Handler
from ...link.status import LinkStatus
from . import asking, defaults
from .dialler import SeenAt
from .offers import LinkedPeer, Offer, parse_offer, spread

_NOT_THEIRS = ("relayed", "webrtc", "none")
"""Paths of a link whose remote address is not one at which this node sees the peer."""


class Link(asking.Peer, Protocol):
    """A link, as far as this module needs it."""

    @property
    def status(self) -> LinkStatus: ...


class Links(Protocol):
    """The endpoint, as far as this module needs it."""

    @property
    def port(self) -> int: ...

    def links(self) -> Sequence[Link]: ...

    def link(self, peer: PeerId) -> Link | None: ...

    def handle(self, method: str, handler: Handler) -> None: ...

    def on_link(self, callback: Callable[[Link], None]) -> None: ...


class LinkedPeers:
    """Linked peers and their offers, which are queried when needed and cached for a while."""

    def __init__(self, host: Host, endpoint: Links, seen_at: SeenAt | None, guard: Guard) -> None:
        self._host = host
        self._guard = guard
        self._endpoint = endpoint
        self._seen_at = seen_at
        self._offers: dict[PeerId, tuple[Offer, float]] = {}

    def seen_at(self, peer: PeerId) -> Sequence[str]:
        """Return the IP addresses at which this node itself sees a peer, the main one first."""
        if self._seen_at is not None:
            return self._seen_at(peer)
        link = self._endpoint.link(peer)
        if link is None or link.status.path in _NOT_THEIRS:
            return ()
        return tuple(filter(None, (link.status.address[0],)))

    def link(self, peer: PeerId) -> Link | None:
        return self._endpoint.link(peer)

    def places(self) -> frozenset[tuple[PeerId, str]]:
        """Return the linked peers, each with the main IP address at which it is seen."""
        peers = [link.peer for link in self._endpoint.links()]
        return frozenset((peer, ip) for peer in peers for ip in self.seen_at(peer)[:1])

    def known(self) -> list[LinkedPeer]:
        """Return the linked peers whose offer is known."""
        return [
            LinkedPeer(peer, seen[0], self._offers[peer][0], tuple(seen[1:]))
            for link in self._endpoint.links()
            if (peer := link.peer) in self._offers and (seen := self.seen_at(peer))
        ]

    async def ask(self) -> list[LinkedPeer]:
        """Query peers whose offer is unknown or outdated. Return all peers with a known offer."""
        places = {link.peer: (link, self.seen_at(link.peer)) for link in self._endpoint.links()}
        self._offers = {peer: kept for peer, kept in self._offers.items() if peer in places}
        seen = [LinkedPeer(peer, ips[0], Offer()) for peer, (_, ips) in places.items() if ips]
        async with trio.open_nursery() as nursery:
            for each in spread(seen)[: defaults.OBSERVER_LINKS]:
                link = places[each.peer][0]
                self._guard.start(nursery, link.peer, self._ask, link)
        return self.known()

    async def _ask(self, link: Link) -> None:
        now = self._host.now()
        if link.peer in self._offers and self._offers[link.peer][1] > now:
            return
        try:
            reply = await link.call("reach.observe", timeout=defaults.ASK_S)
        except (CallRefused, LinkClosed):
            return
        self._offers[link.peer] = parse_offer(reply.header), now + defaults.OFFER_S
