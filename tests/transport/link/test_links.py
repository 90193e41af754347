"""Links of a node: which ones it keeps when it is full, and when they are brief or busy."""

import pytest
import trio

from bench.worlds.transportnode import TransportNode
from shoal.netsim.world import World
from shoal.transport.defaults import TICK_S
from shoal.transport.errors import DialFailed
from shoal.transport.limits import Limits
from shoal.transport.link.links import Links
from shoal.transport.strategies.dialer import Strategies
from tests.transport.fleet import make_node

ROOM = 5


async def _crowded(world: World) -> tuple[list[str], list[str]]:
    """Return the outcomes of nine identities at one address, and then of two honest ones at two
    others, at a node with room for five links."""
    limits = Limits(links=ROOM)
    member = TransportNode(world.host("member"), b"m" * 32, limits=limits)
    await member.computer.start(member)
    home = world.gateway("crowd", "linux-drop")
    foes = [
        TransportNode(world.host(f"foe{n}", behind=home), bytes([n + 1]) * 32) for n in range(9)
    ]
    others = [TransportNode(world.host(f"honest{n}"), bytes([n + 100]) * 32) for n in range(2)]

    async def come(node: TransportNode) -> str:
        await node.computer.start(node)
        try:
            await node.connect(member.peer, [member.address()], timeout=5)
        except DialFailed as error:
            return error.code
        return "in"

    found = [await come(each) for each in foes], [await come(each) for each in others]
    there = {link.peer for link in member.endpoint.links()}
    assert len(there) <= ROOM
    assert [each.peer in there for each in others] == [code == "in" for code in found[1]]
    return found


async def test_one_address_does_not_keep_others_out(world: World) -> None:
    foes, others = await _crowded(world)
    assert foes == ["in"] * ROOM + ["full"] * (9 - ROOM)
    assert others == ["in"] * 2


async def test_without_that_it_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Links, "_make_room", lambda *_: False)
    _, others = await _crowded(world)
    assert others == ["full"] * 2


async def _flooded(world: World) -> list[str]:
    """Return the outcomes of two newcomers, over IPv4 and IPv6, at a node with room for 12 links.

    Before them 14 identities connect from one home, each from its own /64.
    """
    member = TransportNode(world.host("member", ipv6=True), b"m" * 32, limits=Limits(links=12))
    await member.computer.start(member)
    homes = [f"2600:99:1:1{n:02x}::1" for n in range(14)]
    places = [*homes, "198.51.100.7", "2600:77:1:2::1"]
    found = []
    for n, place in enumerate(places):
        node = TransportNode(world.host(f"node{n}", address=place, ipv6=False), bytes([n + 1]) * 32)
        await node.computer.start(node)
        try:
            addresses = [member.address(ip) for ip in member.computer.addresses()]
            await node.connect(member.peer, addresses, timeout=5)
        except DialFailed as error:
            found.append(error.code)
        else:
            found.append("in")
    assert found[:14] == ["in"] * 12 + ["full"] * 2
    return found[14:]


async def test_one_home_does_not_keep_others_out_by_ipv6(world: World) -> None:
    assert await _flooded(world) == ["in", "in"]


@pytest.mark.usefixtures("by_64_bits_alone")
async def test_where_64_bits_alone_are_counted_it_does(world: World) -> None:
    assert await _flooded(world) == ["full", "full"]


@pytest.mark.trio
async def test_a_link_for_a_few_questions_is_brief_until_it_is_kept() -> None:
    """Either side may keep it: the one that dialled briefly, and the one that was dialled."""
    one, other = make_node(1), make_node(2)
    kept: dict[str, list[object]] = {"one": [], "other": []}
    one.endpoint.on_link_lasting(kept["one"].append)
    other.endpoint.on_link_lasting(kept["other"].append)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        await nursery.start(other.run)
        peer = other.endpoint.peer
        link = await one.endpoint.ask(peer, [other.address], timeout=5)
        assert link.brief
        before = link.turns
        await link.call("echo", timeout=5)
        assert link.turns > before and not link.busy
        assert await one.endpoint.ask(peer, [other.address], timeout=5) is link
        assert link.brief and kept == {"one": [], "other": []}
        assert await one.endpoint.dial(other.address, timeout=5) is link
        assert not link.brief and kept["one"] == [link]
        accepted = other.endpoint.link(one.endpoint.peer)
        assert accepted is not None and not accepted.brief
        await other.endpoint.dial(one.address, timeout=5)
        await other.endpoint.dial(one.address, timeout=5)
        assert kept["other"] == [accepted]
        one.scope.cancel()
        other.scope.cancel()


@pytest.mark.trio
async def test_a_link_with_a_call_under_way_is_busy() -> None:
    one, other = make_node(1), make_node(2)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        await nursery.start(other.run)
        link = await one.endpoint.ask(other.endpoint.peer, [other.address], timeout=5)
        accepted = other.endpoint.link(one.endpoint.peer)
        assert accepted is not None
        async with trio.open_nursery() as calls:
            calls.start_soon(lambda: link.call("slow", timeout=5))
            with trio.fail_after(5):
                while not accepted.busy:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            assert link.busy
        with trio.fail_after(5):
            while link.busy or accepted.busy:  # noqa: ASYNC110
                await trio.sleep(0.001)
        one.scope.cancel()
        other.scope.cancel()


@pytest.mark.trio
async def test_asking_a_peer_without_addresses_fails() -> None:
    one, other = make_node(1), make_node(2)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        with pytest.raises(DialFailed, match="no address"):
            await one.endpoint.ask(other.endpoint.peer, [], timeout=5)
        one.scope.cancel()


async def test_idle_links_are_ticked_when_they_are_due(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The side that dialled ticks for each ping. A ping or pong puts off all other ticks."""
    looks = 0
    tick = Links._tick

    def count(links: Links, now: float) -> float:
        nonlocal looks
        looks += 1
        return tick(links, now)

    monkeypatch.setattr(Links, "_tick", count)
    a = TransportNode(
        world.host("a"), b"a" * 32, strategies=Strategies(lan=False, mapping=False, relay=False)
    )
    b = TransportNode(
        world.host("b"), b"b" * 32, strategies=Strategies(lan=False, mapping=False, relay=False)
    )
    for node in (a, b):
        await node.computer.start(node)
    link = await a.connect(b.peer, [b.address()], timeout=5)
    await trio.sleep(10)
    looks = 0
    await trio.sleep(100)
    assert 30 <= looks <= 45 < 2 * 100 / TICK_S, looks
    assert link.connected
