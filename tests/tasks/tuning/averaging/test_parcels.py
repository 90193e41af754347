"""Transfers between peers, some of which lie. Over real links, on simulated computers."""

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.dht.content.tree import build, digest_of
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host as Machine
from shoal.netsim.world import World
from shoal.tasks.tuning.averaging.defaults import IDLE_SECONDS, SENDS_PER_PEER
from shoal.tasks.tuning.averaging.errors import AveragingError, BadUpdate
from shoal.tasks.tuning.averaging.parcels import METHOD, Parcels, Size, parcel_of
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream

RUN = "ab" * 32
DATA = bytes(range(256)) * 10_000  # 2.4 MiB
ANY = Size(1, 10**7)


class Node:
    """Program for a simulated computer: an endpoint with parcels."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.identity = Identity.from_seed(number.to_bytes(32))

    async def run(self, machine: Machine, *, task_status: "trio.TaskStatus[Any]") -> None:
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(machine, PROFILES["desktop"], nursery)
            self.endpoint = Endpoint(host, self.identity, admission=OpenSwarm())
            self.parcels = Parcels(host, self.endpoint, self._connect)
            await nursery.start(self.endpoint.run, "0.0.0.0", 4001)
            task_status.started(self)
            await trio.sleep_forever()

    async def _connect(self, peer: PeerId) -> Link:
        link = self.endpoint.link(peer)
        assert link is not None
        return link


def run(body: Callable[..., Awaitable[None]], count: int = 3) -> None:
    """Run a test with nodes that are all linked; the body runs as the first one."""
    world = World(seed=1)

    async def main() -> None:
        nodes = [Node(world.host(f"n{number}"), number) for number in range(1, count + 1)]
        for node in nodes:
            await node.machine.start(node)

        async def as_first() -> None:
            for node in nodes[1:]:
                address = Address(node.machine.addresses()[0], 4001, node.identity.peer)
                (await nodes[0].endpoint.dial(address, timeout=10)).keep()
            with trio.fail_after(600):
                await body(*nodes)

        await nodes[0].machine.run(as_first)

    world.run(main)


def peers(*nodes: Node) -> list[PeerId]:
    return [node.identity.peer for node in nodes]


def test_a_parcel_comes_from_any_peer_that_has_it() -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        root = await three.parcels.put(RUN, DATA)
        got = await one.parcels.get(RUN, root, Size(len(DATA), len(DATA)), peers(two, three))
        assert bytes(got) == DATA
        assert one.parcels.received == three.parcels.sent == len(DATA)
        assert root in one.parcels  # and others may have it from here
        one.parcels.keep(RUN, ())
        assert root not in one.parcels

    run(body)


def test_the_root_is_that_of_the_blob() -> None:
    leaves = [digest_of(DATA[at : at + 2**20]) for at in range(0, len(DATA), 2**20)]
    parcel = parcel_of(DATA)
    assert parcel.root == build(len(DATA), leaves)[0].root
    assert parcel.top == top_of(DATA)


@pytest.mark.parametrize("at", [0, 1, 2**20, 2**20 + 5, len(DATA)])
def test_the_root_is_the_same_however_the_bytes_are_cut(at: int) -> None:
    cut = parcel_of(DATA[:at], b"", DATA[at : at + 7], memoryview(DATA)[at + 7 :])
    whole = parcel_of(DATA)
    assert (cut.root, cut.top) == (whole.root, whole.top)
    assert cut.whole() == DATA and whole.whole().obj is DATA


def test_a_parcel_in_parts_arrives_whole() -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        root = await two.parcels.put(RUN, DATA[:1000], DATA[1000:1_500_000], DATA[1_500_000:])
        assert root == parcel_of(DATA).root
        assert await one.parcels.get(RUN, root, ANY, peers(two)) == DATA
        assert await two.parcels.get(RUN, root, ANY, ()) == DATA

    run(body)


def test_two_runs_keep_their_parcels_apart() -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        root = await one.parcels.put(RUN, DATA)
        other = await one.parcels.put("cd" * 32, b"x")
        one.parcels.keep(RUN, ())
        assert root not in one.parcels and other in one.parcels

    run(body)


def test_a_parcel_of_another_size_is_refused() -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        root = await two.parcels.put(RUN, DATA)
        for size in (Size(len(DATA) + 1, len(DATA) + 1), Size(1, len(DATA) - 1)):
            with pytest.raises(BadUpdate) as refused:
                await one.parcels.get(RUN, root, size, peers(two))
            assert refused.value.code == "wrong-size"
        assert one.parcels.received == 0

    run(body)


def lying(node: Node, *pieces: bytes, then: float = 0.0) -> None:
    async def serve(incoming: IncomingStream) -> None:
        for piece in pieces:
            await incoming.stream.send(piece)
        await trio.sleep(then)
        await incoming.stream.finish()
        await incoming.stream.receive(1)

    node.endpoint.handle_stream(METHOD, serve)


def top_of(data: bytes) -> bytes:
    leaves = [digest_of(data[at : at + 2**20]) for at in range(0, len(data), 2**20)]
    tree, nodes = build(len(data), leaves)
    return nodes[tree.root]


LIES: dict[str, tuple[tuple[bytes, ...], float]] = {
    "nothing": ((), 0.0),
    "no tree": ((b"x" * 100,), 0.0),
    "the tree of other bytes": ((top_of(DATA[1:]), DATA[1:]), 0.0),
    "other bytes": ((top_of(DATA), b"y" * len(DATA)), 0.0),
    "too little": ((top_of(DATA), DATA[:-1]), 0.0),
    "a huge tree": ((b"shoal-blob/1".ljust(16, b"\0") + (2**60).to_bytes(8) + bytes(8),), 0.0),
    "silence": ((top_of(DATA),), 1e4),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_next_peer_is_asked_after_a_lie(lie: str) -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        root = await three.parcels.put(RUN, DATA)
        lying(two, *LIES[lie][0], then=LIES[lie][1])
        began = trio.current_time()
        got = await one.parcels.get(RUN, root, ANY, peers(two, three))
        assert bytes(got) == DATA and trio.current_time() < began + 2 * IDLE_SECONDS
        # A wrong part is noticed with the first MiB of it.
        assert one.parcels.received <= len(DATA) + (2**20 if lie == "other bytes" else len(DATA))
        with pytest.raises(AveragingError, match="no peer delivered"):
            await one.parcels.get(RUN, "ab" * 32, ANY, peers(two))

    run(body)


def test_a_server_that_trickles_is_left() -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        root = await three.parcels.put(RUN, DATA)

        async def serve(incoming: IncomingStream) -> None:
            await incoming.stream.send(top_of(DATA))
            for _ in range(10_000):
                await incoming.stream.send(b"x")
                await trio.sleep(5)

        two.endpoint.handle_stream(METHOD, serve)
        with trio.fail_after(300):
            assert await one.parcels.get(RUN, root, ANY, peers(two, three)) == DATA

    run(body)


def test_one_peer_gets_a_few_transfers_at_once() -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        root = await one.parcels.put(RUN, DATA)
        link = two.endpoint.link(one.identity.peer)
        assert link is not None
        streams = [await link.open_stream(METHOD, {"root": root}) for _ in range(6)]
        await trio.sleep(2)  # none of them is read to its end
        assert one.parcels.serving[two.identity.peer] == SENDS_PER_PEER
        assert [stream.failed for stream in streams].count("busy") == 6 - SENDS_PER_PEER
        for stream in streams:
            stream.reset("closed")
        await trio.sleep(2)
        assert not one.parcels.serving

    run(body)


def test_only_memory_of_the_usual_size_waits_to_be_used_again() -> None:
    """A peer chooses the size of a state that it states, and eight of them would wait."""

    async def body(one: Node, two: Node, three: Node) -> None:
        held = await one.parcels.put(RUN, b"x")
        for size, waiting in ((len(DATA) - 5, 0), (len(DATA), 1)):
            root = await two.parcels.put(RUN, DATA[:size])
            got = await one.parcels.get(RUN, root, Size(1, len(DATA)), peers(two))
            assert len(got) == size
            del got
            one.parcels.keep(RUN, {held})
            gc.collect()
            assert len(one.parcels.memory[RUN].spare) == waiting

    run(body)
