"""Linked peers as helpers of a measurement: their IP addresses, and what they offer to do."""

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
from .offers import LinkedPeer, ObserverOffer, parse_offer, spread

_NOT_THEIRS = ("relayed", "webrtc", "none")
"""Kinds of a link's best path for which the path's remote address is not the peer's own address."""


class PeerLink(asking.DialBackPeer, Protocol):
    """Part of a link's interface that this module uses."""

    @property
    def status(self) -> LinkStatus: ...


class PeerLinks(Protocol):
    """Part of the endpoint's interface that this module uses."""

    @property
    def port(self) -> int: ...

    def links(self) -> Sequence[PeerLink]: ...

    def link(self, peer: PeerId) -> PeerLink | None: ...

    def handle(self, method: str, handler: Handler) -> None: ...

    def on_link(self, callback: Callable[[PeerLink], None]) -> None: ...


class LinkedPeers:
    """Cache of what each linked peer offers for measurements (`ObserverOffer`).

    `ask` queries the peers whose offers are unknown, or older than `OFFER_S` seconds.
    """

    def __init__(
        self, host: Host, endpoint: PeerLinks, seen_at: SeenAt | None, guard: Guard
    ) -> None:
        self._host = host
        self._guard = guard
        self._endpoint = endpoint
        self._seen_at = seen_at
        self.offers: dict[PeerId, tuple[ObserverOffer, float]] = {}

    def seen_at(self, peer: PeerId) -> Sequence[str]:
        """Return the IP addresses at which this node itself sees a peer, the main one first."""
        if self._seen_at is not None:
            return self._seen_at(peer)
        link = self._endpoint.link(peer)
        if link is None or link.status.path in _NOT_THEIRS:
            return ()
        return tuple(filter(None, (link.status.address[0],)))

    def link(self, peer: PeerId) -> PeerLink | None:
        """Return the link to a peer, or None."""
        return self._endpoint.link(peer)

    def places(self) -> frozenset[tuple[PeerId, str]]:
        """Return (peer, main IP address at which this node sees it) for each linked peer.

        Peers that this node reaches only through relays are left out.
        """
        peers = [link.peer for link in self._endpoint.links()]
        return frozenset((peer, ip) for peer in peers for ip in self.seen_at(peer)[:1])

    def known(self) -> list[LinkedPeer]:
        """Return the linked peers with a cached offer that this node sees at an IP address."""
        return [
            LinkedPeer(peer, seen[0], self.offers[peer][0], tuple(seen[1:]))
            for link in self._endpoint.links()
            if (peer := link.peer) in self.offers and (seen := self.seen_at(peer))
        ]

    async def ask(self) -> list[LinkedPeer]:
        """Query linked peers whose offer is unknown or outdated, and return the result of `known`.

        Offers of peers that are no longer linked are removed from the cache.
        """
        places = {link.peer: (link, self.seen_at(link.peer)) for link in self._endpoint.links()}
        self.offers = {peer: kept for peer, kept in self.offers.items() if peer in places}
        seen = [
            LinkedPeer(peer, ips[0], ObserverOffer()) for peer, (_, ips) in places.items() if ips
        ]
        async with trio.open_nursery() as nursery:
            for each in spread(seen)[: defaults.OBSERVER_LINKS]:
                link = places[each.peer][0]
                self._guard.start(nursery, link.peer, self._ask, link)
        return self.known()

    async def _ask(self, link: PeerLink) -> None:
        """Query one peer, and cache its offer. A peer that fails to reply keeps its old offer."""
        now = self._host.now()
        if link.peer in self.offers and self.offers[link.peer][1] > now:
            return
        try:
            reply = await link.call("reach.observe", timeout=defaults.ASK_S)
        except (CallRefused, LinkClosed):
            return
        self.offers[link.peer] = parse_offer(reply.header), now + defaults.OFFER_S
