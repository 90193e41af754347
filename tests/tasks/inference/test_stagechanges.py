"""Hostile and late messages about changed chains: refused, or without effect."""

from typing import Any

import pytest
import trio
from msgspec.structs import replace

from shoal.tasks.defaults import CHANGES, WATCHES
from shoal.tasks.inference.messages import (
    AskState,
    Change,
    Close,
    Need,
    Open,
    Rebuild,
    SessionSampling,
    SpanMessage,
    pack_tokens,
)
from shoal.transport.errors import CallRefused
from tests.tasks.fake_swarm import ROOT, VOCABULARY, FakeSwarm, Node

SESSION = b"s" * 16
PROMPT = 40


class Chain:
    """Three stages with a session of some positions, and a spare of the last one."""

    def __init__(self) -> None:
        self.swarm = FakeSwarm((2, 4, 6))
        self.first, self.second, self.third = self.swarm.stages
        self.spare = Node(self.swarm, 60, self.third.parts)
        self.client = self.swarm.client

    async def run(self, body: Any) -> None:
        async def open_and(_: FakeSwarm) -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.spare.stage.run)
                for index, node in enumerate(self.swarm.stages):
                    await self.call(self.client, node, "session.open", self.order(node, index))
                span = SpanMessage(SESSION, 1, 0, 0, PROMPT, False, 0.0)
                ids = pack_tokens([7] * PROMPT)
                self.client.courier.post(self.first.peer, "session.span", span.header(), ids)
                await trio.testing.wait_all_tasks_blocked()
                await body()
                for node in (*self.swarm.stages, self.spare):
                    await self.call(self.client, node, "session.close", Close(SESSION))
                assert all(node.stage.sessions == 0 for node in self.swarm.stages)
                nursery.cancel_scope.cancel()

        await self.swarm.run(open_and)

    def order(self, node: Node, index: int) -> Open:
        assert node.parts is not None
        return Open(
            session=SESSION,
            epoch=1,
            root=ROOT,
            parts=node.parts,
            dtype="float32",
            stages=tuple(each.peer for each in self.swarm.stages),
            index=index,
            tokens=100,
            soon=50,
            steps=5,
            stop_ids=(VOCABULARY - 1,),
            sampling=SessionSampling(),
        )

    def changed(self, index: int, **changes: Any) -> Change:
        stages = (self.first.peer, self.second.peer, self.spare.peer)
        return replace(Change(SESSION, 2, index, index, stages, PROMPT - 1, 5), **changes)

    async def change(self) -> None:
        """Put the spare in the place of the third stage."""
        for index, node in enumerate((self.first, self.second)):
            await self.call(self.client, node, "session.change", self.changed(index))
        message = replace(
            self.order(self.spare, 2),
            epoch=2,
            stages=(self.first.peer, self.second.peer, self.spare.peer),
            resume=PROMPT - 1,
        )
        await self.call(self.client, self.spare, "session.open", message)

    async def call(self, sender: Node, to: Node, method: str, message: Any) -> Any:
        return (await sender.courier.call(to.peer, method, message.header(), timeout=5)).header

    async def refusal(self, sender: Node, to: Node, method: str, message: Any) -> str:
        with pytest.raises(CallRefused) as caught:
            await self.call(sender, to, method, message)
        return caught.value.code

    def sent(self) -> int:
        """Return the number of positions that the second stage has sent to the spare."""
        return sum(
            post[3]["count"]
            for post in self.swarm.wire.posts
            if post[:3] == (self.second.peer, self.spare.peer, "session.span")
        )


@pytest.mark.trio
async def test_a_new_stage_gets_what_it_asks_for(autojump_clock: object) -> None:
    chain = Chain()

    async def body() -> None:
        await chain.change()
        assert chain.sent() == 0  # no stage has asked
        await chain.call(chain.client, chain.spare, "session.rebuild", Rebuild(SESSION, 2, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert chain.sent() == PROMPT - 1

    await chain.run(body)


@pytest.mark.trio
async def test_needs_again_and_again_send_nothing(autojump_clock: object) -> None:
    chain = Chain()

    async def body() -> None:
        await chain.change()
        need = Need(SESSION, 2, 1, 0, PROMPT - 1, chain.client.peer)
        for _ in range(2):  # a stage may start again once
            await chain.call(chain.spare, chain.second, "session.need", need)
        for _ in range(20):
            refused = await chain.refusal(chain.spare, chain.second, "session.need", need)
            assert refused == "bad-message"
        assert chain.sent() == 2 * (PROMPT - 1)

    await chain.run(body)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("bad-message", {"stop": PROMPT}),  # beyond the position where the chain continues
        ("bad-message", {"start": PROMPT - 1, "stop": PROMPT - 1}),
        ("bad-message", {"start": 90, "stop": 100}),
        ("unknown-session", {"session": b"x" * 16}),
        ("unknown-session", {"index": 0}),
        ("stale-epoch", {"epoch": 1}),
        ("stale-epoch", {"epoch": 3}),
        ("unknown-session", {"gateway": None}),
    ],
)
async def test_needs_of_impossible_positions_and_sessions_are_refused(
    autojump_clock: object, code: str, changes: dict[str, Any]
) -> None:
    chain = Chain()

    async def body() -> None:
        await chain.change()
        need = replace(Need(SESSION, 2, 1, 0, PROMPT - 1, chain.client.peer), **changes)
        assert await chain.refusal(chain.spare, chain.second, "session.need", need) == code
        assert chain.sent() == 0

    await chain.run(body)


