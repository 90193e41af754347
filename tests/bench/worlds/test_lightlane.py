"""Messages arrive whole and once, over lossy and narrow links."""

from collections.abc import Iterable
from math import inf
from typing import Any

import pytest

from bench.worlds import lightlane
from bench.worlds.lightlane import SILENT_S, LightLane
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.packet import Addr
from shoal.netsim.world import World


class Core:
    def __init__(self) -> None:
        self.lane = LightLane(lambda message, source: self.came.append(message), self.silent)
        self.came: list[Any] = []
        self.lost: list[Addr] = []
        self.wake_at = inf

    def silent(self, address: Addr) -> None:
        self.lost.append(address)

    def on_datagram(self, now: float, data: Any, source: Addr) -> Iterable[tuple[bytes, Addr]]:
        self.lane.take(now, data.message, source)
        return self.flush()

    def on_time(self, now: float) -> Iterable[tuple[bytes, Addr]]:
        self.lane.tick(now)
        return self.flush()

    def flush(self) -> list[tuple[bytes, Addr]]:
        self.wake_at = self.lane.due()
        out, self.lane.out = self.lane.out, []
        return out


def run(spec: PipeSpec, sizes: list[int], seconds: float) -> tuple[Core, Core]:
    world = World(3, latency=0.02)
    one, two = Core(), Core()
    hosts = [
        world.light(name, core, link=LinkSpec(spec, spec))
        for name, core in (("a", one), ("b", two))
    ]
    for number, size in enumerate(sizes):
        one.lane.send(world.events.now, hosts[1].address, size, number)
    for data, to in one.flush():
        hosts[0].send(data, to)
    hosts[0].arm()
    world.advance(seconds)
    return one, two


def test_messages_arrive_whole_and_once_however_many_are_lost() -> None:
    one, two = run(PipeSpec(loss=0.2, delay=0.02), [100, 50_000, 3, 8_000], 60.0)
    assert sorted(two.came) == [0, 1, 2, 3]
    assert one.lane.sent == 58_103
    assert one.lost == []


def test_a_part_that_others_passed_is_sent_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twin: if only the time shows what is lost, it takes longer."""
    lossy = PipeSpec(loss=0.01, delay=0.1)
    assert run(lossy, [200_000], 2.5)[1].came == [0]
    monkeypatch.setattr(lightlane, "PASSED", 10**9)
    assert run(lossy, [200_000], 2.5)[1].came == []


def test_a_narrow_link_takes_its_time_and_no_more() -> None:
    """A megabyte over 1 MB/s, with a queue that overflows at first."""
    _, two = run(PipeSpec(rate=1e6, queue=0.1, delay=0.02), [1_000_000], 0.9)
    assert two.came == []
    _, two = run(PipeSpec(rate=1e6, queue=0.1, delay=0.02), [1_000_000], 3.0)
    assert two.came == [0]


def test_a_peer_that_never_replies_counts_as_dead() -> None:
    one, two = run(PipeSpec(loss=1.0), [100], 2 * SILENT_S)
    assert two.came == []
    assert len(one.lost) == 1
    assert one.lane.due() == inf
