"""Fetching beside computing: both meet, and no provider makes a session later."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.dht.kv.index import KvFound, KvProvider
from shoal.tasks.chunks.beside import BesideFetch
from shoal.tasks.chunks.choice import compute_seconds
from shoal.tasks.chunks.connector import ChunkConnector, NodeFunctions, WantingSession
from shoal.tasks.chunks.naming import CHUNK
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.defaults import CHUNK_TIMEOUT
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import KvRange
from shoal.tasks.engine.kv.ahead import RunsAhead
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Answer, Refusal, Reply
from tests.tasks.fake_swarm import FakeHost

from .pair import CODEC, GIVER, OTHER, TAKER, FakeLink, Pair, data_of, origin

pytestmark = pytest.mark.trio

CHUNKS = 8
END = CHUNKS * CHUNK
ROW_S = 0.01
COSTS = ShardCosts(0.0, ROW_S, 0.0)
ALONE = END * ROW_S  # 20.5 s


class ComputingEngine:
    """Engine whose session computes a row in ROW_S seconds from `begin` on, and goes on behind what
    has arrived."""

    def __init__(self) -> None:
        self.length = 0
        self.computed = 0
        self.ended_at = math.inf
        self.expected: list[bool] = []
        self.told_at = 0.0  # when `expected` changed
        self.taken: list[KvRange] = []
        self.doubted = False
        self._ahead = RunsAhead(4, 0.0)
        self._stops: dict[int, int] = {}
        self._at = math.inf  # the time at which `length` was reached

    def expect_kv(self, session: bytes, expected: bool) -> None:
        self.expected.append(expected)
        self.told_at = trio.current_time()
        self._ahead.settle(expected=expected)

    def begin(self) -> None:
        self._at = trio.current_time()

    def advance(self) -> None:
        """Compute until now."""
        now = trio.current_time()
        while True:
            self.length = self._ahead.reached(self.length)
            ends = [start for start in self._stops if start > self.length] + [END]
            rows = min(ends) - self.length
            if not rows or self._at + rows * ROW_S > now:
                break
            self._compute(rows)
        if self.length < END:
            self._compute(max(0, int((now - self._at) / ROW_S)) if self._at < now else 0)
        elif self.ended_at == math.inf:
            self.ended_at = min(self._at, now) if self._at < math.inf else now

    def _compute(self, rows: int) -> None:
        self.length += rows
        self.computed += rows
        self._at += rows * ROW_S

    async def bring_kv(
        self, session: bytes, part: bytes, start: int, stop: int, *, doubted: bool = False
    ) -> int:
        await trio.lowlevel.checkpoint()
        got = CODEC.parse(memoryview(part), "")
        if bytes(got.data) != data_of(got.range, got.form):
            raise EngineError("bad-state", "not finite, say")
        assert self.expected[-1], "parts of a fetch that has ended"
        self.advance()
        if start >= self.length:
            self._ahead.take((start, stop), got.range)
            if self._ahead.reached(start) > start:
                self._stops[start] = stop
            self.taken.append(got.range)
            self.doubted = doubted
            self.advance()
        return self.length


class World:
    """A session with a prompt of 8 chunks, of which a provider has all."""

    def __init__(self) -> None:
        self.pair = Pair(CHUNKS)
        self.link = self.pair.link
        self.link.status.path = "direct"
        self.links = {GIVER.peer: self.link}
        self.providers = [KvProvider(GIVER.peer, CHUNKS)]
        self.refuted: list[PeerId] = []
        self.asked: list[PeerId] = []
        self.engine = ComputingEngine()
        anything: Any = self
        host: Any = FakeHost()
        around = NodeFunctions(anything.connect, lambda *_: [GIVER.peer], lambda _: True)
        self.connector = ChunkConnector(
            host, TAKER.peer, anything.engine, anything, self.pair.store, around
        )

    @property
    def size(self) -> int:
        return CHUNKS * self.pair.plan().chunk_bytes

    async def connect(self, peer: PeerId) -> Any:
        await trio.lowlevel.checkpoint()
        return self.links[peer]

    async def longest(self, chain: Any, layers: Any, **how: Any) -> KvFound:
        await trio.sleep(0.05)
        return KvFound(tuple(self.providers), None, 1)

    def refute(self, peer: PeerId) -> None:
        self.refuted.append(peer)

    def wanted(self, **changes: Any) -> WantingSession:
        first = WantingSession(
            *(b"s" * 16, origin(), self.pair.names, 0, False, CODEC.shape, COSTS), self.asked.append
        )
        return replace(first, **changes)

    async def answer(self, **changes: Any) -> float:
        """Return the seconds until the session has all positions."""
        began = trio.current_time()
        ready = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.connector.beside, self.wanted(**changes), ready)
            await ready.wait()
            self.engine.begin()
            while self.engine.length < END:
                await trio.sleep(0.05)
                self.engine.advance()
            nursery.cancel_scope.cancel()
        return self.engine.ended_at - began


async def test_both_meet_and_take_less_time_than_either(autojump_clock: object) -> None:
    world = World()
    world.link.rate = world.size / ALONE
    took = await world.answer()
    assert took < 0.6 * ALONE
    assert world.engine.taken[0] == KvRange(END - CHUNK, END, 0, 1), "the last chunk first"
    starts = [part.start for part in world.engine.taken]
    assert starts == sorted(starts, reverse=True)
    assert world.asked == [GIVER.peer] and world.engine.expected[-1] is False
    # Less than a chunk was wasted, and the parts on the way.
    used = END - world.engine.computed
    assert world.connector.fetched_bytes <= (used / CHUNK + 1) * world.size / CHUNKS
    assert world.pair.provider.given_bytes < (used / CHUNK + 5) * world.size / CHUNKS


async def test_a_fast_provider_leaves_nothing_to_compute(autojump_clock: object) -> None:
    """The device computes for others meanwhile."""
    world = World()
    world.link.rate = world.size / (0.1 * ALONE)
    assert await world.answer() < 0.11 * ALONE
    assert world.engine.computed == 0


def _silent(link: FakeLink, world: World) -> None:
    link.hangs = True


def _trickles(link: FakeLink, world: World) -> None:
    link.rate = world.size / ALONE / 100


def _stalls(link: FakeLink, world: World) -> None:
    """The last chunk arrives at once but for its last layer, and then nothing."""
    link.rate = world.size / (0.01 * ALONE)
    link.silent_at = lambda header: header["part"][0] < END - CHUNK or header["part"][2] == 3


def _refuses(link: FakeLink, world: World) -> None:
    link.twist = lambda answer, header: Refusal("busy", "later")


def _lies(link: FakeLink, world: World) -> None:
    link.twist = lambda answer, header: Reply({}, b"anything")


def _forgets(link: FakeLink, world: World) -> None:
    """It refuses all chunks but the first one, which never arrives."""

    def twist(answer: Answer, header: dict[str, Any]) -> Answer:
        if header["part"][0] >= CHUNK:
            return Refusal("unknown-chunk", "not here")
        link.rate = 1.0
        return answer

    link.twist = twist


@pytest.mark.parametrize("how", [_silent, _trickles, _stalls, _refuses, _lies, _forgets])
@pytest.mark.parametrize("path", ["direct", "lan"])
async def test_a_bad_provider_makes_the_answer_later_by_a_few_percent(
    how: Callable[[FakeLink, World], None], path: str, autojump_clock: object
) -> None:
    world = World()
    world.link.status.path = path
    how(world.link, world)
    assert await world.answer() < 1.07 * ALONE
    assert world.refuted == ([GIVER.peer] if how is _lies else [])


async def test_what_a_provider_has_sent_before_it_stalls_is_used(autojump_clock: object) -> None:
    world = World()
    world.link.rate = world.size / (0.5 * ALONE)

    def twist(answer: Answer, header: dict[str, Any]) -> Answer:
        if header["part"][0] < END - 5 * CHUNK:  # asked for while earlier ones are on the way
            world.link.rate = 1.0
        return answer

    world.link.twist = twist
    assert await world.answer() < 0.85 * ALONE


async def test_a_slow_link_is_left_alone_and_not_used_again(autojump_clock: object) -> None:
    """Not even one chunk would arrive in time."""
    world = World()
    world.link.rate = world.size / ALONE / 20
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.connector.beside, world.wanted(), ready := trio.Event())
        await ready.wait()
        world.engine.begin()
    assert world.engine.told_at - began < 0.35 * ALONE, "the fetch has ended"
    world.engine = world.connector.engine = ComputingEngine()  # type: ignore[assignment]
    assert world.pair.provider.given_bytes < 5 * world.size / CHUNKS
    calls = world.link.calls
    assert await world.answer() < 1.05 * ALONE
    assert world.link.calls == calls


async def test_a_liar_is_refuted_and_the_next_provider_is_asked(autojump_clock: object) -> None:
    world = World()
    liar = FakeLink(world.pair.board, peer=OTHER.peer, twist=lambda *_: Reply({}, b"anything"))
    world.links[OTHER.peer] = liar
    world.providers.insert(0, KvProvider(OTHER.peer, CHUNKS))
    world.link.rate = world.size / ALONE
    assert await world.answer() < 0.6 * ALONE
    assert world.refuted == [OTHER.peer] and world.asked == [OTHER.peer, GIVER.peer]


async def test_a_provider_that_has_evicted_the_last_chunks_gives_earlier_ones(
    autojump_clock: object,
) -> None:
    world = World()
    world.link.rate = world.size / ALONE

    def twist(answer: Answer, header: dict[str, Any]) -> Answer:
        if header["part"][0] >= END - 2 * CHUNK:
            return Refusal("unknown-chunk", "not here")
        return answer

    world.link.twist = twist
    assert await world.answer() < 0.8 * ALONE
    assert max(part.stop for part in world.engine.taken) == END - 2 * CHUNK


async def test_a_session_that_ends_leaves_nothing_behind(autojump_clock: object) -> None:
    world = World()
    world.link.rate = world.size / ALONE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.connector.beside, world.wanted(), trio.Event())
        await trio.sleep(0.2 * ALONE)
        assert world.engine.taken
        nursery.cancel_scope.cancel()
    taken, calls = len(world.engine.taken), world.link.calls
    await trio.sleep(ALONE)
    assert world.engine.expected[-1] is False
    assert (len(world.engine.taken), world.link.calls) == (taken, calls)


@pytest.mark.parametrize("code", ["unknown-session", "no-memory", "gap", "other-class"])
async def test_an_engine_that_refuses_ends_the_fetch(code: str, autojump_clock: object) -> None:
    world = World()

    async def refuse(*args: Any, **more: Any) -> int:
        await trio.lowlevel.checkpoint()
        raise EngineError(code, "no")

    world.engine.bring_kv = refuse  # type: ignore[method-assign]
    assert await world.answer() < 1.05 * ALONE
    assert not world.refuted


async def test_where_nothing_can_be_won_the_session_begins_at_once(autojump_clock: object) -> None:
    world = World()
    ready, began = trio.Event(), trio.current_time()
    cheap = ShardCosts(0.0, 1e-6, 0.0)
    await world.connector.beside(world.wanted(costs=cheap), ready)
    assert ready.is_set() and trio.current_time() - began < 0.01
    assert not world.asked
    assert compute_seconds(COSTS, 0, END) == pytest.approx(ALONE)


async def test_strangers_are_doubted(autojump_clock: object) -> None:
    world = World()
    world.connector._around = replace(world.connector._around, trusts=lambda _: False)
    await world.answer()
    assert world.engine.doubted


async def test_no_session_waits_longer_for_a_fetch_than_its_gateway(
    autojump_clock: object,
) -> None:
    """A long prompt on a slow machine, and a provider that is faster."""
    world = World()
    costs = ShardCosts(0.0, 50 * ROW_S, 0.0)
    world.link.rate = world.size / (2 * CHUNK_TIMEOUT)
    began, ready = trio.current_time(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.connector.beside, world.wanted(costs=costs), ready)
        await ready.wait()
        nursery.cancel_scope.cancel()
    assert world.engine.taken
    assert trio.current_time() - began < CHUNK_TIMEOUT + 0.1


async def test_no_other_provider_answers_for_what_a_liar_has_sent(autojump_clock: object) -> None:
    """A step of the worker takes so long that no part is known to be written."""
    world = World()
    world.providers.append(KvProvider(OTHER.peer, CHUNKS))
    world.links[OTHER.peer] = FakeLink(world.pair.board, peer=OTHER.peer)
    bring = world.engine.bring_kv

    async def late(*args: Any, **more: Any) -> int:
        length = await bring(*args, **more)
        await trio.sleep(1)
        return length

    def twist(answer: Answer, header: dict[str, Any]) -> Answer:
        last = header["part"][0] >= END - CHUNK
        return answer if last else Reply({}, b"anything")

    world.engine.bring_kv = late  # type: ignore[method-assign]
    world.link.twist = twist
    await world.answer()
    assert world.engine.taken and world.refuted == [GIVER.peer]
    assert world.asked == [GIVER.peer]


# Sessions of chains go on only when a span says so, so their stages tell what has arrived.


class WaitingEngine(ComputingEngine):
    """Engine whose session computes nothing and goes on by itself never. It answers after
    `pause` seconds."""

    pause = 0.0

    async def bring_kv(
        self, session: bytes, part: bytes, start: int, stop: int, *, doubted: bool = False
    ) -> int:
        await trio.lowlevel.checkpoint()
        self.taken.append(CODEC.parse(memoryview(part), "").range)
        length = self.length
        await trio.sleep(self.pause)
        return length


class ChainedWorld(World):
    """A session of a chain, and what its stage tells: `told`."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: WaitingEngine = WaitingEngine()
        anything: Any = self.engine
        self.connector.engine = anything
        self.told: list[tuple[int, int]] = []
        self.link.rate = self.size / ALONE * 4

    async def fetch(self, seconds: float = ALONE) -> None:
        """Fetch for a session that computes, until the fetch ends or for so long."""
        wanted = self.wanted(held=lambda start, stop: self.told.append((start, stop)))
        with trio.move_on_after(seconds):
            await self.connector.beside(wanted, trio.Event())


