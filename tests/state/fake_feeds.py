"""Authors that write feeds, and nodes that keep feeds, with direct calls in place of links."""

from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random
from typing import Any

import msgpack

from shoal.state.errors import StateError
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import NO_PARENT, Entry, FeedName, Head, client_of, seal_entry
from shoal.state.feeds.feed import Document, snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.state.replication.exchange import FeedExchange
from shoal.state.replication.gossip import NEWS, Unanswered
from shoal.state.replication.replica import Replica
from shoal.transport.identity import Identity, PeerId

MEMBER: Plot = ("member", 0)


class Writer:
    """Writer of the feeds of one key. `twin` continues a feed with different entries."""

    def __init__(self, number: int, epoch: int = 1) -> None:
        self.identity = Identity.from_seed(number.to_bytes(32))
        self.key, self.peer = self.identity.public_key, self.identity.peer
        self.epoch = epoch
        self._heads: dict[Plot, tuple[Document, Head]] = {}

    def write(self, plot: Plot = MEMBER, **facts: Mapping[str, Any]) -> Entry:
        """Return the next entry of a feed."""
        return self.write_raw(plot, {key: msgpack.packb(value) for key, value in facts.items()})

    def write_raw(self, plot: Plot, changes: Mapping[str, bytes]) -> Entry:
        """Write the next entry with any bytes as values."""
        if plot not in self._heads:
            client = client_of(FeedName(self.peer, *plot), self.epoch)
            document = Document(KINDS[plot[0]], client)
            update = snapshot(document.kind, client, changes)
            after = Head(self.epoch, -1, NO_PARENT)
        else:
            document, after = self._heads[plot]
            update = document.write(changes)
        entry = seal_entry(
            self.identity, *plot, epoch=after.epoch, seq=after.seq + 1,
            parent=after.hash, made=0, update=update,
        )  # fmt: skip
        document.apply(update)
        self._heads[plot] = document, entry.head
        return entry

    def next_epoch(self) -> None:
        self.epoch += 1
        self._heads.clear()


class FakeNetwork:
    """Nodes by name. Calls to linked nodes are answered at once."""

    def __init__(self) -> None:
        self.time = 0.0
        self.nodes: dict[PeerId, FakeNode] = {}
        self.calls: list[str] = []
        self.posts: list[tuple[PeerId, PeerId, str]] = []


class TakesAll:
    """A rule that takes all entries of a node's own feeds, once its writer has begun."""

    begun = False

    def takes(self, entry: Entry) -> bool:
        return self.begun


class FakeNode:
    def __init__(self, net: FakeNetwork, number: int, **replica: Any) -> None:
        self.net = net
        self.writer = Writer(number)
        self.peer, self.key = self.writer.peer, self.writer.key
        self.archive = MemoryArchive()
        self.own_entries = TakesAll()
        self.replica = Replica(self.peer, self.archive, own_entries=self.own_entries, **replica)
        self.exchange = FeedExchange(self.replica, self, Random(number).randrange)
        self.blamed: list[tuple[PeerId, str]] = []
        self.deaf = False  # answers no calls
        net.nodes[self.peer] = self

    def now(self) -> float:
        return self.net.time

    def post(self, peer: PeerId, method: str, payload: bytes, *, later: bool = False) -> None:
        self.net.posts.append((self.peer, peer, method))
        assert method == NEWS
        self.net.nodes[peer].exchange.heard(self.peer, payload)

    async def call(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        self.net.calls.append(method)
        other = self.net.nodes[peer]
        if other.deaf:
            raise Unanswered
        try:
            return await other.exchange.answer(self.peer, method, payload)
        except StateError:
            raise Unanswered from None

    def blame(self, peer: PeerId, error: StateError) -> None:
        self.blamed.append((peer, error.code))

    async def pause(self) -> None: ...

    def turn(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext()

    async def write(self, plot: Plot = MEMBER, **facts: Mapping[str, Any]) -> Entry:
        entry = self.writer.write(plot, **facts)
        await self.exchange.write([entry])
        return entry

    async def pull(self) -> None:
        """Pull until nothing is missing."""
        for _ in range(50):
            pulls = self.exchange.next_pulls()
            for pull in pulls:
                await self.exchange.pull(pull)
            if not pulls:
                return
        raise AssertionError("it pulls endlessly")


async def link(one: FakeNode, two: FakeNode) -> None:
    for node, other in ((one, two), (two, one)):
        node.exchange.link_up(other.peer)
        await node.replica.linked(other.peer)


def facts_of(values: Mapping[str, bytes]) -> dict[str, Any]:
    return {key: msgpack.unpackb(value) for key, value in values.items()}


def at_once(steps: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        steps.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")
