"""Fetching of KV chunks in a daemon: which peers may have them, and which are believed."""

from collections.abc import Iterator, Sequence

from ...tasks.chunks.connector import ChunkConnector, NodeFunctions
from ...tasks.chunks.provider import ChunkProvider
from ...tasks.chunks.store import Layers, SharedChunks
from ...tasks.defaults import CHUNK_LIKELY
from ...tasks.engine.interface import Engine
from ...transport.identity import PeerId
from .base import Base
from .content import ContentParts
from .network import NetworkParts


class ChunkParts:
    """The parts of one daemon that offer KV chunks to peers and fetch them, if it computes."""

    def __init__(
        self, base: Base, network: NetworkParts, content: ContentParts, engine: Engine
    ) -> None:
        self._host = base.host
        self._network = network
        own = base.identity.peer
        store = SharedChunks(content.kv, self._is_wanted)
        self.provider = ChunkProvider(base.host, network.endpoint, base.identity, store, engine)
        around = NodeFunctions(
            content.providers.connect, self._replicas, self._trusts, network.endpoint.guard
        )
        self.connector = ChunkConnector(base.host, own, engine, content.kv, store, around)

    def _others(self, root: str, layers: Layers) -> Iterator[tuple[PeerId, bool]]:
        """Yield the other members that serve some of these layers of a model, and whether all."""
        start, stop = layers
        for peer, record in self._network.directory.members().items():
            shards = [shard for shard in record.shards if shard.root == root]
            if peer != self._network.endpoint.peer and shards:
                ranges = [(shard.start, shard.stop) for shard in shards]
                if any(first < stop and start < last for first, last in ranges):
                    yield peer, any(first <= start and stop <= last for first, last in ranges)

    def _is_wanted(self, root: str, layers: Layers) -> bool:
        """Return whether another member may want KV of these layers."""
        return any(True for _ in self._others(root, layers))

    def _replicas(self, root: str, layers: Layers, seconds: float) -> Sequence[PeerId]:
        """Return a few linked members that serve all of these layers and can reply in time."""
        found = [peer for peer, whole in self._others(root, layers) if whole]
        lots = {peer: self._host.entropy(4) for peer in found if self._replies(peer, seconds)}
        return sorted(lots, key=lots.__getitem__)[:CHUNK_LIKELY]

    def _replies(self, peer: PeerId, seconds: float) -> bool:
        """Return whether the peer is linked and its round trip is shorter than `seconds`."""
        link = self._network.endpoint.link(peer)
        if link is None or link.quiet:
            return False
        return link.rtt < seconds

    def _trusts(self, peer: PeerId) -> bool:
        """Return whether KV of a peer is believed: in a private swarm, that of its members."""
        return not self._network.endpoint.admission.open and (
            peer in self._network.directory.members()
        )
