"""Tests of the places and the memory that sessions at a stage give to others."""

from typing import Any

import pytest
import trio
import trio.testing

from shoal.tasks.defaults import (
    SESSION_RESTS,
    SESSION_SILENT,
    SESSIONS_PER_GATEWAY,
    SESSIONS_PER_STAGE,
)
from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.messages import (
    Open,
    Probe,
    SessionSampling,
    SpanMessage,
    StageLoad,
    pack_tokens,
)
from shoal.tasks.inference.serving.stagesession import StageSession
from shoal.transport.errors import CallRefused
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import CONTEXT, KV, ROOT, VOCABULARY, FakeSwarm, Node

GATEWAYS = SESSIONS_PER_STAGE // SESSIONS_PER_GATEWAY


class Crowd:
    """A stage with a fast engine, its own gateway, an honest one, and others."""

    def __init__(self, kv_tokens: int = 400 * CONTEXT, others: int = GATEWAYS) -> None:
        self.swarm = FakeSwarm((2,))
        self.stage = self.swarm.stages[0]
        self.honest = self.swarm.client
        self.others = [Node(self.swarm, 20 + number, None) for number in range(others)]
        self.stage.serve(Parts(True, 0, 2, True), kv_tokens=kv_tokens)
        self.stage.engine.kv_tokens = KV  # this engine reserves everything at once
        self._number = 0
        self.stage.stage.table.shards[0].times.note_token(1, 1000.0)  # answers take long

    async def open(self, sender: Node, tokens: int = 1, **changes: Any) -> str:
        """Open a session with a new number. Return `open`, or why it was refused."""
        self._number += 1
        message = Open(
            session=self._number.to_bytes(16),
            epoch=1,
            root=ROOT,
            parts=self.stage.engine.parts,
            dtype="float32",
            stages=(self.stage.peer,),
            index=0,
            tokens=tokens,
            soon=tokens,
            steps=1,
            stop_ids=(VOCABULARY - 1,),
            sampling=SessionSampling(),
            **changes,
        )
        try:
            await sender.courier.call(self.stage.peer, "session.open", message.header(), timeout=5)
        except CallRefused as error:
            return error.code
        return "open"

    async def fill(self, *, speaking: bool = False) -> None:
        """Have the others take all places."""
        share = SESSIONS_PER_STAGE // len(self.others)
        for each in self.others:
            for _ in range(share):
                assert await self.open(each, 100) == "open"
                if speaking:
                    self.speak(each, self._number)

    def speak(self, sender: Node, number: int) -> None:
        """Have a session compute a position."""
        span = SpanMessage(number.to_bytes(16), 1, 0, 0, 1, False, 0.0).header()
        sender.courier.post(self.stage.peer, "session.span", span, pack_tokens([7]))

    def of(self, node: Node) -> list[int]:
        """Numbers of the open sessions of a gateway."""
        found = [each for each in self.sessions if each.gateway == node.peer]
        return [int.from_bytes(each.open.session) for each in found]

    @property
    def sessions(self) -> list[StageSession]:
        return list(self.stage.stage.table.open.values())

    def ended(self) -> list[tuple[PeerId, int]]:
        """Gateways and numbers of the sessions that have ended for others."""
        posts = [post for post in self.swarm.wire.posts if post[2] == "session.failed"]
        assert {post[3]["code"] for post in posts} <= {"preempted"}
        return [(post[1], int.from_bytes(post[3]["session"])) for post in posts]

    async def load(self, asker: Node, soon: int = 1) -> StageLoad:
        """Ask for the load of the stage."""
        probe = Probe(ROOT, self.stage.engine.parts, "float32", 10, soon=soon)
        reply = await asker.courier.call(self.stage.peer, "stage.probe", probe.header(), timeout=5)
        return StageLoad.parse(reply.header)

    async def run(self, body: Any) -> None:
        async def tested(_: FakeSwarm) -> None:
            await body()

        with trio.fail_after(5000):
            await self.swarm.run(tested)


@pytest.mark.trio
@pytest.mark.parametrize("speaking", [False, True], ids=["silent", "speaking"])
async def test_gateways_with_all_places_share_them(autojump_clock: object, speaking: bool) -> None:
    crowd = Crowd()

    async def body() -> None:
        await crowd.fill(speaking=speaking)
        assert (await crowd.load(crowd.honest)).back == 0
        first = min(crowd.of(crowd.others[0]))
        assert await crowd.open(crowd.honest) == "open"
        await trio.testing.wait_all_tasks_blocked()
        assert crowd.ended() == [(crowd.others[0].peer, first)], "the one idle longest"
        answers = [await crowd.open(crowd.honest) for _ in range(15)]
        assert answers == ["open"] * 11 + ["too-many-sessions"] * 4
        counts = [len(crowd.of(each)) for each in (crowd.honest, *crowd.others)]
        assert sorted(counts) == [12, 13, 13, 13, 13], "none has more than one more than another"
        back = [await crowd.open(each) for each in crowd.others]
        assert "open" not in back, "places do not go to and fro"
        assert len(crowd.sessions) == SESSIONS_PER_STAGE

    await crowd.run(body)


