"""Standbys: replicas with a session that get the KV of the stage that they stand by for."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from shoal.tasks.defaults import STANDBYS_OF_ONE
from shoal.tasks.engine.interface import KvRange, Parts
from shoal.tasks.engine.kv.blocks import BLOCK
from shoal.tasks.inference.choice import Choice
from shoal.tasks.inference.conversation import standing
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Routed
from shoal.tasks.inference.generation import Standby
from shoal.tasks.inference.messages import (
    Change,
    Close,
    Open,
    SessionSampling,
    SpanMessage,
    pack_tokens,
)
from shoal.tasks.inference.surviving import copying
from shoal.tasks.inference.surviving.copying import Copy, Part
from shoal.tasks.routing.beliefs import Times
from shoal.tasks.routing.paths import Hop
from shoal.transport.errors import CallRefused
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import ROOT, VOCABULARY, FakeSwarm, Node

PROMPT = "the quick brown fox jumps over the lazy dog, and over it again " * 4
TOKENS = 60
DELAY = 0.02
SESSION = b"s" * 16


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "STANDBY_WORTH", 0.0)


class Answered:
    """Four stages, each with a replica, and one answer."""

    def __init__(self, splits: tuple[int, ...] = (2, 4, 6, 8), kv_heads: int = 1) -> None:
        self.swarm = FakeSwarm(splits)
        self.stages = self.swarm.stages
        self.spares = [
            Node(self.swarm, 60 + number, stage.parts) for number, stage in enumerate(self.stages)
        ]
        self.swarm.nodes += self.spares
        for node in (*self.stages, *self.spares):
            assert node.parts is not None
            node.serve(node.parts, kv_heads=kv_heads)
        self.route: tuple[str, ...] = ()
        self.tokens: tuple[int, ...] = ()

    async def run(self, deed: Callable[[], Awaitable[None]], *, at: float, **more: Any) -> None:
        """Ask, and do `deed` after `at` seconds."""

        async def ask() -> None:
            request = GenerateRequest("m", PROMPT, raw=True, max_tokens=TOKENS, **more)
            summary = await self.swarm.client.gateway.generate(request, self._emit)
            self.tokens = summary.token_ids

        async def body(_: FakeSwarm) -> None:
            self.swarm.wire.delay = DELAY
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.sleep(at)
                await deed()
                while not self.tokens:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                await trio.sleep(3)
                nursery.cancel_scope.cancel()
            dead = [node for node in self.swarm.nodes if node.peer not in self.swarm.wire.endpoints]
            self.swarm.nodes = [node for node in self.swarm.nodes if node not in dead]
            self.swarm.assert_free()

        with trio.fail_after(300):
            await self.swarm.run(body)
        expected = self.swarm.expected([ord(letter) for letter in PROMPT], TOKENS)
        assert list(self.tokens) == expected

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            self.route = tuple(hop.peer for hop in event.stages)

    def of(self, place: int) -> tuple[Node, Node]:
        """Return the stage at a place of the present chain, and its replica."""
        stage, spare = self.stages[place], self.spares[place]
        return (stage, spare) if stage.peer == self.route[place] else (spare, stage)

    async def die(self, *nodes: Node) -> None:
        """End nodes: their links are lost at once."""
        await trio.lowlevel.checkpoint()
        for node in nodes:
            del self.swarm.wire.endpoints[node.peer]
        for node in nodes:
            for endpoint in list(self.swarm.wire.endpoints.values()):
                endpoint.lose(node.peer)


def computed(node: Node) -> int:
    """Return the number of positions that a node has computed in all."""
    return sum(span.count for span in node.engine.spans)


@pytest.mark.trio
@pytest.mark.parametrize("victims", [(0,), (1,), (2,), (3,), (1, 2), (0, 1, 2, 3)])
async def test_a_standby_takes_over_at_its_position(
    autojump_clock: object, victims: tuple[int, ...]
) -> None:
    answered, standbys = Answered(), list[Node]()

    async def deed() -> None:
        pairs = [answered.of(place) for place in victims]
        standbys.extend(spare for _, spare in pairs)
        assert all(spare.stage.sessions == 1 for spare in standbys)
        await answered.die(*(stage for stage, _ in pairs))

    await answered.run(deed, at=6.0)
    for spare in standbys:
        assert spare.peer in answered.route
        # Copied blocks are not computed again: only the last blocks and the rest of the answer.
        assert 0 < computed(spare) < 3 * BLOCK + TOKENS < len(PROMPT)


@pytest.mark.trio
async def test_the_links_to_standbys_do_not_rest(autojump_clock: object) -> None:
    """They carry nothing for a while, and a link without use would end."""
    answered = Answered()

    async def deed() -> None:
        await trio.lowlevel.checkpoint()
        watches = answered.swarm.client.endpoint.watches
        for stage, spare in map(answered.of, range(4)):
            assert watches(stage.peer) and watches(spare.peer)
        assert not watches(PeerId("other"))

    await answered.run(deed, at=6.0)


async def no_standby(answered: Answered) -> None:
    await trio.lowlevel.checkpoint()
    assert all(answered.of(place)[1].stage.sessions == 0 for place in range(4))


@pytest.mark.trio
async def test_standbys_are_for_answers_of_people(autojump_clock: object) -> None:
    idle, fixed = Answered(), Answered(kv_heads=0)
    await idle.run(lambda: no_standby(idle), at=6.0, turn=NoTurn(), job="ab" * 32)
    await fixed.run(lambda: no_standby(fixed), at=6.0)  # states that cannot be copied


@pytest.mark.trio
async def test_a_standby_of_a_short_context_gets_no_copies(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "STANDBY_WORTH", 5.0)
    soon, later, standbys = Answered(), Answered(), list[Node]()

    async def deed() -> None:
        stage, standby = later.of(1)
        standbys.append(standby)
        assert all(later.of(place)[1].stage.sessions == 1 for place in range(4))
        assert all(later.of(place)[0].stage.copies.copied_bytes == 0 for place in range(4))
        await later.die(stage)

    await soon.run(lambda: no_standby(soon), at=1.0)
    await later.run(deed, at=6.0)
    (standby,) = standbys
    assert standby.peer in later.route and computed(standby) > len(PROMPT)
    assert any(standby.engine.closed)  # it has computed all itself, so others may use it


@pytest.mark.trio
async def test_a_standby_that_only_a_relay_links_gets_copies_early(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a relay, what the stage before it would replay takes seconds even of a short context."""
    monkeypatch.setattr(standing, "STANDBY_WORTH", 0.3)
    answered, relayed = Answered(), list[str]()

    def rate(_: Choice, one: str, other: str) -> float:
        return 5e3 if other in relayed else 5e6  # hidden states are small here

    monkeypatch.setattr(Choice, "rate", rate)

    async def deed() -> None:
        await trio.lowlevel.checkpoint()
        relayed.append(answered.of(2)[1].peer)
        await trio.sleep(2)
        copied = [answered.of(place)[0].stage.copies.copied_bytes for place in range(4)]
        assert [bool(size) for size in copied] == [False, False, True, False]

    await answered.run(deed, at=4.0)


