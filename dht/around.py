"""Who may have a root: the peers that the caller knows, and providers that are looked up."""

from collections.abc import Sequence
from contextlib import suppress

import trio

from ..transport.errors import TransportError
from ..transport.guard import Guard
from ..transport.identity import PeerId
from .defaults import DIALS_AT_ONCE, PROVIDERS_EVERY, PROVIDERS_LIMIT
from .switchboard import Peers, Swarm, Switchboard


class Around:
    """Callable as `Peers`; `run` keeps it looking for further holders of `root`."""

    def __init__(
        self, swarm: Swarm, switchboard: Switchboard, root: str, peers: Peers, guard: Guard
    ) -> None:
        self._swarm = swarm
        self._switchboard = switchboard
        self._root = root
        self._guard = guard
        self._peers = peers
        self._found: tuple[PeerId, ...] = ()

    def __call__(self) -> Sequence[PeerId]:
        return list(dict.fromkeys([*self._peers(), *self._found]))

    async def run(self) -> None:
        """Look providers up, and get links to them, again and again."""
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
        async with gate:
            with suppress(TransportError):  # it is looked up, and dialled, again
                await self._swarm.connect(peer)
