"""The connector: which providers are asked, how long, and what is learned about them."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.dht.kv.index import KvFound, KvProvider
from shoal.tasks.chunks import connector as module
from shoal.tasks.chunks.choice import compute_seconds
from shoal.tasks.chunks.connector import ChunkConnector, NodeFunctions, WantingSession
from shoal.tasks.chunks.naming import CHUNK
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.defaults import CHUNK_LOOK_SHARE, CHUNK_RATE_AGE, CHUNK_SHY, CHUNK_TIMEOUT
from shoal.transport.errors import DialFailed
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Reply
from tests.tasks.fake_swarm import FakeHost

from .pair import (
    ALL,
    CODEC,
    COSTS,
    GIVER,
    OTHER,
    TAKER,
    FakeLink,
    Pair,
    TakingEngine,
    Twist,
    names,
    origin,
)

pytestmark = pytest.mark.trio


class World:
    """A node with two providers of one prompt: GIVER, and OTHER that lies."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.links = {GIVER.peer: self.pair.link}
        self.providers = [KvProvider(GIVER.peer, 3)]
        self.refuted: list[PeerId] = []
        self.looks: list[dict[str, Any]] = []
        self.look_s = 0.0
        self.trusted = {GIVER.peer}
        self.engine = TakingEngine()
        anything: Any = self
        host: Any = FakeHost()
        around = NodeFunctions(anything.connect, lambda *_: [GIVER.peer], self.trusted.__contains__)
        self.connector = ChunkConnector(
            host, TAKER.peer, anything.engine, anything, self.pair.store, around
        )

    def add_liar(self, twist: Twist) -> None:
        link = FakeLink(self.pair.board, peer=OTHER.peer, twist=twist)
        self.links[OTHER.peer] = link
        self.providers.insert(0, KvProvider(OTHER.peer, 3))

    async def connect(self, peer: PeerId) -> Any:
        await trio.lowlevel.checkpoint()
        if peer not in self.links:
            raise DialFailed("unreachable", "no reply")
        return self.links[peer]

    async def longest(self, chain: Any, layers: Any, **how: Any) -> KvFound:
        self.looks.append(how)
        await trio.sleep(self.look_s)
        left = [each for each in self.providers if each.peer not in self.refuted]
        return KvFound(tuple(left), None, 1)

    def refute(self, peer: PeerId) -> None:
        self.refuted.append(peer)

    def wanted(self, **changes: Any) -> WantingSession:
        first = WantingSession(b"s" * 16, origin(), self.pair.names, 0, False, CODEC.shape, COSTS)
        return replace(first, **changes)

    async def brought(self, **changes: Any) -> tuple[int, PeerId | None]:
        return await self.connector.brought(self.wanted(**changes))


async def test_the_prefix_comes_from_a_provider(autojump_clock: object) -> None:
    world = World()
    assert await world.brought() == (ALL, GIVER.peer)
    assert world.connector.fetched_bytes == 3 * world.pair.plan().chunk_bytes
    assert not world.engine.doubted and not world.refuted


@pytest.mark.parametrize(
    "changes",
    [
        {"names": b""},
        {"names": names(1)[: 15 * 16]},
        {"cached": ALL},
        {"cached": ALL - 16, "costs": ShardCosts(0.0, 0.001, 0.0)},
        {"costs": ShardCosts()},
    ],
)
async def test_nobody_is_asked_where_nothing_can_be_won(
    changes: dict[str, Any], autojump_clock: object
) -> None:
    world = World()
    cached = changes.get("cached", 0)
    assert await world.brought(**changes) == (cached, None)
    assert not world.looks


async def test_a_look_takes_a_small_part_of_the_computing(autojump_clock: object) -> None:
    world = World()
    world.look_s = 100.0
    began = trio.current_time()
    assert await world.brought() == (0, None)
    assert trio.current_time() - began <= CHUNK_LOOK_SHARE * compute_seconds(COSTS, 0, ALL)
    (how,) = world.looks
    assert how["look_up"] and how["likely"] == [GIVER.peer]
    await world.brought(costs=ShardCosts(0.0, 0.001, 0.0))
    assert not world.looks[-1]["look_up"], "too short for the index"