@pytest.mark.trio
async def test_a_node_that_joins_stands_by_soon(autojump_clock: object) -> None:
    answered = Answered()
    late = answered.spares[1]
    answered.swarm.strangers.append(late)

    async def deed() -> None:
        assert late.stage.sessions == 0
        await answered.swarm._introduce()
        await trio.sleep(2.5)  # much less than STANDBY_AGAIN
        assert late.stage.sessions == 1

    await answered.run(deed, at=3.0)


def test_what_a_standby_has_need_not_be_rebuilt() -> None:
    first, stage, other = (
        Hop(PeerId(name), Parts(False, 0, 1, False), "float32") for name in "abc"
    )
    choice: Any = SimpleNamespace(believed=lambda *_: Times(0.01, 0.01), rate=lambda *_: 1000.0)
    talk: Any = SimpleNamespace(model=SimpleNamespace(hidden=5))
    run: Any = SimpleNamespace(
        chain=(first, stage), peers=("a", "b"), computed=1000, standbys=dict[int, Standby]()
    )
    none: Any = None
    standings = standing.Standing(none, none, none, none, choice)
    assert standings.rebuild_s(talk, run, (first, stage)) == 0.0
    row_s = 0.01 + 20 / 1000  # computing, and 20 bytes
    assert standings.rebuild_s(talk, run, (first, other)) == pytest.approx(1000 * row_s)
    run.standbys[1] = Standby(other, 1, have=900)
    assert standings.rebuild_s(talk, run, (first, other)) == pytest.approx(100 * row_s)


