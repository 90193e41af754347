"""Vouches of this node for peers with lasting links, in its fact `vouches`."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import trio

from ..transport.guard import Guard
from ..transport.host.seam import Host
from ..transport.identity import PeerId, public_key_of
from ..transport.rates import Rate, RateLimiter
from . import defaults
from .errors import FeedFull
from .feeds.writer import Value
from .replication.replication import Replication
from .replication.vouches import VOUCHES, write_vouches


class Vouching:
    """Task that chooses the peers that this node vouches for.

    The fact changes rarely, because each change is sent to all nodes. `publish` sets the fact, and
    raises FeedFull if the feed cannot take it.
    """

    def __init__(
        self,
        host: Host,
        replication: Replication,
        publish: Callable[[str, str, Value], None],
        guard: Guard,
    ) -> None:
        self._host = host
        self._guard = guard
        self._replication = replication
        self._publish = publish
        # Peers of which a bug kept this task from counting their vouchers. They are left out from
        # then on, because the guard ends their links, and they come back at once.
        self._failing: set[PeerId] = set()
        self._met = trio.Event()  # a peer that had no link has one
        replication.exchange.on_peer.append(lambda peer: self._met.set())

    async def run(self) -> None:
        """Keep the fact up to date, until cancelled."""
        seen: dict[PeerId, float] = {}
        vouched: list[PeerId] = []
        pace = RateLimiter(Rate(*defaults.VOUCH_CHANGES), self._host.now())
        await trio.sleep(defaults.VOUCH_LOOK)  # nodes that start together all send news at first
        while True:
            await self._until_vouching()
            now = self._host.now()
            seen |= dict.fromkeys(self._replication.exchange.peers, now)
            seen = {peer: at for peer, at in seen.items() if now - at < defaults.VOUCH_KEPT}
            still = [peer for peer in vouched if peer in seen]
            lonely = self._lonely(peer for peer, at in seen.items() if at == now)
            stale = len(still) * 2 < len(vouched)
            if (stale or not set(lonely) <= set(vouched)) and pace.take(now):
                latest = sorted(seen, key=seen.__getitem__)[-defaults.VOUCHED_ENOUGH :]
                some = list(dict.fromkeys([*lonely, *still, *latest]))[: defaults.AUTHOR_VOUCHED]
                with suppress(FeedFull):  # the feed has forked
                    self._publish("member", VOUCHES, write_vouches(map(public_key_of, some)))
                    vouched = some
                # other nodes may vouch for these peers until then
                await trio.sleep(defaults.VOUCH_PAUSE)

    async def _until_vouching(self) -> None:
        """Wait until it is time to choose the peers to vouch for, which is soon after a new link.

        The delay is random, so that the many peers of a new node choose one after the other and
        only a few need to vouch for it.
        """
        exchange = self._replication.exchange
        with trio.move_on_after(defaults.VOUCH_LOOK):
            await self._met.wait()
            self._met = trio.Event()
            lot = int.from_bytes(self._host.entropy(2)) / 2**16
            await trio.sleep(lot * defaults.VOUCH_SOON * len(list(exchange.peers)))

    def _lonely(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return those peers for which too few nodes vouch."""
        found: list[PeerId] = []
        for peer in peers:
            if peer in self._failing:
                continue
            with self._guard.around(peer, partial(self._leave_out, peer)):
                if self._is_lonely(peer):
                    found.append(peer)
        return found

    def _leave_out(self, peer: PeerId) -> None:
        if len(self._failing) >= defaults.AUTHOR_VOUCHED:
            self._failing.clear()
        self._failing.add(peer)

    def _is_lonely(self, peer: PeerId) -> bool:
        """Return whether too few nodes vouch for a peer.

        Nodes without a link to such a peer may not store its feeds.
        """
        vouchers = self._replication.replica.authors.vouchers(public_key_of(peer))
        return vouchers < defaults.VOUCHED_LEAST
