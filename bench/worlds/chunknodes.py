"""Nodes that compute prompts and fetch KV chunks from each other: an endpoint, an engine, and what
a stage uses of `tasks/chunks`. They run on simulated hosts, and on this machine over loopback."""

from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from shoal.dht.finding import FindingResult
from shoal.dht.kv.index import KvIndex
from shoal.dht.records.key import Key
from shoal.dht.records.record import Body
from shoal.tasks.chunks.connector import ChunkConnector, NodeFunctions, WantingSession
from shoal.tasks.chunks.fetching import ChunkFetch
from shoal.tasks.chunks.provider import ChunkProvider
from shoal.tasks.chunks.store import KvOrigin, SharedChunks
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import (
    EngineEvent,
    FailedEvent,
    Loaded,
    LoadShard,
    SessionTerms,
    Span,
    TokenEvent,
)
from shoal.tasks.engine.kv.parts import KvShape
from shoal.tasks.engine.process import EngineProcess
from shoal.tasks.inference.names import PrefixNames
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link

GATEWAY: Final = PeerId("gateway")
NAMES: Final = PrefixNames(b"the secret of a gateway")
MODES: Final = ("choice", "fetch", "compute")


class NoRecords:
    """DHT without records: the other node is known."""

    async def find(self, key: Key, **how: Any) -> FindingResult:
        await trio.lowlevel.checkpoint()
        return FindingResult()

    def publish(self, body: Body, **how: Any) -> None:
        """Do nothing."""

    def withdraw(self, body: Body) -> None:
        """Do nothing."""


class Stubborn(ChunkFetch):
    """Fetch that never gives up, to measure what fetching takes."""

    async def _watch(self, scope: trio.CancelScope) -> None:
        await trio.sleep_forever()


@dataclass(frozen=True, slots=True)
class First:
    """One prompt until its first token: seconds, and the positions that were not computed."""

    seconds: float
    cached: int
    token: int


class ChunkNode:
    """A node with one loaded shard."""

    def __init__(self, host: Host, seed: int, engine: EngineProcess) -> None:
        self.identity = Identity.from_seed(bytes([seed]) * 32)
        self.engine = engine
        self._host = host
        self.endpoint = Endpoint(host, self.identity, admission=OpenSwarm())
        self.index = KvIndex(host, self.endpoint, NoRecords(), connect=self._link)
        self.store = SharedChunks(self.index, lambda root, layers: False)
        self.provider = ChunkProvider(host, self.endpoint, self.identity, self.store, engine)
        self._loaded: Loaded | None = None
        self._shard: LoadShard | None = None
        self._sessions = 0

    async def load(self, shard: LoadShard) -> ShardCosts:
        """Load the shard, and return the measured costs of its steps."""
        self._shard, self._loaded = shard, await self.engine.load(shard)
        return self._loaded.costs

    async def _link(self, peer: PeerId) -> Link:
        link = self.endpoint.link(peer)
        assert link is not None
        await trio.lowlevel.checkpoint()
        return link

    async def dial(self, address: Address) -> None:
        """Connect to another node."""
        await self.endpoint.dial(address, timeout=10)

    def connector(self) -> ChunkConnector:
        """Return a connector that knows nothing of earlier fetches."""
        peers = [link.peer for link in self.endpoint.links()]
        around = NodeFunctions(self._link, lambda *_: peers, lambda _: True)
        rest = self.index, self.store, around
        return ChunkConnector(self._host, self.identity.peer, self.engine, *rest)

    @property
    def origin(self) -> KvOrigin:
        """What determines the KV of this node's shard."""
        shard = self._shard
        assert shard is not None
        layers = shard.parts.start, shard.parts.stop
        return KvOrigin(shard.root, shard.dtype, layers, 0, GATEWAY)

    @property
    def shape(self) -> KvShape:
        """The shape of the shard's KV."""
        assert self._shard is not None
        arch = architecture(self._shard.config)
        return KvShape(arch.kv_heads, arch.head_dim, self._shard.dtype)

    async def ask(
        self, ids: Sequence[int], mode: str, *, exact: bool = False, keep: bool = False
    ) -> First:
        """Compute the first token after a prompt.

        `mode` is `choice`, `fetch` (all that there is) or `compute`. With `keep`, the KV stays
        cached, and is offered to others.
        """
        assert self._loaded is not None and self._shard is not None
        names = NAMES.of(self._shard.root, ids)
        self._sessions += 1
        session = self._sessions.to_bytes(16)
        answer = trio.Event()
        token = -1

        def on_event(event: EngineEvent) -> None:
            nonlocal token
            if isinstance(event, FailedEvent):
                raise RuntimeError(f"{event.code}: {event.message}")
            assert isinstance(event, TokenEvent)
            token = event.token
            answer.set()

        began = self._host.now()
        owner = GATEWAY if keep else PeerId(f"nobody {self._sessions}")
        terms = SessionTerms(owner, names=names, exact=exact)
        cached = await self.engine.open(session, len(ids) + 1, on_event, terms)
        costs, ready = self._loaded.costs, trio.Event()
        wanted = WantingSession(session, self.origin, names, cached, exact, self.shape, costs)
        async with trio.open_nursery() as nursery:
            connector = self.connector()
            if mode == "choice":  # as `tasks/inference/stagechunks.py` does
                nursery.start_soon(connector.beside, wanted, ready)
                await ready.wait()
            elif mode == "fetch":
                cached, _ = await Always.of(connector).brought(wanted)
            start = min(cached, (len(ids) - 2) // 16 * 16)
            rest = tuple(ids[start:])
            self.engine.submit(Span(session, 1, start, len(rest), tokens=rest, want="token"))
            await answer.wait()
            took = self._host.now() - began
            nursery.cancel_scope.cancel()
        await self.engine.close(session, names)
        if keep:
            self.store.add(self.origin, names)
        return First(took, cached, token)


class Always(ChunkConnector):
    """Connector that fetches all that there is."""

    @classmethod
    def of(cls, other: ChunkConnector) -> "Always":
        made = cls.__new__(cls)
        made.__dict__.update(other.__dict__)
        return made

    async def load(self, wanted: WantingSession, outside: Any, deadline: float) -> int:
        dear = replace(wanted, costs=ShardCosts(0.0, 1e3, 0.0))
        plan = self._plan(dear, outside)
        assert plan is not None
        fetch = Stubborn(self._host, self._own, outside.link, self.engine, plan)
        with trio.move_on_at(deadline):
            await fetch.run()
        return max(wanted.cached, fetch.length)

    async def matched(self, wanted: WantingSession) -> Any:
        return await super().matched(replace(wanted, costs=ShardCosts(0.0, 1e3, 0.0)))


@asynccontextmanager
async def serving(node: ChunkNode, listen: str, port: int) -> Any:
    """Run a node's endpoint, engine and index until the block ends."""
    async with trio.open_nursery() as nursery:
        await nursery.start(node.endpoint.run, listen, port)
        await nursery.start(node.engine.run)
        await nursery.start(node.index.run)
        yield node
        nursery.cancel_scope.cancel()