@pytest.mark.trio
async def test_only_the_next_stage_may_need(autojump_clock: object) -> None:
    chain = Chain()

    async def body() -> None:
        before = Need(SESSION, 1, 1, 0, PROMPT - 1, chain.client.peer)
        refused = await chain.refusal(chain.third, chain.second, "session.need", before)
        assert refused == "bad-message"  # the chain was not changed
        await chain.change()
        need = Need(SESSION, 2, 1, 0, PROMPT - 1, chain.client.peer)
        for thief in (chain.third, chain.first, chain.client):
            refused = await chain.refusal(thief, chain.second, "session.need", need)
            assert refused == "not-yours"
        assert chain.sent() == 0

    await chain.run(body)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("stale-epoch", {"epoch": 1}),
        ("unknown-session", {"session": b"x" * 16}),
        ("unknown-session", {"index": 2}),
        ("bad-message", {"place": 0}),
        ("bad-message", {"place": 2}),
        ("bad-message", {"place": 3}),
        ("unreachable", {"stages": "stranger"}),
    ],
)
async def test_a_change_that_does_not_fit_is_refused(
    autojump_clock: object, code: str, changes: dict[str, Any]
) -> None:
    chain = Chain()

    async def body() -> None:
        message = chain.changed(1)
        if changes.get("stages") == "stranger":
            stages = (chain.first.peer, chain.second.peer, "12D3KooWstranger")
            message = replace(message, stages=stages)
        else:
            message = replace(message, **changes)
        assert await chain.refusal(chain.client, chain.second, "session.change", message) == code
        thief = await chain.refusal(chain.first, chain.second, "session.change", chain.changed(1))
        assert thief == "unknown-session"  # of another gateway

    await chain.run(body)


@pytest.mark.trio
async def test_a_chain_changes_a_limited_number_of_times(autojump_clock: object) -> None:
    chain = Chain()

    async def body() -> None:
        for epoch in range(2, CHANGES + 2):
            message = chain.changed(1, epoch=epoch)
            await chain.call(chain.client, chain.second, "session.change", message)
        message = chain.changed(1, epoch=CHANGES + 2)
        refused = await chain.refusal(chain.client, chain.second, "session.change", message)
        assert refused == "bad-message"

    await chain.run(body)


@pytest.mark.trio
async def test_floods_of_replayed_spans_are_ignored(autojump_clock: object) -> None:
    chain = Chain()

    async def body() -> None:
        await chain.change()
        span = SpanMessage(SESSION, 2, 2, 0, 4, False, 0.0, chain.client.peer)
        for _ in range(100):  # the spare has asked for nothing
            rows = bytes(4 * 8)
            chain.second.courier.post(chain.spare.peer, "session.span", span.header(), rows)
        await trio.testing.wait_all_tasks_blocked()
        assert chain.spare.engine.spans == [] and chain.spare.stage.sessions == 1

    await chain.run(body)


@pytest.mark.trio
async def test_a_close_of_one_epoch_leaves_the_next_one(autojump_clock: object) -> None:
    chain = Chain()

    async def body() -> None:
        await chain.change()
        await chain.call(chain.client, chain.second, "session.close", Close(SESSION, 1))
        assert chain.second.stage.sessions == 1
        await chain.call(chain.client, chain.third, "session.close", Close(SESSION, 1))
        assert chain.third.stage.sessions == 0
        late = await chain.refusal(
            chain.client, chain.third, "session.open", chain.order(chain.third, 2)
        )
        assert late == "session-closed"
        again = replace(chain.order(chain.third, 2), epoch=3)
        await chain.call(chain.client, chain.third, "session.open", again)

    await chain.run(body)


@pytest.mark.trio
async def test_the_state_is_for_the_gateway_and_asked_at_a_limited_rate(
    autojump_clock: object,
) -> None:
    chain = Chain()

    async def body() -> None:
        ask = AskState(SESSION, 1, 1)
        found = await chain.call(chain.client, chain.second, "session.state", ask)
        assert found == {"waiting": 0, "others": 0}
        thief = await chain.refusal(chain.first, chain.second, "session.state", ask)
        assert thief == "unknown-session"
        for _ in range(WATCHES[0] - 1):
            await chain.call(chain.client, chain.second, "session.state", ask)
        assert await chain.refusal(chain.client, chain.second, "session.state", ask) == "busy"

    await chain.run(body)
