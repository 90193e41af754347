"""Finds nodes that serve a model, and links to them.

In a swarm with more nodes than a node has links, a node may know none of the nodes that serve a
model. It learns from DHT records which nodes to dial, and then from their feeds what they serve.
"""

from collections.abc import Callable, Iterable
from itertools import chain, zip_longest

import trio

from ...dht.records.key import record_key
from ...dht.records.record import ShardBody
from ...dht.service import Dht
from ...state.directory import Directory
from ...transport.errors import TransportError
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from .. import defaults
from ..models.providers import Providers


class Seeking:
    """Search of one node for other nodes that serve a model."""

    def __init__(
        self,
        host: Host,
        dht: Dht,
        directory: Directory,
        providers: Providers,
        look: Callable[[], bool] = lambda: False,
        guard: Guard | None = None,
    ) -> None:
        """`look` updates which parts of the state a small node stores, and returns whether that has
        changed."""
        self._host = host
        self._guard = guard or Guard()
        self._dht = dht
        self._directory = directory
        self._providers = providers
        self._look = look
        self._going: dict[str, trio.Event] = {}
        self._ended: dict[str, float] = {}  # when the last search for each root ended

    async def seek(self, root: str) -> bool:
        """Link to some nodes that claim to serve layers of a model.

        Returns True if at least one link was made or if this node has begun to store more of the
        state. A call during a search for the same model waits for that search and returns True.
        Returns False without a search if the last one ended less than SEEK_PAUSE seconds ago.
        """
        if (going := self._going.get(root)) is not None:
            await going.wait()
            return True
        now = self._host.now()
        self._ended = {
            each: ended for each, ended in self._ended.items() if now - ended < defaults.SEEK_PAUSE
        }
        if root in self._ended:
            await trio.lowlevel.checkpoint()
            return False
        self._going[root] = trio.Event()
        more = self._look()
        try:
            return await self._meet(await self._serving(root)) or more
        finally:
            self._going.pop(root).set()
            self._ended[root] = self._host.now()

    async def _serving(self, root: str) -> list[PeerId]:
        """Return at most SEEK_LINKS peers to link to. They are chosen at random, alternating
        between the ranges of layers that they serve."""
        found = await self._dht.find(
            record_key(ShardBody.kind, root),
            most=defaults.FIND_MOST,
            enough=defaults.SEEK_ENOUGH,
            timeout=defaults.SEEK_FIND,
            kinds=(ShardBody.kind,),
        )
        members = self._directory.members()
        ranges: dict[tuple[int, int], list[tuple[bytes, PeerId]]] = {}
        for each in found.records:
            body, author = each.record.body, each.record.author
            if isinstance(body, ShardBody) and author not in members:
                lot = self._host.entropy(4)
                ranges.setdefault((body.start, body.stop), []).append((lot, author))
        in_turn = zip_longest(*(sorted(some) for some in ranges.values()))
        peers = dict.fromkeys(one[1] for one in chain.from_iterable(in_turn) if one is not None)
        return list(peers)[: defaults.SEEK_LINKS]

    async def _meet(self, peers: Iterable[PeerId]) -> bool:
        """Link to the peers within SEEK_MEET seconds. Return whether any link was made."""
        met = []

        async def meet(peer: PeerId) -> None:
            try:
                link = await self._providers.connect(peer)
            except TransportError:
                return
            link.keep()
            met.append(peer)

        with trio.move_on_after(defaults.SEEK_MEET):
            async with trio.open_nursery() as nursery:
                for peer in peers:
                    self._guard.start(nursery, peer, meet, peer)
        return bool(met)
