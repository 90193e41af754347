"""KV index over a DHT of simulated hosts: how many requests it sends."""

from random import Random
from typing import Any

import pytest
import trio

from bench.worlds.finder import Finder
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.link.link import Link

from .chains import LAYERS, chain, forked

HOME = LinkSpec(up=PipeSpec(0.02, 0.002, 2e6), down=PipeSpec(0.02, 0.002, 1e7))
NODES = 24
BLOCKS = 512


@pytest.mark.ci
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_512_blocks_need_one_look_up_and_three_round_trips(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve providers hold forks of one chain; the requests of the searching node are counted."""
    world, random = World(seed=seed), Random(seed)
    calls: list[tuple[Link, str]] = []
    call = Link.call

    async def counted(self: Link, method: str, *args: Any, **more: Any) -> Any:
        calls.append((self, method))
        return await call(self, method, *args, **more)

    async def main() -> None:
        finders: list[Finder] = []
        for number in range(NODES):
            computer = world.host(f"n{number}", link=HOME)
            bootstrap = [finders[0].address] if finders else []
            finder = Finder(computer, random.randbytes(32), bootstrap=bootstrap)
            await computer.start(finder)
            finders.append(finder)
        for finder in finders[1:]:
            await finder.joined()
        wanted = chain(BLOCKS)
        lengths = [random.randrange(1, BLOCKS) for _ in range(12)]
        for finder, length in zip(finders[2:], lengths, strict=False):
            finder.kv.announce(forked(wanted, length, 40, seed=length), LAYERS)
        await trio.sleep(30)
        asker = finders[-1]
        finds: list[Any] = []
        find = asker.dht.find

        async def found_once(*args: Any, **more: Any) -> Any:
            finds.append(args)
            return await find(*args, **more)

        monkeypatch.setattr(asker.dht, "find", found_once)
        monkeypatch.setattr(Link, "call", counted)
        began = trio.current_time()
        found = await asker.within(lambda: asker.kv.longest(wanted, LAYERS))
        took = trio.current_time() - began
        monkeypatch.undo()
        assert [one.chunks for one in found.providers] == sorted(lengths, reverse=True)
        assert len(finds) == 1
        trips: dict[str, int] = {}
        for link, method in calls:
            if method == "kv.have":
                trips[link.peer] = trips.get(link.peer, 0) + 1
        assert set(trips) == {one.peer for one in found.providers}
        assert max(trips.values()) <= 3 and found.rounds == max(trips.values())
        assert took < 3, "the round trips of some look-ups on home links"

    world.run(main)
