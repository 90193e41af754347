"""Where others see a peer: who is told, who is believed, how often."""

from typing import Any

import pytest
import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.daemons.town import Town
from shoal.netsim.world import World
from shoal.transport import defaults
from shoal.transport.calls import Call, Reply
from shoal.transport.errors import CallRefused
from shoal.transport.ladder import Rungs
from shoal.transport.rates import Rate, Rates
from shoal.transport.relay.vouch import Vouched

QUIET = Rungs(lan=False, mapping=False, relay=False)


async def linked(world: World) -> tuple[Climber, Climber, Climber]:
    """Two nodes that are linked to a third."""
    town = Town(world)
    a, b, c = [await town.node(world.host(name), rungs=QUIET) for name in "abc"]
    await town.introduce(a, [c])
    await town.introduce(b, [c])
    await trio.sleep(1)
    return a, b, c


async def where(asker: Climber, voucher: Climber, peer: Any) -> Any:
    link = asker.endpoint.link(voucher.peer)
    assert link is not None
    try:
        return (await asker.call(link, "reach.where", {"peer": peer})).header["seen"]
    except CallRefused as error:
        return error.code


async def test_who_is_linked_to_both_says_where_it_sees_the_other(world: World) -> None:
    a, b, c = await linked(world)
    (ip,) = b.computer.addresses()
    assert (await where(a, c, b.peer))[0] == ip
    assert not a.ladder.knowledge.seen(b.peer).vouched
    await a.within(a.ladder.vouching.ask, b.peer)
    assert list(a.ladder.knowledge.seen(b.peer).vouched) == [ip]


async def test_of_others_it_says_nothing(world: World) -> None:
    a, _, c = await linked(world)
    unknown = str(a.peer)[:-1] + "x"
    assert await where(a, c, unknown) == "not-linked"
    assert await where(a, c, 7) == "bad-request"
    assert await where(a, c, None) == "bad-request"


@pytest.mark.parametrize("bounded", [True, False])
async def test_nobody_asks_for_ever(world: World, bounded: bool) -> None:
    a, b, c = await linked(world)
    if not bounded:
        c.ladder.vouching._asked_by = Rates(Rate(1000, 1.0))
    found = [await where(a, c, b.peer) for _ in range(defaults.WHERE[0] + 4)]
    assert ("too-often" in found) is bounded
    assert "too-often" not in found[: defaults.WHERE[0]]


@pytest.mark.parametrize(
    ("seen", "believed"),
    [
        (["11.0.0.9", 4001, 0, ""], True),
        (["192.168.1.1", 4001, 0, ""], False),
        (["127.0.0.1", 4001, 0, ""], False),
        (["169.254.169.254", 80, 0, ""], False),
        ("11.0.0.9", False),
        (None, False),
    ],
)
async def test_a_liar_names_no_address_of_a_network_that_it_is_not_in(
    world: World, seen: Any, believed: bool
) -> None:
    a, b, c = await linked(world)
    asked: list[Any] = []

    def lie(call: Call) -> Reply:
        asked.append(call.header)
        return Reply({"seen": seen})

    c.endpoint.handle("reach.where", lie)
    await a.within(a.ladder.vouching.ask, b.peer)
    assert asked == [{"peer": b.peer}]
    assert bool(a.ladder.knowledge.seen(b.peer).vouched) is believed
    await a.within(a.ladder.vouching.ask, b.peer)
    assert len(asked) == 2 - believed, "who knows does not ask"


@pytest.mark.parametrize(("ip", "asks"), [("2600::7", True), ("11.0.0.77", False)])
async def test_an_address_of_a_version_that_is_missing_here_is_not_enough(
    world: World, ip: str, asks: bool
) -> None:
    """These nodes have IPv4 alone."""
    a, b, c = await linked(world)
    a.ladder.knowledge.vouch(b.peer, Vouched(ip), c.peer)
    await a.within(a.ladder.vouching.ask, b.peer)
    assert (b.computer.addresses()[0] in a.ladder.knowledge.seen(b.peer).vouched) is asks
