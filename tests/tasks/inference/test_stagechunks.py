"""When a stage fetches KV beside computing, and when first."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.tasks.chunks.connector import WantingSession
from shoal.tasks.chunks.store import KvOrigin
from shoal.tasks.engine.interface import NAME_BYTES
from shoal.tasks.inference.messages import (
    Change,
    Close,
    Held,
    Open,
    SessionOpened,
    SessionSampling,
    SpanMessage,
    pack_tokens,
)
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import ROOT, FakeSwarm, Node

pytestmark = pytest.mark.trio

SESSION = b"0" * 16
NAMES = b"n" * (40 * NAME_BYTES)  # of two chunks and a half


class Fetching:
    """Connector whose fetches never end, and whose sessions may compute after 1 s."""

    def __init__(self) -> None:
        self.first = 0  # fetches before computing
        self.beside_now = 0
        self.kept: list[bytes] = []
        self.wanted: list[WantingSession] = []

    async def brought(self, wanted: WantingSession) -> tuple[int, PeerId | None]:
        await trio.lowlevel.checkpoint()
        self.first += 1
        return wanted.cached, None

    async def beside(self, wanted: WantingSession, ready: trio.Event) -> None:
        self.wanted.append(wanted)
        self.beside_now += 1
        try:
            await trio.sleep(1)
            ready.set()
            await trio.sleep_forever()
        finally:
            self.beside_now -= 1

    def keep(self, session: bytes) -> None:
        self.kept.append(session)

    def refute(self, peer: PeerId, gateway: PeerId) -> None:
        raise NotImplementedError

    def saved(self, origin: KvOrigin, names: bytes) -> None:
        """Do nothing."""


class Stages:
    """A chain whose stages have such connectors."""

    def __init__(self, splits: tuple[int, ...] = (8,)) -> None:
        self.connector = Fetching()
        self.opened = SessionOpened(0)
        self.swarm = FakeSwarm(splits, connector=self.connector)
        for node in self.swarm.stages:
            for served in node.stage.table.shards.values():
                served.shard = replace(served.shard, kv_heads=1)

    async def run(self, body: Any) -> None:
        with trio.fail_after(60):
            await self.swarm.run(body)

    async def open(
        self, session: bytes = SESSION, names: bytes = NAMES, *, cached: int = 0, **changes: Any
    ) -> Node:
        """Open a session at the last stage."""
        index = len(self.swarm.stages) - 1
        node = self.swarm.stages[index]
        assert node.parts is not None
        peers = tuple(each.peer for each in self.swarm.stages)
        order = Open(
            session=session,
            epoch=1,
            root=ROOT,
            parts=node.parts,
            dtype="float32",
            stages=peers,
            index=index,
            tokens=1000,
            soon=700,
            steps=5,
            stop_ids=(),
            sampling=SessionSampling(),
            **changes,
        )
        link = self.swarm.client.endpoint.link(node.peer)
        assert link is not None
        reply = await link.call("session.open", order.header(), names, timeout=5)
        self.opened = SessionOpened.parse(reply.header)
        assert self.opened.cached == cached
        return node

    @property
    def told(self) -> list[Held]:
        """What the gateway was told of KV that has arrived."""
        posts = self.swarm.wire.posts
        return [Held.parse(header) for *_, what, header in posts if what == "session.held"]

    def span(self, node: Node, session: bytes = SESSION) -> None:
        span = SpanMessage(session, 1, 0, 0, 33, False, 0.0)
        payload = pack_tokens([1] * 33)
        self.swarm.client.courier.post(node.peer, "session.span", span.header(), payload)

    async def close(self, node: Node) -> None:
        header = Close(SESSION).header()
        await self.swarm.client.courier.call(node.peer, "session.close", header, timeout=5)


async def test_the_stage_of_a_whole_model_computes_while_kv_arrives(
    autojump_clock: object,
) -> None:
    stages = Stages()

    async def body(swarm: FakeSwarm) -> None:
        began = trio.current_time()
        node = await stages.open()
        assert 1.0 <= trio.current_time() - began < 1.1
        assert stages.connector.beside_now == 1
        session = next(iter(node.stage.table.open.values()))
        (wanted,) = stages.connector.wanted
        wanted.asked(PeerId("a provider"))
        assert session.source == "a provider", "it may be refuted"
        row_s = session.served.times.row_s
        stages.span(node)
        await trio.sleep(1)
        assert session.computed == 33 and session.served.times.row_s == row_s, (
            "some rows may have come from elsewhere"
        )
        await stages.close(node)
        assert not stages.connector.beside_now, "the fetch ends with the session"

    await stages.run(body)
    assert not stages.connector.first


async def test_a_session_that_is_closed_while_it_opens_ends_its_fetch(
    autojump_clock: object,
) -> None:
    stages = Stages()

    async def body(swarm: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stages.open)
            await trio.sleep(0.5)
            assert stages.connector.beside_now == 1
            nursery.cancel_scope.cancel()
            await stages.close(swarm.stages[0])
        await trio.sleep(0.1)
        assert not stages.connector.beside_now

    await stages.run(body)


async def test_a_stage_of_a_chain_tells_its_gateway_what_arrives(autojump_clock: object) -> None:
    """The gateway leaves out what all stages have."""
    stages = Stages((4, 8))

    async def body(swarm: FakeSwarm) -> None:
        began = trio.current_time()
        node = await stages.open(skips=True)
        assert 1.0 <= trio.current_time() - began < 1.1
        assert stages.opened.skips and stages.opened.fetches
        (wanted,) = stages.connector.wanted
        assert wanted.held is not None
        wanted.held(256, 512)
        wanted.held(0, 512)
        said = [(told.index, told.start, told.stop, told.more) for told in stages.told]
        assert said == [(1, 256, 512, True), (1, 0, 512, True)]
        await stages.close(node)
        assert not stages.connector.beside_now, "the fetch ends with the session"
        assert len(stages.told) == 2

    await stages.run(body)
    assert not stages.connector.first and not stages.connector.kept


async def test_a_stage_has_what_it_has_cached_before_what_arrives(autojump_clock: object) -> None:
    stages = Stages((4, 8))
    stages.swarm.stages[1].engine.cached = 32

    async def body(swarm: FakeSwarm) -> None:
        await stages.open(cached=32, skips=True)
        (wanted,) = stages.connector.wanted
        assert wanted.held is not None
        for start in (256, 32):
            wanted.held(start, 512)
        assert [(told.start, told.stop) for told in stages.told] == [(256, 512), (0, 512)]
        await stages.close(swarm.stages[1])

    await stages.run(body)


async def test_a_stage_says_when_no_more_will_arrive(autojump_clock: object) -> None:
    stages = Stages((4, 8))

    async def ends(wanted: WantingSession, ready: trio.Event) -> None:
        assert wanted.held is not None
        wanted.held(256, 512)
        ready.set()
        await trio.sleep(1)

    stages.connector.beside = ends  # type: ignore[method-assign]

    async def body(swarm: FakeSwarm) -> None:
        await stages.open(skips=True)
        assert stages.opened.fetches
        await trio.sleep(2)
        assert [told.more for told in stages.told] == [True, False]
        assert stages.told[1].start == 256

    await stages.run(body)


async def test_a_stage_for_which_nobody_has_kv_says_so_when_it_opens(
    autojump_clock: object,
) -> None:
    """There is no further message, and the prompt travels in long spans."""
    stages = Stages((4, 8))

    async def nobody(wanted: WantingSession, ready: trio.Event) -> None:
        await trio.sleep(1)

    stages.connector.beside = nobody  # type: ignore[method-assign]

    async def body(swarm: FakeSwarm) -> None:
        await stages.open(skips=True)
        await trio.sleep(2)
        assert stages.opened.skips and not stages.opened.fetches
        assert not stages.told

    await stages.run(body)


async def test_a_stage_whose_chain_is_changed_fetches_no_more(autojump_clock: object) -> None:
    """A new stage has nothing of it, so the gateway leaves nothing out."""
    stages = Stages((4, 8))

    async def body(swarm: FakeSwarm) -> None:
        node = await stages.open(skips=True)
        assert stages.connector.beside_now == 1
        peers = tuple(each.peer for each in swarm.stages)
        header = Change(SESSION, 2, 1, 1, peers, 16, 5).header()
        await swarm.client.courier.call(node.peer, "session.change", header, timeout=5)
        await trio.sleep(0.1)
        assert not stages.connector.beside_now and not stages.told

    await stages.run(body)


@pytest.mark.parametrize("why", ["busy", "short", "nothing", "resume", "old gateway"])
async def test_other_stages_of_chains_fetch_first(why: str, autojump_clock: object) -> None:
    """They keep what they have, so that the others may still leave it out."""
    stages = Stages((4, 8))
    changes: dict[str, Any] = {"skips": why != "old gateway"}

    async def body(swarm: FakeSwarm) -> None:
        if why == "busy":
            await stages.open(b"1" * 16, names=b"")
            next(iter(swarm.stages[1].stage.table.open.values())).queued.append(None)  # type: ignore[arg-type]
        if why == "resume":
            changes["resume"] = 600
        names = NAMES[: 31 * NAME_BYTES] if why in ("short", "nothing") else NAMES
        cached = swarm.stages[1].engine.cached = 0 if why == "nothing" else 16
        await stages.open(names=names, cached=cached, **changes)
        for session in swarm.stages[1].stage.table.open.values():
            session.queued.clear()

    await stages.run(body)
    assert stages.connector.first == 1 and not stages.connector.wanted
    assert stages.opened.skips == (why in ("busy", "short", "nothing"))
    assert bool(stages.connector.kept) == (why in ("busy", "short"))
    assert not stages.opened.fetches


@pytest.mark.parametrize(
    ("changes", "names"), [({}, NAMES[: 31 * NAME_BYTES]), ({"resume": 600}, NAMES)]
)
async def test_short_prompts_and_answers_that_go_on_fetch_first(
    changes: dict[str, Any], names: bytes, autojump_clock: object
) -> None:
    stages = Stages()

    async def body(swarm: FakeSwarm) -> None:
        await stages.open(names=names, **changes)

    await stages.run(body)
    assert stages.connector.first == 1 and not stages.connector.wanted


async def test_a_stage_that_computes_for_others_fetches_first(autojump_clock: object) -> None:
    stages = Stages()

    async def body(swarm: FakeSwarm) -> None:
        other = b"1" * 16
        node = await stages.open(other)
        session = next(iter(node.stage.table.open.values()))
        session.queued.append(None)  # type: ignore[arg-type]
        await stages.open()
        session.queued.clear()

    await stages.run(body)
    assert stages.connector.first == 1 and len(stages.connector.wanted) == 1


async def test_a_prompt_for_which_nobody_has_kv_is_measured(autojump_clock: object) -> None:
    stages = Stages()

    async def nobody(wanted: WantingSession, ready: trio.Event) -> None:
        await trio.lowlevel.checkpoint()

    stages.connector.beside = nobody  # type: ignore[method-assign]

    async def body(swarm: FakeSwarm) -> None:
        node = await stages.open()
        (served,) = node.stage.table.shards.values()
        session = next(iter(node.stage.table.open.values()))
        session.note_computed(700, 700, 7.0, 0)
        assert served.times.row_s == 0.01
        session.use_provider(node.peer)
        session.note_computed(700, 700, 70.0, 0)
        assert served.times.row_s == 0.01, "some of it may have come from there"

    await stages.run(body)
