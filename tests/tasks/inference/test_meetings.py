"""A stage dials the neighbours that gateways name, at a bounded rate."""

from itertools import count
from typing import Any

import pytest
import trio

from shoal.tasks.defaults import DIALS, LINKS_AHEAD
from shoal.tasks.inference.messages import Change, Close, Open, SessionSampling
from shoal.transport.errors import CallRefused
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import ROOT, VOCABULARY, FakeSwarm, Node, peer_of


async def refusal(sender: Node, to: Node, method: str, message: Any) -> str:
    """Return the code with which a call is refused, or "" if it is not."""
    try:
        await sender.courier.call(to.peer, method, message.header(), timeout=5)
    except CallRefused as error:
        return error.code
    return ""


def order(swarm: FakeSwarm, number: int, second: PeerId) -> Open:
    """Return an order to the first stage, whose next stage is `second`."""
    first = swarm.stages[0]
    assert first.parts is not None
    return Open(
        session=number.to_bytes(16),
        epoch=1,
        root=ROOT,
        parts=first.parts,
        dtype="float32",
        stages=(first.peer, second),
        index=0,
        tokens=50,
        soon=50,
        steps=5,
        stop_ids=(VOCABULARY - 1,),
        sampling=SessionSampling(),
    )


@pytest.mark.trio
async def test_a_gateway_cannot_make_a_stage_dial_without_end(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))
    other = Node(swarm, 90, None)
    first, burst = swarm.stages[0], int(DIALS[0])
    swarm.meets = True

    async def body(_: FakeSwarm) -> None:
        # These peers do not answer, so each order makes the stage dial one.
        first.courier.connect = swarm_of_dead
        for number in range(burst):
            found = await refusal(
                swarm.client, first, "session.open", order(swarm, number, dead(number))
            )
            assert found == "unreachable"
        again = order(swarm, burst, dead(burst))
        assert await refusal(swarm.client, first, "session.open", again) == "busy"
        assert len(dialled) == burst
        # Others may, and so may this one for peers that are linked, and later.
        assert await refusal(other, first, "session.open", again) == "unreachable"
        near = order(swarm, 7, swarm.stages[1].peer)
        assert await refusal(swarm.client, first, "session.open", near) == ""
        change = Change(near.session, 2, 0, 0, (first.peer, dead(200)), 1)
        assert await refusal(swarm.client, first, "session.change", change) == "busy"
        await trio.sleep(2 / DIALS[1])
        assert await refusal(swarm.client, first, "session.change", change) == "unreachable"
        assert await refusal(swarm.client, first, "session.close", Close(near.session)) == ""

    dialled = list[str]()

    async def swarm_of_dead(peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()
        dialled.append(peer)

    def dead(number: int) -> PeerId:
        return peer_of(100 + number % 90) if number < 90 else peer_of(250)

    await swarm.run(body)


@pytest.mark.trio
async def test_the_own_gateway_dials_as_it_likes(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4), client_serves=True)
    first = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        for number in range(2 * int(DIALS[0])):
            message = order(swarm, number, peer_of(100 + number))
            assert await refusal(first, first, "session.open", message) == "unreachable"

    await swarm.run(body)


@pytest.mark.trio
async def test_links_between_neighbours_are_needed(autojump_clock: object) -> None:
    """Members that only know each other may stay relayed, but not neighbours in a chain."""
    swarm = FakeSwarm((2, 4))
    first, second = swarm.stages

    async def body(_: FakeSwarm) -> None:
        near = order(swarm, 1, second.peer)
        assert await refusal(swarm.client, first, "session.open", near) == ""
        assert first.endpoint.needed == {second.peer}

    await swarm.run(body)


@pytest.mark.trio
async def test_a_gateway_cannot_make_a_stage_search_without_end(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))
    members = [Node(swarm, 20 + number, None) for number in range(int(DIALS[0]) + 1)]
    first, sessions = swarm.stages[0], count(1)

    async def open_to(member: Node) -> None:
        near = order(swarm, next(sessions), member.peer)
        assert await refusal(swarm.client, first, "session.open", near) == ""
        assert await refusal(swarm.client, first, "session.close", Close(near.session)) == ""

    async def body(_: FakeSwarm) -> None:
        for member in members:
            await open_to(member)
        assert first.endpoint.needed == {each.peer for each in members[:-1]}
        await open_to(members[0])  # that link is needed already, so it costs nothing
        await trio.sleep(2 / DIALS[1])
        await open_to(members[-1])
        assert members[-1].peer in first.endpoint.needed

    await swarm.run(body)


@pytest.mark.trio
async def test_few_links_are_searched_before_a_chain_needs_them(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))
    first, most = swarm.stages[0], int(LINKS_AHEAD[0])
    members = [Node(swarm, 20 + number, None).peer for number in range(most + 2)]

    async def body(_: FakeSwarm) -> None:
        for _look in range(3):
            first.stage.expect(members)
        assert len(first.endpoint.needed) == most
        await trio.sleep(1 / LINKS_AHEAD[1])
        first.stage.expect(members)
        assert len(first.endpoint.needed) == most + 1
        first.stage.expect([peer_of(200), first.peer])  # unlinked, and itself

    await swarm.run(body)
