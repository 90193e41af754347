"""Which links a node keeps."""

import pytest
import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.world import World
from shoal.transport.defaults import TICK_S
from shoal.transport.errors import DialFailed
from shoal.transport.ladder import Rungs
from shoal.transport.limits import Limits
from shoal.transport.links import Links

ROOM = 5


async def _crowded(world: World) -> tuple[list[str], list[str]]:
    """A node with room for five; nine identities of one address come first, then two honest
    ones of two others: what became of each."""
    limits = Limits(links=ROOM)
    member = Climber(world.host("member"), b"m" * 32, limits=limits)
    await member.computer.start(member)
    home = world.gateway("crowd", "linux-drop")
    foes = [Climber(world.host(f"foe{n}", behind=home), bytes([n + 1]) * 32) for n in range(9)]
    others = [Climber(world.host(f"honest{n}"), bytes([n + 100]) * 32) for n in range(2)]

    async def come(node: Climber) -> str:
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


async def test_idle_links_are_looked_at_when_they_are_due(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at each step of `TICK_S`."""
    looks = 0
    tick = Links._tick

    def count(links: Links, now: float) -> float:
        nonlocal looks
        looks += 1
        return tick(links, now)

    monkeypatch.setattr(Links, "_tick", count)
    a = Climber(world.host("a"), b"a" * 32, rungs=Rungs(lan=False, mapping=False, relay=False))
    b = Climber(world.host("b"), b"b" * 32, rungs=Rungs(lan=False, mapping=False, relay=False))
    for node in (a, b):
        await node.computer.start(node)
    link = await a.connect(b.peer, [b.address()], timeout=5)
    await trio.sleep(10)
    looks = 0
    await trio.sleep(100)
    assert 80 <= looks <= 200 < 2 * 100 / TICK_S
    assert link.connected
