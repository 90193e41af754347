"""Nodes for tests of the key space: identities by number, contacts, seeded randomness."""

from collections.abc import Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from shoal.dht.kademlia.messages import Find, FindReply, StoreRequest
from shoal.dht.kademlia.recordstore import RecordStore
from shoal.dht.kademlia.table import Table
from shoal.dht.lookup.lookup import Lookup
from shoal.dht.lookup.query import LookupGoal, Querier, Query
from shoal.dht.publishing.parcels import StoreQuery
from shoal.dht.publishing.walk import Walk
from shoal.dht.records.contact import Contact
from shoal.dht.records.key import KEY_BYTES, SPACE, Key, distance, key_at
from shoal.dht.records.record import BlobBody, Body, Record, open_record, seal_record
from shoal.transport.address import Address
from shoal.transport.identity import Identity, PeerId, peer_id_of

WALL = 1_800_000_000.0


@cache
def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32))


def entropy(seed: int = 0) -> Callable[[int], bytes]:
    return Random(seed).randbytes


def peer(number: int) -> PeerId:
    """Return a valid peer id of a key that never signs."""
    return peer_id_of(Random(number).randbytes(KEY_BYTES))


def address(number: int) -> Address:
    """Return an address; each number is in a public network of its own."""
    return Address(f"{50 + number // 65536}.{number // 256 % 256}.{number % 256}.9", 4001)


def contact(number: int, *addresses: Address) -> Contact:
    return Contact(peer(number), addresses or [address(number)])


def contacts(count: int, first: int = 1) -> list[Contact]:
    return [contact(number) for number in range(first, first + count)]


def random_key(random: Random) -> Key:
    return key_at(random.randrange(SPACE))


def sealed(
    body: Body, author: int = 1, *, made: float = WALL, ttl: int = 3600, gone: bool = False
) -> bytes:
    return seal_record(identity(author), body, made=int(made * 1000), ttl=ttl, gone=gone)


def record(
    body: Body, author: int = 1, *, made: float = WALL, ttl: int = 3600, gone: bool = False
) -> Record:
    return open_record(sealed(body, author, made=made, ttl=ttl, gone=gone))


def blob(number: int) -> BlobBody:
    return BlobBody(f"{number:064x}", 2**20, 1)


class Node:
    """Serving part of a node: a table with every contact that its limits allow, and a store."""

    def __init__(self, contact: Contact, seed: int) -> None:
        self.contact = contact
        self.table = Table(contact.key, entropy(seed))
        self.store = RecordStore(contact.key, entropy(seed))
        self.up = True
        self.asked = 0

    def find(self, find: Find) -> FindReply:
        self.asked += 1
        records = self.store.find(find.keys, 0.0, most=find.most, kinds=find.kinds)
        nearest = tuple(tuple(self.table.nearest(key)) for key in (*find.keys, *find.near))
        return FindReply(records, nearest)

    def keep(self, store: StoreRequest, sender: PeerId) -> list[str]:
        self.asked += 1
        return [
            self.store.put(
                open_record(aged.sealed),
                sender=sender,
                network="",
                age=aged.age,
                now=0.0,
                wall=WALL,
            )
            for aged in store.records
        ]


def look_up(
    keys: Sequence[Key],
    start: Sequence[Contact],
    radius: float,
    entropy: Callable[[int], bytes],
    **more: Any,
) -> Lookup:
    """Return a look-up; `more` may have fields of its goal, `own`, `serves` and `linked`."""
    goal = {name: more.pop(name) for name in ("enough", "most", "kinds") if name in more}
    querier = {name: more.pop(name) for name in ("serves", "linked") if name in more}
    return Lookup(
        LookupGoal(keys, radius, **goal),
        start,
        Querier(entropy, more.pop("own", None), **querier),
        **more,
    )


class Net:
    """Nodes that answer each other in order, after 0.1 s or a delay of their own."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.random = Random(seed)
        self.nodes = {one.peer: Node(one, n) for n, one in enumerate(contacts(count))}
        self.now = 0.0
        self.delays: dict[PeerId, float] = {}
        listed = [node.contact for node in self.nodes.values()]
        for node in self.nodes.values():
            self.random.shuffle(listed)
            for one in listed:
                node.table.answered(one, 0.0)

    def any(self) -> Node:
        return self.random.choice([node for node in self.nodes.values() if node.up])

    def owners(self, key: Key, count: int) -> list[Node]:
        """Return the nodes nearest to a key."""
        return sorted(self.nodes.values(), key=lambda node: distance(node.contact.key, key))[:count]

    def lookup(self, keys: list[Key], by: Node | None = None, **settings: Any) -> Lookup:
        one = by or self.any()
        settings.setdefault("own", one.contact.peer)
        settings.setdefault("radius", one.table.radius())
        return look_up(keys, one.table.nearest(keys[0]), entropy=self.random.randbytes, **settings)

    def run(self, task: Lookup | Walk, *, by: PeerId | None = None) -> None:
        """Run a task to its end; queries to nodes that are down fail."""
        under_way: list[tuple[float, int, Any]] = []
        count = 0
        while not task.done:
            for query in task.next(self.now):
                count += 1
                delay = self.delays.get(query.contact.peer, 0.1)
                heappush(under_way, (self.now + delay, count, query))
            if task.done:
                return
            wake = task.wake_at(self.now)
            if wake < (under_way[0][0] if under_way else inf):
                self.now = wake
                continue
            self.now, _, query = heappop(under_way)
            self._answer(task, query, by or identity(1).peer)

    def _answer(self, task: Lookup | Walk, query: Query | StoreQuery, by: PeerId) -> None:
        node = self.nodes.get(query.contact.peer)
        up = node is not None and node.up
        if isinstance(query, StoreQuery):
            assert isinstance(task, Walk)
            if node is None or not up:
                task.store_failed(query, self.now)
            else:
                task.stored(query, node.keep(query.store, by), self.now)
        elif node is None or not up:
            about: Any = query if isinstance(task, Walk) else query.contact
            task.failed(about, self.now)
        else:
            about = query if isinstance(task, Walk) else query.contact
            task.answered(about, node.find(query.find), self.now, WALL)
