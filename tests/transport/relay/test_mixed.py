"""Links over a relay whose own links are of different kinds, and what they are like to use."""

import pytest
import trio

from bench.worlds.transportnode import TransportNode
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind
from shoal.transport.lane.frame import Priority
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from shoal.transport.relay.defaults import RATE, WINDOW_BYTES, RelayLimits
from shoal.transport.strategies.dialer import Strategies
from tests.transport.relay.internet import until
from tests.transport.swarmkey import SwarmKey

RELAYED_ONLY = Strategies(punch_tcp=False, punch_udp=False)
HOME = LinkSpec(PipeSpec(0.01, rate=2.5e6), PipeSpec(0.01, rate=2.5e6))
"""20 Mbit/s, 40 ms from here to the relay and back."""


MEMBERS = SwarmKey(b"members of a swarm")


async def meet(
    world: World, media: tuple[str, str]
) -> tuple[TransportNode, TransportNode, TransportNode, Link]:
    """A relay, two nodes behind NATs with links to it over `tcp` or `udp`, and their link."""
    book: dict[str, TransportNode] = {}

    def addresses(peer: str) -> list[Address]:
        return book[peer].addresses() if peer in book else []

    relay = TransportNode(
        world.host("r"),
        b"r" * 32,
        relaying=RelayLimits(volunteer=True, rate=1_000_000),
        book=addresses,
        admission=MEMBERS,
    )
    await relay.computer.start(relay)
    nodes = []
    for name, medium in zip("ab", media, strict=True):
        router = world.gateway(f"g{name}", "linux-random", link=HOME)
        seed = name.encode() * 32
        host = world.host(name, behind=router)
        node = TransportNode(host, seed, strategies=RELAYED_ONLY, book=addresses, admission=MEMBERS)
        await host.start(node)
        plain = relay.address()
        address = Address(plain.host, plain.port, relay.peer, transport=medium)  # type: ignore[arg-type]
        link = await node.connect(relay.peer, [address])
        assert [path.medium for path in link.status.paths] == [medium]
        node.dialer.relays.offer([(relay.peer, plain)])
        await until(node.dialer.relays.addresses)
        book[node.peer] = node
        nodes.append(node)
    a, b = nodes
    return relay, a, b, await a.connect(b.peer, b.dialer.relays.addresses())


@pytest.mark.parametrize("media", [("tcp", "tcp"), ("udp", "tcp"), ("tcp", "udp"), ("udp", "udp")])
async def test_a_circuit_splices_whatever_carries_its_links(
    world: World, media: tuple[str, str]
) -> None:
    relay, a, b, link = await meet(world, media)
    assert link.path_kind is PathKind.RELAYED
    reply = await a.call(link, payload=bytes(200_000))
    assert len(reply.payload) == 200_000
    assert relay.dialer.relaying.book.figures().circuits == 1
    for node, medium in zip((a, b), media, strict=True):
        outer = node.endpoint.link(relay.peer)
        assert outer is not None and [path.medium for path in outer.status.paths] == [medium]


async def test_the_path_under_a_circuit_may_change(world: World) -> None:
    """The relay's link to one end moves from UDP to TCP while the circuit carries bytes."""
    relay, a, b, link = await meet(world, ("tcp", "udp"))
    outer = b.endpoint.link(relay.peer)
    assert outer is not None
    plain = relay.address()
    async with trio.open_nursery() as nursery:
        got = []

        async def ask() -> None:
            for _ in range(10):
                got.append(len((await a.call(link, payload=bytes(100_000))).payload))

        nursery.start_soon(ask)
        await trio.sleep(0.5)
        await b.within(lambda: b.endpoint.reach(plain, timeout=5))
        assert {path.medium for path in outer.status.paths} == {"tcp", "udp"}
    assert got == [100_000] * 10
    assert relay.dialer.relaying.book.figures().circuits == 1


async def bulk(link: Link) -> None:
    stream = await link.open_stream("swallow", priority=Priority.BULK)
    while True:
        await stream.send(bytes(1 << 16))


async def test_calls_beside_bulk_over_one_relay(world: World) -> None:
    """The relay lends 1 MB/s: bulk gets it, and a call does not wait for long."""
    _, a, b, link = await meet(world, ("tcp", "tcp"))
    swallowed = 0

    async def swallow(incoming: IncomingStream) -> None:
        nonlocal swallowed
        while data := await incoming.stream.receive(1 << 16):
            swallowed += len(data)

    b.endpoint.handle_stream("swallow", swallow)
    quiet = [await timed(a, link) for _ in range(20)]
    async with trio.open_nursery() as nursery:
        a.computer.start_soon(nursery, bulk, link)
        await trio.sleep(3)
        before, began = swallowed, trio.current_time()
        busy = []
        for _ in range(50):
            busy.append(await timed(a, link))
            await trio.sleep(0.1)
        rate = (swallowed - before) / (trio.current_time() - began)
        nursery.cancel_scope.cancel()
    assert rate > 0.85 * RATE
    assert max(busy) < max(quiet) + WINDOW_BYTES / RATE + 0.15


async def timed(node: TransportNode, link: Link) -> float:
    began = trio.current_time()
    await node.call(link, payload=bytes(128))
    return trio.current_time() - began