async def test_a_chain_is_told_of_each_chunk_that_is_complete(autojump_clock: object) -> None:
    world = ChainedWorld()
    await world.fetch()
    assert world.told == [(start, END) for start in range(END - CHUNK, -1, -CHUNK)]


async def test_a_chain_is_told_that_a_doubted_block_is_to_be_computed(
    autojump_clock: object,
) -> None:
    world = ChainedWorld()
    world.connector._around = replace(world.connector._around, trusts=lambda _: False)
    await world.fetch()
    assert {stop for _, stop in world.told} == {END - 16}


async def test_a_chain_is_not_told_of_what_the_engine_has_ignored(autojump_clock: object) -> None:
    """The session had begun to compute it."""
    world = ChainedWorld()
    world.engine.length = 5 * CHUNK + 1
    await world.fetch()
    assert min(part.start for part in world.engine.taken) <= 5 * CHUNK
    assert world.told == [(7 * CHUNK, END), (6 * CHUNK, END)]


async def test_a_chain_is_told_of_what_follows_without_a_gap(autojump_clock: object) -> None:
    """Its session may compute the beginning of a chunk before the chunk arrives."""
    world = ChainedWorld()
    plan = world.pair.plan()
    fetch: Any = BesideFetch.__new__(BesideFetch)
    fetch._plan, fetch._held, fetch._missing = plan, None, {}
    for run in ((768, 1024), (300, 512), (512, 768), (256, 512)):
        for _ in range(2):
            size = plan.bytes_of(*run) // 2
            fetch._note_written(lambda *run: world.told.append(run), run, size)
    assert world.told == [(768, 1024), (512, 1024), (256, 1024)]


async def test_what_the_engine_has_counts_although_the_fetch_was_given_up(
    autojump_clock: object,
) -> None:
    """A step of the worker takes so long that no part is known to be written."""
    world = ChainedWorld()
    world.engine.pause = 0.8 * ALONE
    world.link.silent_at = lambda header: header["part"][0] < END - CHUNK
    world.link.rate *= 10
    await world.fetch()
    assert world.told == [(END - CHUNK, END)]
