"""Questions about where others see a peer: replies, trust, and rate limits."""

from typing import Any

import pytest
import trio

from bench.worlds.town import Town
from bench.worlds.transportnode import TransportNode
from shoal.netsim.world import World
from shoal.transport import defaults
from shoal.transport.errors import CallRefused
from shoal.transport.link.calls import Call, Reply
from shoal.transport.rates import Rate, Rates
from shoal.transport.relay.vouch import Vouched
from shoal.transport.strategies.dialer import Strategies

QUIET = Strategies(lan=False, mapping=False, relay=False)


async def linked(world: World) -> tuple[TransportNode, TransportNode, TransportNode]:
    """Two nodes that are linked to a third one."""
    town = Town(world)
    a, b, c = [await town.node(world.host(name), strategies=QUIET) for name in "abc"]
    await town.introduce(a, [c])
    await town.introduce(b, [c])
    await trio.sleep(1)
    return a, b, c


async def where(asker: TransportNode, voucher: TransportNode, peer: Any) -> Any:
    link = asker.endpoint.link(voucher.peer)
    assert link is not None
    try:
        return (await asker.call(link, "reach.where", {"peer": peer})).header["seen"]
    except CallRefused as error:
        return error.code


async def test_a_peer_linked_to_both_says_where_it_sees_the_other(world: World) -> None:
    a, b, c = await linked(world)
    (ip,) = b.computer.addresses()
    assert (await where(a, c, b.peer))[0] == ip
    assert not a.dialer.knowledge.seen(b.peer).vouched
    await a.within(a.dialer.vouching.ask, b.peer)
    assert list(a.dialer.knowledge.seen(b.peer).vouched) == [ip]


async def test_a_peer_says_nothing_about_peers_it_is_not_linked_to(world: World) -> None:
    a, _, c = await linked(world)
    unknown = str(a.peer)[:-1] + "x"
    assert await where(a, c, unknown) == "not-linked"
    assert await where(a, c, 7) == "bad-request"
    assert await where(a, c, None) == "bad-request"


@pytest.mark.parametrize("bounded", [True, False])
async def test_questions_are_limited(world: World, bounded: bool) -> None:
    a, b, c = await linked(world)
    if not bounded:
        c.dialer.vouching.asked_by = Rates(Rate(1000, 1.0))
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
async def test_a_liar_cannot_name_addresses_of_other_networks(
    world: World, seen: Any, believed: bool
) -> None:
    a, b, c = await linked(world)
    asked: list[Any] = []

    def lie(call: Call) -> Reply:
        asked.append(call.header)
        return Reply({"seen": seen})

    c.endpoint.handle("reach.where", lie)
    await a.within(a.dialer.vouching.ask, b.peer)
    assert asked == [{"peer": b.peer}]
    assert bool(a.dialer.knowledge.seen(b.peer).vouched) is believed
    await a.within(a.dialer.vouching.ask, b.peer)
    assert len(asked) == 2 - believed, "a node that knows does not ask"


@pytest.mark.parametrize(("ip", "asks"), [("2600::7", True), ("11.0.0.77", False)])
async def test_an_address_of_a_version_that_is_missing_here_is_not_enough(
    world: World, ip: str, asks: bool
) -> None:
    """These nodes have only IPv4."""
    a, b, c = await linked(world)
    a.dialer.knowledge.vouch(b.peer, Vouched(ip), c.peer)
    await a.within(a.dialer.vouching.ask, b.peer)
    assert (b.computer.addresses()[0] in a.dialer.knowledge.seen(b.peer).vouched) is asks