@pytest.mark.trio
async def test_few_answers_at_once_have_standbys_without_copies(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "STANDBY_WORTH", 5.0)
    monkeypatch.setattr(standing, "STANDBY_ANSWERS", 0)
    answered = Answered()
    await answered.run(lambda: no_standby(answered), at=6.0)


class NoTurn:
    """The turn of a job that is never over."""

    def is_over(self) -> bool:
        return False

    async def come(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_an_answer_does_not_need_its_standbys(autojump_clock: object) -> None:
    answered = Answered()

    async def deed() -> None:
        (_, first), (_, second), (_, third), (_, fourth) = map(answered.of, range(4))
        first.engine.preempt_all()
        second.engine.refuse_kv = "no-memory"
        third.engine.lose_all()
        await answered.die(fourth)

    await answered.run(deed, at=4.0)


@pytest.mark.trio
async def test_what_stems_from_a_lost_stage_gets_no_names(autojump_clock: object) -> None:
    answered, standbys = Answered(), list[Node]()

    async def deed() -> None:
        stage, standby = answered.of(1)
        standbys.append(standby)
        await answered.die(stage)

    await answered.run(deed, at=6.0)
    (standby,) = standbys
    assert standby.engine.terms[-1].names == b"" and set(standby.engine.closed) == {b""}
    assert any(answered.of(0)[0].engine.closed)


# Messages to stages and standbys.


class Pair:
    """A chain of one stage with a session, and a standby of it."""

    def __init__(self) -> None:
        self.swarm = FakeSwarm((4,))
        (self.stage,) = self.swarm.stages
        self.standby, self.other = (Node(self.swarm, n, self.stage.parts) for n in (60, 61))
        for node in (self.stage, self.standby, self.other):
            assert node.parts is not None
            node.serve(node.parts, 1000, kv_heads=1)
        self.swarm.nodes += [self.standby, self.other]
        self.client = self.swarm.client

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async def opened(_: FakeSwarm) -> None:
            await self.ask(self.client, self.stage, "session.open", self.order(self.stage))
            span = SpanMessage(SESSION, 1, 0, 0, 40, False, 0.0)
            ids = pack_tokens([7] * 40)
            self.client.courier.post(self.stage.peer, "session.span", span.header(), ids)
            await trio.testing.wait_all_tasks_blocked()
            await self.ask(self.client, self.standby, "session.open", self.standing())
            await body()

        with trio.fail_after(100):
            await self.swarm.run(opened)

    def order(self, node: Node, **changes: Any) -> Open:
        assert node.parts is not None
        message = Open(
            session=SESSION,
            epoch=1,
            root=ROOT,
            parts=node.parts,
            dtype="float32",
            stages=(node.peer,),
            index=0,
            tokens=100,
            soon=50,
            steps=5,
            stop_ids=(VOCABULARY - 1,),
            sampling=SessionSampling(),
        )
        return replace(message, **changes)

    def standing(self, **changes: Any) -> Open:
        return self.order(self.standby, **{"standby": self.stage.peer} | changes)

    async def ask(
        self, sender: Node, to: Node, method: str, message: Any, data: bytes = b""
    ) -> Any:
        """Return the header of the reply, or the code of the refusal."""
        try:
            header = message.header()
            reply = await sender.courier.call(to.peer, method, header, data, timeout=5)
        except CallRefused as error:
            return error.code
        return reply.header

    async def part(self, form: str = "exact") -> bytes:
        (session,) = self.stage.engine.states
        return await self.stage.engine.read_kv(session, KvRange(0, 32, 0, 4), form)


@pytest.mark.trio
async def test_a_stage_copies_whole_blocks_to_its_standby(autojump_clock: object) -> None:
    pair = Pair()

    async def body() -> None:
        copy = Copy(SESSION, 1, 0, pair.standby.peer, 90)
        assert await pair.ask(pair.client, pair.stage, "session.copy", copy) == {"have": 32}
        assert pair.stage.stage.copies.copied_bytes > 0
        assert await pair.ask(pair.other, pair.stage, "session.copy", copy) == "unknown-session"
        to = replace(copy, to=pair.other.peer)  # where no such session is open
        assert await pair.ask(pair.client, pair.stage, "session.copy", to) == "not-copied"
        late = replace(copy, epoch=2)
        assert await pair.ask(pair.client, pair.stage, "session.copy", late) == "stale-epoch"
        change = Change(SESSION, 2, 0, 0, (pair.standby.peer,), 39, 5)
        taken = await pair.ask(pair.client, pair.standby, "session.change", change)
        assert taken == {"have": 32}
        part = Part(SESSION, pair.client.peer, 0)
        late_part = await pair.ask(pair.stage, pair.standby, "session.part", part, b"late")
        assert late_part == "not-yours"  # it is a stage now

    await pair.run(body)


@pytest.mark.trio
async def test_a_standby_that_was_opened_again_gets_all_copies(autojump_clock: object) -> None:
    pair = Pair()

    async def body() -> None:
        copy = Copy(SESSION, 1, 0, pair.standby.peer, 90)
        assert await pair.ask(pair.client, pair.stage, "session.copy", copy) == {"have": 32}
        pair.standby.engine.lose_all()
        pair.standby.engine.crashed = False
        await pair.ask(pair.client, pair.standby, "session.open", pair.standing())
        span = SpanMessage(SESSION, 1, 0, 40, 20, False, 0.0)
        ids = pack_tokens([7] * 20)
        pair.client.courier.post(pair.stage.peer, "session.span", span.header(), ids)
        await trio.testing.wait_all_tasks_blocked()
        assert await pair.ask(pair.client, pair.stage, "session.copy", copy) == {"have": 48}

    await pair.run(body)


@pytest.mark.trio
async def test_only_the_stage_may_write_into_a_standby(autojump_clock: object) -> None:
    pair = Pair()
    part = Part(SESSION, pair.client.peer, 0)

    async def body() -> None:
        async def send(sender: Node, to: Node, data: bytes, message: Part = part) -> Any:
            return await pair.ask(sender, to, "session.part", message, data)

        good = await pair.part()
        assert await send(pair.other, pair.standby, good) == "not-yours"
        assert await send(pair.client, pair.standby, good) == "not-yours"
        assert await send(pair.standby, pair.stage, good) == "not-yours"  # no standby
        stranger = replace(part, gateway=pair.other.peer)
        assert await send(pair.stage, pair.standby, good, stranger) == "unknown-session"
        assert await send(pair.stage, pair.standby, b"nonsense") == "bad-state"
        assert await send(pair.stage, pair.standby, bytes(4 << 20)) == "bad-message"
        assert await send(pair.stage, pair.standby, await pair.part("int8")) == "bad-message"
        assert await send(pair.stage, pair.standby, good) == {"have": 32}
        assert await send(pair.stage, pair.standby, good) == "gap"

    await pair.run(body)


@pytest.mark.trio
async def test_a_standby_computes_nothing(autojump_clock: object) -> None:
    pair = Pair()

    async def body() -> None:
        span = SpanMessage(SESSION, 1, 0, 0, 8, True, 0.0)
        ids = pack_tokens([7] * 8)
        assert await pair.ask(pair.client, pair.standby, "session.span", span, ids) == "not-yours"
        await trio.testing.wait_all_tasks_blocked()
        assert pair.standby.engine.spans == []
        assert pair.standby.stage.waited_for == 0  # jobs need not wait for it
        assert pair.standby.stage.meter.take() == {}

    await pair.run(body)


@pytest.mark.trio
async def test_a_part_at_a_time_is_written(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    told = list[Any]()

    async def slowly(session: bytes, part: bytes, *, doubted: bool = False) -> int:
        await trio.sleep(1)
        return 32

    async def body() -> None:
        monkeypatch.setattr(pair.standby.engine, "write_kv", slowly)
        good, part = await pair.part(), Part(SESSION, pair.client.peer, 0)

        async def send() -> None:
            told.append(await pair.ask(pair.stage, pair.standby, "session.part", part, good))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(send)
        assert sorted(map(str, told)) == ["busy"] * 4 + ["{'have': 32}"]

    await pair.run(body)


@pytest.mark.trio
async def test_standbys_take_free_memory_only_and_yield_first(autojump_clock: object) -> None:
    pair = Pair()

    async def body() -> None:
        async def opens(message: Open, sender: Node = pair.client) -> Any:
            found = await pair.ask(sender, pair.standby, "session.open", message)
            return found if isinstance(found, str) else "open"

        # Of 1000 positions a quarter stays free, and one standby of 100 is open.
        pair.standby.engine.kv_tokens = 10**6  # the fake counts by `tokens`
        large = pair.standing(session=b"l" * 16, tokens=750, soon=50)
        assert await opens(large) == "no-memory"
        assert await opens(replace(large, tokens=400, soon=400)) == "open"
        before = pair.standby.stage.room(ROOT, pair.standby.engine.parts)
        assert before >= 990, "standbys use memory that no session needs"
        for number in range(2, STANDBYS_OF_ONE):
            assert await opens(pair.standing(session=bytes([number]) * 16, soon=1)) == "open"
        more = pair.standing(session=b"m" * 16, soon=1)
        assert await opens(more) == "too-many-sessions"
        assert await opens(more, pair.other) == "open"
        # An ordinary session takes the place of what it needs, also one of another gateway.
        order = pair.order(pair.standby, session=b"o" * 16, tokens=900, soon=900)
        assert await opens(order, pair.other) == "open"
        await trio.sleep(1)
        failed = [each[3]["code"] for each in pair.swarm.wire.posts if each[2] == "session.failed"]
        assert set(failed) == {"preempted"}
        assert len(pair.standby.stage.table.standbys()) == STANDBYS_OF_ONE + 1 - len(failed)
        close = Close(b"o" * 16)
        await pair.ask(pair.other, pair.standby, "session.close", close)

    await pair.run(body)


@pytest.mark.trio
async def test_a_slow_link_gets_small_parts_with_pauses(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    block = BLOCK * 4 * 8  # bytes
    monkeypatch.setattr(copying, "COPY_PART_BYTES", block)
    sizes, times = list[int](), list[float]()
    write = pair.standby.engine.write_kv

    async def slowly(session: bytes, part: bytes, *, doubted: bool = False) -> int:
        times.append(trio.current_time())
        before = len(pair.standby.engine.states[session].rows)
        length = await write(session, part)
        sizes.append(length - before)
        await trio.sleep(0.2)
        return length

    async def body() -> None:
        monkeypatch.setattr(pair.standby.engine, "write_kv", slowly)
        for session in pair.stage.stage.table.open.values():
            session.copy_size = block
        copy = Copy(SESSION, 1, 0, pair.standby.peer, 40)
        assert await pair.ask(pair.client, pair.stage, "session.copy", copy) == {"have": 32}
        assert sizes == [BLOCK, BLOCK]
        assert times[1] - times[0] >= 0.4  # it rested as long as the part took

    await pair.run(body)


@pytest.mark.trio
@pytest.mark.parametrize(("have", "ready"), [(33, True), (32, False)])
async def test_a_move_does_not_wait_for_the_blocks_that_the_answer_just_fills(
    have: int, ready: bool
) -> None:
    """Copies have whole blocks only, and the answer is at position 64."""
    old, new = (Hop(PeerId(name), Parts(False, 2, 4, True), "float32") for name in ("old", "new"))
    standby = SimpleNamespace(hop=new, have=have, ready=True)
    run: Any = SimpleNamespace(chain=(old,), standbys={0: standby}, computed=64)
    able: Any = SimpleNamespace(_rebuild_s=lambda *_: 9.0)
    talk: Any = None
    assert await standing.Standing.prepare(able, talk, run, (new,)) is ready
    standby.ready = False
    assert not await standing.Standing.prepare(able, talk, run, (new,))
    await trio.lowlevel.checkpoint()
