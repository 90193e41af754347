"""Peers that may have a content: those that the caller knows, and providers found in the DHT."""

from collections.abc import Sequence
from contextlib import suppress

import trio

from ...transport.errors import TransportError
from ...transport.identity import PeerId
from ..defaults import DIALS_AT_ONCE, PROVIDERS_EVERY, PROVIDERS_LIMIT
from .parts import ExchangeParts
from .switchboard import Peers


class PeerSource:
    """Source of peers for a fetch. Call the object to get the peers (it is a `Peers`).

    `run` looks for further providers of `root`.
    """

    def __init__(self, parts: ExchangeParts, root: str, peers: Peers) -> None:
        self._swarm = parts.swarm
        self._switchboard = parts.switchboard
        self._root = root
        self._guard = parts.guard
        self._peers = peers
        self._found: tuple[PeerId, ...] = ()

    def __call__(self) -> Sequence[PeerId]:
        """Return the caller's peers, followed by the providers that were found."""
        return list(dict.fromkeys([*self._peers(), *self._found]))

    async def run(self) -> None:
        """Look up providers every `PROVIDERS_EVERY` seconds and dial them, until cancelled."""
        while True:
            found = await self._swarm.providers(self._root)
            self._found = tuple(found[:PROVIDERS_LIMIT])
            gate = trio.Semaphore(DIALS_AT_ONCE)
            async with trio.open_nursery() as nursery:
                for peer in self._found:
                    if self._switchboard.link(peer) is None:
                        self._guard.start(nursery, peer, self._dial, peer, gate)
            await trio.sleep(PROVIDERS_EVERY)

    async def _dial(self, peer: PeerId, gate: trio.Semaphore) -> None:
        """Dial a provider. A failed dial is ignored."""
        async with gate:
            with suppress(TransportError):  # it is dialled again if the next look-up finds it
                await self._swarm.connect(peer)
