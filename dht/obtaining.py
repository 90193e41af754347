"""Bytes of a digest, from whoever gives them: a manifest, the nodes of a tree.

Who takes long is not waited for: another is asked beside it, so that holders that say nothing, or
a byte a second, hold up nobody however many they are.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from ..transport.guard import Guard
from ..transport.host import Host
from ..transport.identity import PeerId
from .defaults import ASK_BESIDE, ASKED_AT_ONCE, BACKOFF_MAX, BACKOFF_START, TICK
from .switchboard import Caller, Peers, Switchboard

Ask = Callable[[Caller, str], Awaitable[bytes | None]]
"""Unverified bytes of a digest from one peer, None where it does not give them."""


@dataclass(slots=True)
class _Search:
    """For the bytes of one digest. `rests`: until when a peer is not asked again."""

    found: bytes | None = None
    under_way: set[PeerId] = field(default_factory=set)
    tries: Counter[PeerId] = field(default_factory=Counter)
    rests: dict[PeerId, float] = field(default_factory=dict)
    news: trio.Event = field(default_factory=trio.Event)


class Obtaining:
    """For one content, of which several things are asked for: who gave something is asked first
    for the next, who sent other bytes never again (`on_liar`)."""

    def __init__(
        self,
        host: Host,
        switchboard: Switchboard,
        peers: Peers,
        on_liar: Callable[[PeerId, str], None],
        guard: Guard | None = None,
    ) -> None:
        self._host = host
        self._guard = guard or Guard()
        self._switchboard = switchboard
        self._peers = peers
        self._on_liar = on_liar
        self._liars: set[PeerId] = set()
        self._in_vain: Counter[PeerId] = Counter()
        self._scopes: dict[trio.CancelScope, PeerId] = {}

    @property
    def liars(self) -> int:
        """How many sent something else than they were asked for."""
        return len(self._liars)

    def quiet(self, peer: PeerId) -> None:
        """It is not heard of any more, so not waited for."""
        for scope, asked in self._scopes.items():
            if asked == peer:
                scope.cancel()

    async def get(self, ask: Ask, digest: str) -> bytes:
        """Asks again and again, until cancelled."""
        search = _Search()
        async with trio.open_nursery() as nursery:
            while search.found is None:
                search.news = trio.Event()
                link = self._next(search)
                if link is not None:
                    search.under_way.add(link.peer)
                    self._guard.start(nursery, link.peer, self._ask, search, ask, link, digest)
                with trio.move_on_after(TICK if link is None else ASK_BESIDE):
                    await search.news.wait()
            nursery.cancel_scope.cancel()
        return search.found

    def _next(self, search: _Search) -> Caller | None:
        """Of those that may be asked now the one that was least in vain; they are in the order in
        which the caller names them."""
        if len(search.under_way) >= ASKED_AT_ONCE:
            return None
        now, links = self._host.now(), []
        for peer in self._peers():
            link = self._switchboard.link(peer)
            rests = search.rests.get(peer, now) > now
            if link is None or link.quiet or rests or peer in self._liars | search.under_way:
                continue
            links.append(link)
        return min(links, key=lambda link: self._in_vain[link.peer], default=None)

    async def _ask(self, search: _Search, ask: Ask, link: Caller, digest: str) -> None:
        try:
            await self._take(search, ask, link, digest)
        finally:  # also after a mistake, or a few peers that find one stop the search
            search.under_way.discard(link.peer)
            search.news.set()

    async def _take(self, search: _Search, ask: Ask, link: Caller, digest: str) -> None:
        peer, data = link.peer, None
        with trio.CancelScope() as scope:
            self._scopes[scope] = peer
            try:
                data = await ask(link, digest)
            finally:
                del self._scopes[scope]
        if data is not None and await self._host.offload(_has_digest, data, digest):
            self._in_vain[peer] = -1  # before all others from now on
            search.found = data
        elif data is not None:
            self._liars.add(peer)
            self._on_liar(peer, digest)
        else:
            self._in_vain[peer] += 1
            pause = min(BACKOFF_START * 2 ** search.tries[peer], BACKOFF_MAX)
            search.tries[peer] = min(search.tries[peer] + 1, 16)
            search.rests[peer] = self._host.now() + pause


def _has_digest(data: bytes, digest: str) -> bool:
    return hashlib.sha256(data).hexdigest() == digest
