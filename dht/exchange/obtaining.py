"""Download of small objects by digest from any peer: a manifest, or the nodes of a tree.

Slow requests are hedged: if a peer has not replied after `ASK_BESIDE` seconds, the next peer is
asked as well. Providers that stay silent, or send a byte per second, therefore cannot delay the
result for long.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from ...transport.identity import PeerId
from ..defaults import ASK_BESIDE, ASKED_AT_ONCE, BACKOFF_MAX, BACKOFF_START, TICK
from .parts import ExchangeParts
from .switchboard import Caller, Peers

Ask = Callable[[Caller, str], Awaitable[bytes | None]]
"""Requests an object by digest from one peer, and returns the unverified bytes.

Returns None if the peer does not send the object.
"""


@dataclass(slots=True)
class _Search:
    """State of the download of one object.

    `found` has the verified bytes once they have arrived. `under_way` has the peers with a pending
    request. `tries` maps a peer to its number of failed requests, and `rests` to the time before
    which it is not asked again. `news` is set when a request has ended.
    """

    found: bytes | None = None
    under_way: set[PeerId] = field(default_factory=set)
    tries: Counter[PeerId] = field(default_factory=Counter)
    rests: dict[PeerId, float] = field(default_factory=dict)
    news: trio.Event = field(default_factory=trio.Event)


class Obtaining:
    """Download of several objects of one content.

    A peer that delivered an object is the first one that is asked for the next. A peer that sent
    wrong bytes is reported to `Swarm.on_liar` and never asked again.
    """

    def __init__(self, parts: ExchangeParts, peers: Peers) -> None:
        self._host = parts.host
        self.guard = parts.guard
        self._switchboard = parts.switchboard
        self._peers = peers
        self._on_liar = parts.swarm.on_liar
        self._liars: set[PeerId] = set()
        self._failures: Counter[PeerId] = Counter()
        self._scopes: dict[trio.CancelScope, PeerId] = {}

    @property
    def liars(self) -> int:
        """Number of peers that sent wrong bytes."""
        return len(self._liars)

    def quiet(self, peer: PeerId) -> None:
        """Cancel the pending requests to a peer whose link has fallen silent."""
        for scope, asked in self._scopes.items():
            if asked == peer:
                scope.cancel()

    async def get(self, ask: Ask, digest: str) -> bytes:
        """Download one object and return its bytes, which match the digest.

        Retries until cancelled.
        """
        search = _Search()
        async with trio.open_nursery() as nursery:
            while search.found is None:
                search.news = trio.Event()
                link = self._next(search)
                if link is not None:
                    search.under_way.add(link.peer)
                    self.guard.start(nursery, link.peer, self._ask, search, ask, link, digest)
                with trio.move_on_after(TICK if link is None else ASK_BESIDE):
                    await search.news.wait()
            nursery.cancel_scope.cancel()
        return search.found

    def _next(self, search: _Search) -> Caller | None:
        """Return the link of the peer to ask next, or None if there is none to ask now.

        The peer with the fewest failures is chosen. Among equals, it is the first one in the
        caller's list of peers.
        """
        if len(search.under_way) >= ASKED_AT_ONCE:
            return None
        now, links = self._host.now(), []
        for peer in self._peers():
            link = self._switchboard.link(peer)
            rests = search.rests.get(peer, now) > now
            if link is None or link.quiet or rests or peer in self._liars | search.under_way:
                continue
            links.append(link)
        return min(links, key=lambda link: self._failures[link.peer], default=None)

    async def _ask(self, search: _Search, ask: Ask, link: Caller, digest: str) -> None:
        """Request an object from one peer, and wake the search when the request has ended."""
        try:
            await self._take(search, ask, link, digest)
        # This must also run after an internal error. Otherwise a few peers that trigger such an
        # error would occupy all concurrent requests, and stop the search.
        finally:
            search.under_way.discard(link.peer)
            search.news.set()

    async def _take(self, search: _Search, ask: Ask, link: Caller, digest: str) -> None:
        """Request an object from one peer, verify the reply, and record the result."""
        peer, data = link.peer, None
        with trio.CancelScope() as scope:
            self._scopes[scope] = peer
            try:
                data = await ask(link, digest)
            finally:
                del self._scopes[scope]
        if data is not None and await self._host.offload(_has_digest, data, digest):
            self._failures[peer] = -1  # prefer it for the next object
            search.found = data
        elif data is not None:
            self._liars.add(peer)
            self._on_liar(peer, digest)
        else:
            self._failures[peer] += 1
            pause = min(BACKOFF_START * 2 ** search.tries[peer], BACKOFF_MAX)
            search.tries[peer] = min(search.tries[peer] + 1, 16)
            search.rests[peer] = self._host.now() + pause


def _has_digest(data: bytes, digest: str) -> bool:
    """Return whether `digest` is the SHA-256 of the data."""
    return hashlib.sha256(data).hexdigest() == digest
