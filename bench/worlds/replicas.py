"""Light nodes that replicate each other's feeds, over the links and latencies of home
volunteers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, overload

import msgpack

from shoal.netsim.faults import Faults
from shoal.netsim.light import LightHost
from shoal.netsim.network.packet import Addr
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.mix import draw, load
from shoal.netsim.world import World
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import (
    NO_PARENT,
    Entry,
    FeedName,
    Head,
    client_of,
    read_stored,
    seal_entry,
)
from shoal.state.feeds.feed import Document, snapshot
from shoal.state.feeds.kinds import KINDS, all_parts
from shoal.state.membership.record import MemberRecord, seal_record
from shoal.state.replication.replica import Replica
from shoal.transport.address import Address
from shoal.transport.identity import Identity, PeerId, public_key_of
from shoal.transport.networks import Nearness

from .replicanode import ReplicaNode, SharedReplica, at_once
from .ringnode import WALL

N = TypeVar("N", bound=ReplicaNode)

SEEDS: Final = 1_000_000
"""The first secret of the nodes' keys."""


class Author:
    """Writer of one key's feeds: takes facts, returns sealed entries. Honest unless a test tampers
    with it.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._documents: dict[Plot, tuple[Document, Head]] = {}

    def write(self, plot: Plot, facts: Mapping[str, Any], now: float) -> list[Entry]:
        """Return the entries that set these facts; a value of None deletes."""
        packed = {
            key: None if value is None else msgpack.packb(value) for key, value in facts.items()
        }
        known = self._documents.get(plot)
        if known is None:
            return [self.begin(plot, {k: v for k, v in packed.items() if v is not None}, now)]
        document, head = known
        update = document.write(packed)
        return [self._seal(plot, document, head.epoch, head.seq + 1, head.hash, now, update)]

    def begin(self, plot: Plot, facts: Mapping[str, bytes], now: float) -> Entry:
        """Return the entry that begins an epoch with these facts."""
        name = FeedName(self.identity.peer, *plot)
        before = self._documents.get(plot)
        epoch = max(int((WALL + now) * 1000), before[1].epoch + 1 if before else 0)
        client = client_of(name, epoch)
        document = Document(KINDS[plot[0]], client)
        return self._seal(
            plot, document, epoch, 0, NO_PARENT, now, snapshot(KINDS[plot[0]], client, facts)
        )

    def _seal(
        self,
        plot: Plot,
        document: Document,
        epoch: int,
        seq: int,
        parent: bytes,
        now: float,
        update: bytes,
    ) -> Entry:
        made = int((WALL + now) * 1000)
        entry = seal_entry(
            self.identity, *plot, epoch=epoch, seq=seq, parent=parent, made=made, update=update
        )
        document.apply(update)
        self._documents[plot] = document, entry.head
        return entry


class Overlay(MemoryArchive):
    """Archive of what one node has received, on top of what all had from the start."""

    base: MemoryArchive | None = None

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[bytes]:
        found = await super().entries(name, epoch, from_seq, limit)
        if found or self.base is None:
            return found
        return await self.base.entries(name, epoch, from_seq, limit)

    async def put(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if self.base is not None and entry.seq and entry.name not in self._entries:
                whole = await self.base.entries(entry.name, entry.epoch, 0, 2**30)
                self._entries[entry.name] = [read_stored(sealed) for sealed in whole]
            await super().put([entry])


class Swarm:
    """The nodes, and the authors that write for them."""

    def __init__(self, seed: int, *, replica: Callable[..., Replica] = SharedReplica) -> None:
        self.world = World(seed, latency=latency.matrix())
        self.random = self.world.streams.get("", "swarm")
        self.faults = Faults(self.world)
        self.nodes: list[ReplicaNode] = []
        self.authors: dict[PeerId, Author] = {}
        self.hosts: dict[PeerId, LightHost] = {}
        self.where: dict[PeerId, Addr] = {}
        self.names: dict[Addr, PeerId] = {}
        self._replica = replica

    @property
    def now(self) -> float:
        return self.world.events.now

    def advance(self, seconds: float) -> None:
        self.world.advance(self.now + seconds)

    @overload
    def add(self, **more: Any) -> ReplicaNode: ...

    @overload
    def add(self, kind: type[N], **more: Any) -> N: ...

    def add(self, kind: type[ReplicaNode] = ReplicaNode, **more: Any) -> ReplicaNode:
        """Add a node at a random volunteer's home."""
        number = len(self.hosts)
        name = f"n{number}"
        identity = Identity.from_seed((SEEDS + number).to_bytes(32))
        random = self.world.streams.get(name, "swarm")
        drawn = draw(load(), self.world.streams.get(name, "population"), latency.matrix())
        node = kind(
            identity,
            random,
            self.where,
            self.names,
            archive=more.pop("archive", None) or Overlay(),
            replica=self._replica,
            **more,
        )
        place = self.world.public_address()
        link = profiles.link(drawn.link)
        host = self.world.light(name, node, address=place, link=link, site=drawn.site)
        self.where[node.peer], self.names[host.address] = host.address, node.peer
        self.hosts[node.peer] = host
        self.authors[node.peer] = Author(identity)
        self.nodes.append(node)
        return node

    def call(self, node: ReplicaNode, action: Callable[[], object]) -> None:
        """Call `action` on a node at the present, and send what results."""
        node.time = self.now
        action()
        host = self.hosts[node.peer]
        for data, to in node.take():
            host.send(data, to)
        host.arm()

    # How the nodes know each other.

    def introduce(self) -> None:
        """Give each node the member records of all, as after a while of exchanging them."""
        records = [
            seal_record(
                node.identity,
                MemberRecord(
                    node.peer,
                    seq=int(WALL * 1000),
                    addresses=(str(Address(*self.where[node.peer], node.peer)),),
                ),
            )
            for node in self.nodes
        ]
        for node in self.nodes:
            for other, sealed in zip(self.nodes, records, strict=True):
                if other is not node:
                    node.roster.receive(sealed, other.peer, Nearness.PUBLIC, self.now)

    def connect(self, one: ReplicaNode, two: ReplicaNode) -> None:
        """Establish a link as if `one` had dialled `two`."""
        self.call(two, lambda: two.link(one.peer, dialled=False))
        self.call(one, lambda: one.link(two.peer))

    def connect_at_random(self, links: int) -> None:
        """Connect a random graph: each node dials half as many peers as it has links."""
        for node in self.nodes:
            others = [other for other in self.nodes if other is not node]
            for other in self.random.sample(others, min(links // 2, len(others))):
                self.connect(node, other)

    def begin(self) -> None:
        for node in self.nodes:
            self.call(node, node.begin)

    def cut(self, ones: Iterable[ReplicaNode], others: Iterable[ReplicaNode]) -> None:
        """Partition two groups of nodes: no packet passes between them."""
        groups = [[self.hosts[node.peer].name for node in group] for group in (ones, others)]
        self.faults.partition(*groups)

    def settle(self, plot: Plot, facts: Mapping[str, Any]) -> None:
        """Give every node these facts of all others, and put all into one group: as after days."""
        base = MemoryArchive()
        for node in self.nodes:
            entries = self.authors[node.peer].write(plot, facts, self.now)
            at_once(base.put(entries))
        stored = at_once(base.load())
        peers = [node.peer for node in self.nodes]
        for node in self.nodes:
            at_once(node.replica.grouped(peers))
            node.replica.newcomers.clear()
            cast(Overlay, node.archive).base = base
            for each in stored:
                node.replica.resume(public_key_of(each.name.author), [each])

    # Actions of nodes.

    def write(self, node: ReplicaNode, plot: Plot, facts: Mapping[str, Any]) -> list[Entry]:
        entries = self.authors[node.peer].write(plot, facts, self.now)
        self.call(node, lambda: node.write(entries))
        return entries

    def same_where_kept(self, nodes: Sequence[ReplicaNode]) -> bool:
        """Whether, for each kind and part, all nodes that keep it have the same data of the authors
        that they all keep.
        """
        for plot in all_parts():
            keeping = [node for node in nodes if node.replica.interest(plot)]
            shared = set.intersection(*(set(node.replica.authors.keys()) for node in keeping))
            if len({node.replica.digest.of(shared).top((plot,)) for node in keeping}) > 1:
                return False
        return True

    def same(self, nodes: Sequence[ReplicaNode] | None = None) -> bool:
        """Whether all nodes have the same heads of the authors that all keep."""
        first, *others = self.nodes if nodes is None else nodes
        top = first.replica.digest.top()
        if all(node.replica.digest.top() == top for node in others):
            return True
        kept = [set(node.replica.authors.keys()) for node in (first, *others)]
        both = set.intersection(*kept)
        if all(authors == both for authors in kept):
            return False
        top = first.replica.digest.of(both).top()
        return all(node.replica.digest.of(both).top() == top for node in others)