async def test_a_lying_provider_is_refuted_and_the_next_one_is_asked(
    autojump_clock: object,
) -> None:
    world = World()
    world.add_liar(lambda *_: Reply({}, b"anything"))
    assert await world.brought() == (ALL, GIVER.peer)
    assert world.refuted == [OTHER.peer]


async def test_a_fetch_that_takes_too_long_leaves_its_complete_chunks(
    autojump_clock: object,
) -> None:
    world = World()
    slow = ShardCosts(0.2, 0.2, 0.0)  # computing all takes 154 s, and fetching it 50 s
    world.pair.link.rate = 3 * world.pair.plan().chunk_bytes / 50.0
    began = trio.current_time()
    assert await world.brought(costs=slow) == (CHUNK, GIVER.peer)
    assert trio.current_time() - began == pytest.approx(CHUNK_TIMEOUT, abs=0.1)


async def test_unreachable_and_hanging_providers_cost_little_and_fail_nothing(
    autojump_clock: object,
) -> None:
    world = World()
    world.providers.insert(0, KvProvider(PeerId("nobody"), 3))
    assert await world.brought() == (ALL, GIVER.peer)
    world = World()
    world.pair.link.hangs = True
    began = trio.current_time()
    assert await world.brought() == (0, None)
    assert trio.current_time() - began < 0.1 * 7.8
    assert not world.refuted


async def test_strangers_are_doubted_and_after_a_lie_not_asked(autojump_clock: object) -> None:
    world = World()
    world.trusted.clear()
    await world.brought()
    assert world.engine.doubted
    for number in range(1000):
        world.connector.refute(GIVER.peer, PeerId(f"g{number}"))
    assert len(world.connector.shy_until) < 1000 and not world.refuted
    world.connector.engine = TakingEngine()  # type: ignore[assignment]
    assert await world.brought() == (ALL, GIVER.peer), "another gateway may have lied"
    world.connector.refute(GIVER.peer, origin().owner)
    world.connector.engine = TakingEngine()  # type: ignore[assignment]
    assert await world.brought() == (0, None)
    world.trusted.add(GIVER.peer)
    assert await world.brought() == (ALL, GIVER.peer)
    world.trusted.clear()
    await trio.sleep(CHUNK_SHY + 1)
    world.connector.engine = TakingEngine()  # type: ignore[assignment]
    assert await world.brought() == (ALL, GIVER.peer)


async def test_a_link_that_was_slow_is_not_used_again_for_a_while(autojump_clock: object) -> None:
    world = World()
    world.pair.link.rate = 1000.0
    assert await world.brought() == (0, None)
    calls = world.pair.link.calls
    assert await world.brought() == (0, None)
    assert world.pair.link.calls == calls
    world.pair.link.rate = 1e9
    await trio.sleep(CHUNK_RATE_AGE + 1)
    assert await world.brought() == (ALL, GIVER.peer)


async def test_rates_are_remembered_of_a_limited_number_of_providers(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RATES", 3)
    world = World()
    for number in range(10):
        peer = PeerId(f"p{number}")
        world.links[peer] = FakeLink(world.pair.board, peer=peer, rate=1.0)
        world.providers = [KvProvider(peer, 3)]
        await world.brought()
    assert len(world.connector.rates) == 3


async def test_exact_sessions_ask_for_exact_parts(autojump_clock: object) -> None:
    world = World()
    assert await world.brought(exact=True) == (ALL, GIVER.peer)
    assert world.connector.fetched_bytes == 3 * world.pair.plan(form="exact").chunk_bytes
    assert world.pair.plan(form="exact").chunk_bytes > world.pair.plan().chunk_bytes


async def test_this_node_itself_is_no_provider(autojump_clock: object) -> None:
    world = World()
    world.providers = [KvProvider(TAKER.peer, 3)]
    assert await world.brought() == (0, None)


async def test_what_a_session_leaves_is_offered(autojump_clock: object) -> None:
    world = World()
    world.connector.saved(origin(), names(2, seed=8))
    chain, layers, publish = world.pair.board.announced[-1]
    assert (len(chain), layers, publish) == (2, (0, 4), True)
    assert CHUNK == 256


async def test_a_lie_that_this_nodes_own_gateway_met_refutes_the_provider(
    autojump_clock: object,
) -> None:
    world = World()
    world.connector.refute(GIVER.peer, TAKER.peer)
    assert world.refuted == [GIVER.peer]
