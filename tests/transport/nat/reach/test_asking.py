"""The asker of dial-backs, and peers with arbitrary replies."""

from typing import Any

import pytest
import trio

from shoal.netsim.world import World
from shoal.transport.link.calls import Call, Reply
from shoal.transport.nat.reach.reachability import DialBackResult
from tests.transport.nat.reach.swarm import PORT, Node, measured, on_the_internet


class Odd(Node):
    """Answers `reach.observe` and `reach.dialback` with prepared replies."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.offer: dict[str, Any] = {"udp": [PORT], "dialback": True}
        self.reply: dict[str, Any] = {}
        self.paid = 0

    async def run(self, nursery: trio.Nursery, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as inner:
            await inner.start(super().run, nursery)
            self.endpoint.handle("reach.observe", lambda _: Reply(self.offer))
            self.endpoint.handle("reach.dialback", self._on_dialback)
            task_status.started()

    def _on_dialback(self, call: Call) -> Reply:
        self.paid = max(self.paid, len(call.payload))
        return Reply(self.reply)


@pytest.mark.parametrize(
    "offer",
    [
        {},
        {"udp": "4001", "dialback": 1},
        {"udp": [0, 70000], "dialback": None},
        {"udp": [True], "dialback": "yes"},
        {"udp": list(range(1, 10000))},
        {"udp": [[4001]]},
        {"udp": {4001: 4002}},
    ],
)
async def test_malformed_offers_offer_nothing(world: World, offer: dict[str, Any]) -> None:
    node, odd = Node(world.host("node"), 1), Odd(world.host("odd"), 2)
    odd.offer = offer
    found = await measured(world, node, [odd])
    assert (found.udp.asked, found.dialled[0].answer) == (0, DialBackResult.UNKNOWN)


@pytest.mark.parametrize(
    ("reply", "most"),
    [
        ({"pay": 10**10}, 0),
        ({"pay": -1}, 0),
        ({"pay": "all"}, 0),
        ({"pay": True}, 0),
        ({"pay": 100_000}, 100_000),
        ({"sent": 1}, 0),
        ({}, 0),
    ],
)
async def test_invalid_prices_are_not_paid(world: World, reply: dict[str, Any], most: int) -> None:
    node, odd = Node(world.host("node"), 1), Odd(world.host("odd"), 2)
    odd.reply = reply
    found = await measured(world, node, [odd])
    assert odd.paid == most
    assert {item.answer for item in found.dialled} == {DialBackResult.UNKNOWN}


async def test_false_claims_of_dial_backs_do_not_outvote_real_ones(world: World) -> None:
    """An arrived dial-back is proof."""
    node = Node(world.host("node"), 1)
    odd = Odd(world.host("odd"), 2)
    odd.reply = {"sent": True}
    found = await measured(world, node, [odd, *on_the_internet(world, 2)])
    assert found.public is True
