"""Fifty light nodes compared with fifty real endpoints, with TLS and TCP, on the same tables."""

from functools import partial
from math import inf

import pytest
import trio

from bench.worlds.ring import Got, Ring, blob_record
from bench.worlds.ringnode import WALL, RingNode
from bench.worlds.town import Town
from bench.worlds.transportnode import TransportNode
from shoal.dht.kademlia.messages import Find, FindReply
from shoal.dht.lookup.lookup import Lookup
from shoal.dht.lookup.query import LookupGoal, Querier, Query
from shoal.dht.records.key import Key
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.mix import draw, load
from shoal.netsim.world import World
from shoal.transport.errors import CallRefused, DialFailed, LinkClosed
from shoal.transport.identity import Identity
from shoal.transport.link.calls import Call, Reply
from shoal.transport.strategies.dialer import Strategies

COUNT, LOOKUPS, SEED = 50, 40, 12
QUIET = Strategies(lan=False, mapping=False, udp=False)


def light() -> Ring:
    """Return a settled ring with twenty published records and no links."""
    ring = Ring(SEED)
    for number in range(COUNT):
        ring.add(f"v{number}", key=Identity.from_seed((number + 1).to_bytes(32)).public_key)
    ring.settle()
    ring.publish(ring.nodes[0], [blob_record(number) for number in range(20)])
    ring.advance(120.0)
    return ring


class Real:
    """Endpoint that replies as a light node would, from the same table and store."""

    def __init__(self, transport: TransportNode, node: RingNode, town: Town) -> None:
        self.transport = transport
        self._node = node
        self._town = town
        transport.endpoint.handle("dht.find", self._find)

    def _find(self, call: Call) -> Reply:
        return Reply({}, self._node.find(Find.decode(bytes(call.payload))).encode())

    async def get(self, key: Key) -> Got:
        """Look a key up like `RingNode.get`, over links, as a task of its host."""
        table, began = self._node.table, trio.current_time()
        task = Lookup(
            LookupGoal((key,), table.radius(), enough=1),
            table.nearest(key),
            Querier(
                self._town.world.streams.get(self.transport.peer, "lookup").randbytes,
                self.transport.peer,
                linked=lambda peer: self.transport.endpoint.link(peer) is not None,
            ),
        )
        tell, news = trio.open_memory_channel[None](inf)
        async with trio.open_nursery() as nursery:
            while not task.done:
                for query in task.next(trio.current_time()):
                    nursery.start_soon(self._ask, task, query, tell)
                wake = task.wake_at(trio.current_time())
                with trio.move_on_at(wake):
                    await news.receive()
            nursery.cancel_scope.cancel()
        hops = [step.hop for step in task.steps if step.outcome == "records"]
        seconds = trio.current_time() - began
        return Got(bool(task.found(key)), seconds, min(hops, default=0), len(task.steps))

    async def _ask(self, task: Lookup, query: Query, tell: trio.MemorySendChannel[None]) -> None:
        peer = query.contact.peer
        try:
            link = await self.transport.dialer.connect(peer, self._town.book(peer), timeout=5.0)
            reply = await link.call("dht.find", {}, query.find.encode(), timeout=5.0)
            found = FindReply.decode(bytes(reply.payload), query.find)
        except (DialFailed, LinkClosed, CallRefused):
            task.failed(query.contact, trio.current_time())
        else:
            task.answered(query.contact, found, trio.current_time(), WALL)
        tell.send_nowait(None)


@pytest.mark.ci
def test_they_take_the_same_way_and_nearly_the_same_time() -> None:
    """Links are kept from look-up to look-up on both sides; those of light nodes for 60 s."""
    ring = light()
    asked = [
        (ring.random.randrange(COUNT), blob_record(ring.random.randrange(20)).key)
        for _ in range(LOOKUPS)
    ]
    quick = ring.get_all([(ring.nodes[number], key) for number, key in asked], pace=1.2)
    slow = real(ring, asked)
    assert all(got.found for got in quick) and all(got.found for got in slow)
    seconds = sum(got.seconds for got in quick) / sum(got.seconds for got in slow)
    queries = sum(got.queries for got in quick) / sum(got.queries for got in slow)
    hops = sum(got.hops for got in quick) / sum(got.hops for got in slow)
    assert 0.8 < seconds < 1.5, seconds  # 1.14 to 1.24 seen
    assert 0.8 < queries < 1.3, queries  # 1.10
    assert 0.8 < hops < 1.25, hops  # 1.00


def real(ring: Ring, asked: list[tuple[int, Key]]) -> list[Got]:
    world = World(SEED, latency=latency.matrix())
    town = Town(world)
    results: list[Got] = []

    async def main() -> None:
        nodes = []
        for number, node in enumerate(ring.nodes):
            drawn = draw(load(), world.streams.get(f"v{number}", "population"), latency.matrix())
            host = world.host(f"v{number}", link=profiles.link(drawn.link), site=drawn.site)
            transport = await town.node(host, strategies=QUIET)
            assert transport.peer == node.contact.peer
            nodes.append(Real(transport, node, town))
        for number, key in asked:
            results.append(await nodes[number].transport.within(partial(nodes[number].get, key)))

    world.run(main)
    return results