@pytest.mark.trio
async def test_the_owner_always_finds_a_place(autojump_clock: object) -> None:
    crowd = Crowd(others=SESSIONS_PER_STAGE)  # of one session each

    async def body() -> None:
        await crowd.fill(speaking=True)
        assert await crowd.open(crowd.stage, job="cd" * 32) == "busy"
        await trio.sleep(SESSION_SILENT)
        assert await crowd.open(crowd.stage, job="cd" * 32) == "too-many-sessions", "a job waits"
        assert await crowd.open(crowd.honest) == "too-many-sessions", "all have as few"
        assert (await crowd.load(crowd.stage)).back == 0
        for _ in range(SESSIONS_PER_STAGE):
            assert await crowd.open(crowd.stage) == "open"
        assert len(crowd.sessions) == SESSIONS_PER_STAGE
        assert await crowd.open(crowd.stage) == "too-many-sessions", "it has all of them"
        await trio.sleep(2 * SESSION_RESTS)
        assert await crowd.open(crowd.honest) == "too-many-sessions", "its own never end for others"

    await crowd.run(body)


@pytest.mark.trio
async def test_the_owner_finds_a_place_while_the_engine_opens_those_of_others(
    autojump_clock: object,
) -> None:
    crowd = Crowd()
    answers: list[str] = []

    async def one(sender: Node) -> None:
        answers.append(await crowd.open(sender))

    async def body() -> None:
        slow = crowd.stage.engine.opening = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(SESSIONS_PER_STAGE):
                nursery.start_soon(one, crowd.others[number % GATEWAYS])
            await trio.testing.wait_all_tasks_blocked()
            assert await crowd.open(crowd.honest) == "too-many-sessions"
            nursery.start_soon(one, crowd.stage)
            await trio.testing.wait_all_tasks_blocked()
            assert len(crowd.of(crowd.stage)) == 1
            slow.set()
        assert answers == ["open"] * (SESSIONS_PER_STAGE + 1)

    await crowd.run(body)


@pytest.mark.trio
async def test_sessions_that_compute_nothing_give_up_their_places(autojump_clock: object) -> None:
    """Each is of another gateway, so none has more than its share."""
    crowd = Crowd(others=SESSIONS_PER_STAGE)

    async def body() -> None:
        await crowd.fill()
        spoke = crowd.others[0]
        crowd.speak(spoke, 1)
        await trio.sleep(SESSION_SILENT - 1)
        assert await crowd.open(crowd.honest) == "too-many-sessions"
        await trio.sleep(1)
        answers = [await crowd.open(crowd.honest) for _ in range(SESSIONS_PER_GATEWAY)]
        assert answers == ["open"] * SESSIONS_PER_GATEWAY
        assert crowd.of(spoke) == [1], "it has computed something"
        await trio.sleep(SESSION_RESTS)
        assert len(crowd.of(spoke)) == 1, "no other session needs its place"

    await crowd.run(body)


@pytest.mark.trio
async def test_a_session_that_has_spoken_rests_longer(autojump_clock: object) -> None:
    crowd = Crowd(others=SESSIONS_PER_STAGE)

    async def body() -> None:
        await crowd.fill(speaking=True)
        await trio.sleep(SESSION_RESTS - 1)
        assert await crowd.open(crowd.honest) == "too-many-sessions"
        await trio.sleep(1)
        assert await crowd.open(crowd.honest) == "open"

    await crowd.run(body)


@pytest.mark.trio
async def test_jobs_give_their_places_first(autojump_clock: object) -> None:
    crowd = Crowd()

    async def body() -> None:
        for each in crowd.others:
            for _ in range(SESSIONS_PER_GATEWAY):
                assert await crowd.open(each, job="cd" * 32) == "open"
        assert await crowd.open(crowd.honest) == "open"
        assert await crowd.open(crowd.stage) == "open"
        last = crowd.others[-1]
        await trio.testing.wait_all_tasks_blocked()
        assert crowd.ended() == [(last.peer, SESSIONS_PER_STAGE), (last.peer, 63)]

    await crowd.run(body)


@pytest.mark.trio
async def test_sessions_that_compute_nothing_give_up_their_memory(autojump_clock: object) -> None:
    """Two gateways have half of it each. None of them has more than its share."""
    crowd = Crowd(4 * CONTEXT, others=2)

    async def body() -> None:
        for each in crowd.others:
            assert await crowd.open(each, CONTEXT) == "open"
            assert await crowd.open(each, CONTEXT) == "open"
        crowd.speak(crowd.others[0], 1)
        assert await crowd.open(crowd.honest, 50) == "no-memory"
        load = await crowd.load(crowd.honest, 50)
        assert (load.room, load.back <= SESSION_SILENT) == (0, True)
        await trio.sleep(SESSION_SILENT)
        assert (await crowd.load(crowd.honest, 50)).room == 3 * CONTEXT
        assert await crowd.open(crowd.honest, 50, job="cd" * 32) == "no-memory", "a job"
        assert await crowd.open(crowd.others[1], 50) == "no-memory", "they are its own"
        assert await crowd.open(crowd.honest, 50) == "open"
        await trio.testing.wait_all_tasks_blocked()
        assert len(crowd.ended()) == 1, "and no more"
        assert crowd.of(crowd.others[0])[0] == 1

    await crowd.run(body)


@pytest.mark.trio
async def test_what_gives_its_place_and_is_not_free_yet_is_limited(autojump_clock: object) -> None:
    """The engine is slow meanwhile. Each opening session would end another one."""
    crowd = Crowd()

    async def body() -> None:
        await crowd.fill()
        await trio.sleep(SESSION_SILENT)
        slow = crowd.stage.engine.closing = trio.Event()
        nodes = [Node(crowd.swarm, 100 + number, None) for number in range(90)]
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(crowd.open, node)
                await trio.testing.wait_all_tasks_blocked()
            assert crowd.stage.stage.endings.freeing <= SESSIONS_PER_STAGE
            assert len(crowd.sessions) == SESSIONS_PER_STAGE
            slow.set()

    await crowd.run(body)
