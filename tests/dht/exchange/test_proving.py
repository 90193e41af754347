"""proving: honest replicas, false claims, and peers that forward chunks fetched from us."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.dht import defaults
from shoal.dht.exchange.proving import Proving
from shoal.transport.errors import DialFailed
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Answer, Call, Refusal, Reply
from shoal.transport.link.link import Link

from ..network import Network, Node, Twist
from .test_provider import Member, member, seeded

pytestmark = pytest.mark.trio

CHUNKS = 6


class World:
    """A node that wants to evict a blob, and others that claim to hold it."""

    def __init__(self, network: Network, own: Member, root: str, folder: Path) -> None:
        self.network = network
        self.own = own
        self.root = root
        self.folder = folder
        self.others: list[PeerId] = []
        self.dialled = 0
        self.proving = self.proving_of(own)

    def proving_of(self, one: Member) -> Proving:
        return Proving(one.host, one.library, connect=lambda peer: self._to(one, peer))

    async def _to(self, one: Member, peer: PeerId) -> Link:
        self.dialled += 1
        await trio.sleep(0.01)
        link = one.node.link(peer)
        if link is None:
            raise DialFailed("unreachable", "no reply")
        return cast(Link, link)

    async def provider(self, name: str, ip: str) -> Member:
        """Add a node that holds the blob."""
        other = await member(self.network, name, self.folder)
        await other.library.add_blob(self.folder / "file")
        other.node.ip = ip
        self.others.append(other.node.peer)
        return other

    def liar(self, name: str, ip: str, twist: Twist | None = None) -> Node:
        """Add a node that refuses chunks, or replies as `twist` says."""
        node = self.network.node(name)
        node.ip = ip
        node.handle("blob.chunk", lambda call: Refusal("not-held", "no"))
        if twist is not None:
            node.handle("blob.chunk", lambda call: twist("blob.chunk", Reply({}, b"")))
        self.others.append(node.peer)
        return node

    async def proven(self) -> int:
        return await self.proving.networks(self.root, self.others)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    network, own, root = await seeded(tmp_path, CHUNKS)
    return World(network, own, root, tmp_path)


async def test_replicas_count_once_per_network(world: World) -> None:
    assert await world.proven() == 0
    await world.provider("a", "8.8.8.8")
    assert await world.proven() == 1
    await world.provider("b", "8.8.8.9")
    assert await world.proven() == 1
    await world.provider("c", "9.9.9.9")
    assert await world.proven() == 2


async def test_in_a_local_network_each_machine_counts(world: World) -> None:
    for number in range(2):
        await world.provider(f"m{number}", f"192.168.1.{number}")
    assert await world.proven() == 2


async def test_false_claims_do_not_count(world: World) -> None:
    world.liar("refuses", "8.8.8.8")
    world.liar("lies", "8.8.4.8", lambda method, answer: Reply({}, b"other bytes"))
    world.others.append(PeerId("ghost"))
    assert await world.proven() == 0


async def test_a_partial_replica_is_detected(world: World) -> None:
    half = await world.provider("half", "8.8.8.8")
    for digest in (await half.library.content(world.root)).order[: CHUNKS // 2]:
        half.library.store.remove(digest)
    found = [await world.proven() for _ in range(20)]
    assert found.count(1) <= 5, "one in twenty is expected by chance"


@pytest.mark.parametrize("defended", [True, False])
async def test_a_peer_that_forwards_chunks_fetched_from_us_does_not_count(
    world: World, defended: bool
) -> None:
    """Twin: if this node keeps serving the content, the peer can forward its chunks."""
    if not defended:
        world.own.library.withheld = _Nothing()
    node = world.liar("passes-on", "8.8.8.8")

    async def pass_on(call: Call) -> Answer:
        handler = world.own.node.handlers["blob.chunk"]
        answer = handler(Call(node.peer, {"digest": call.header["digest"]}, b""))
        return await cast(Awaitable[Answer], answer)

    node.handle("blob.chunk", pass_on)
    assert await world.proven() == (0 if defended else 1)
    world.proving.finish()
    digest = (await world.own.library.content(world.root)).order[0]
    assert isinstance(await world.own.ask("blob.chunk", node.peer, digest=digest), Reply)


class _Nothing(dict[str, Any]):
    """Withholds nothing."""

    def __setitem__(self, root: str, chunks: object) -> None:
        pass


async def test_two_nodes_do_not_evict_a_content_because_of_each_other(world: World) -> None:
    other = await world.provider("other", "8.8.8.8")
    theirs = world.proving_of(other)
    assert await theirs.networks(world.root, [world.own.node.peer]) == 1
    assert await world.proven() == 0, "the other may be about to evict it"
    theirs.finish()
    assert await world.proven() == 1


@pytest.mark.parametrize("defended", [True, False])
async def test_many_claims_from_one_network_are_cheap(
    world: World, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A limited number is dialled, and two are asked. Twin: each of them is asked."""
    if not defended:
        monkeypatch.setattr(defaults, "PROOF_OF_NETWORK", 10_000)
    asked: list[str] = []

    def lie(method: str, answer: Answer) -> Answer:
        asked.append(method)
        return Reply({}, b"other bytes")

    for number in range(100):
        world.liar(f"liar{number}", "8.8.8.8", lie)
    assert await world.proven() == 0
    assert world.dialled <= defaults.PROOF_ASKED
    assert (len(asked) <= 2) is defended


async def test_silent_peers_do_not_delay_the_proof_for_long(
    world: World, autojump_clock: MockClock
) -> None:
    for number in range(20):
        world.liar(f"silent{number}", f"8.8.{number}.8")

    async def silent(call: Call) -> Answer:
        await trio.sleep_forever()

    for peer in world.others:
        world.network.nodes[peer].handle("blob.chunk", silent)
    began = trio.current_time()
    assert await world.proven() == 0
    assert trio.current_time() - began <= defaults.PROOF_S + 1


async def test_an_unknown_root_has_no_proof(world: World) -> None:
    assert await world.proving.networks("ab" * 32, world.others) == 0
