"""Tests of relayed traffic: it is a class of its own under the node's caps, and is charged once."""

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from shoal.transport.lane.shaper import Cap, Caps, Flow, Shaper, TrafficDirection
from shoal.transport.relay.book import Asker, RelayBook
from shoal.transport.relay.defaults import RelayLimits
from tests.transport.pipes import receive, write
from tests.transport.relay.circuits import FAST, relayed

CAP = 200e3
LENT = RelayLimits(volunteer=True, rate=1 << 30)


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield trio.testing.MockClock(autojump_threshold=0.002)


def carried(caps: Caps, seconds: float) -> int:
    """Bytes a circuit carries that takes all it is given."""
    book = RelayBook(LENT, 0.0, Shaper(caps, 0.0))
    book.reserve(Asker("b", "192.0.2.1", 0.0), 0.0)
    circuit = book.open_circuit(Asker("a", "192.0.2.2", 0.0), "b", 0.0)
    assert not isinstance(circuit, str)
    now = 0.0
    while now < seconds:
        if room := min(circuit.room(now), 1 << 14):
            assert circuit.spend(room, now)
        else:
            assert circuit.pause() > 0
            now += circuit.pause()
    return circuit.carried


@pytest.mark.parametrize(
    "caps",
    [
        Caps(up=Cap(node=CAP)),
        Caps(down=Cap(node=CAP)),
        Caps(up=Cap(relay=CAP)),
        Caps(up=Cap(node=4 * CAP), down=Cap(node=2 * CAP, relay=CAP)),
    ],
)
def test_a_circuit_keeps_to_the_node_s_caps(caps: Caps) -> None:
    assert carried(caps, 10.0) == pytest.approx(10 * CAP, rel=0.05)


def test_without_caps_it_does_not() -> None:
    assert carried(Caps(), 0.01) > 10 * CAP


def test_calls_of_the_node_s_own_come_first() -> None:
    shaper = Shaper(Caps(up=Cap(node=CAP)), 0.0)
    book = RelayBook(LENT, 0.0, shaper)
    book.reserve(Asker("b", "192.0.2.1", 0.0), 0.0)
    circuit = book.open_circuit(Asker("a", "192.0.2.2", 0.0), "b", 0.0)
    assert not isinstance(circuit, str)
    for step in range(10_000):
        now = step / 1000
        own = shaper.room(TrafficDirection.UP, Flow.CONTROL, "own", now, 1 << 14)
        shaper.spend(TrafficDirection.UP, Flow.CONTROL, own, now)
        if not own:
            shaper.next_at(TrafficDirection.UP, Flow.CONTROL, "own", now)
        circuit.spend(circuit.room(now), now)
    assert circuit.carried == pytest.approx(10 * 0.05 * CAP, rel=0.2)


@pytest.mark.trio
async def test_each_byte_is_charged_once_each_way(
    virtual_time: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: dict[tuple[TrafficDirection, Flow], int] = {}

    class Watched(Shaper):
        def spend(self, direction: TrafficDirection, flow: Flow, size: int, now: float) -> None:
            spent[direction, flow] = spent.get((direction, flow), 0) + size
            super().spend(direction, flow, size, now)

    shaper = Watched(Caps(up=Cap(node=1e9), down=Cap(node=1e9)), 0.0)
    async with relayed(FAST, shaper=shaper) as three:
        near, far = await three.dial()
        spent.clear()
        before = [three.link(each).status for each in (three.a, three.b)]
        size = 600_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, near, bytes(size))
            got = 0
            while got < size:
                got += len(await receive(far))
        after = [three.link(each).status for each in (three.a, three.b)]
        for direction, count in (
            (TrafficDirection.UP, [status.bytes_out for status in (*before, *after)]),
            (TrafficDirection.DOWN, [status.bytes_in for status in (*before, *after)]),
        ):
            passed = sum(count[2:]) - sum(count[:2])
            charged = sum(cost for (way, _), cost in spent.items() if way is direction)
            assert charged == pytest.approx(passed, rel=0.03)
            assert spent[direction, Flow.RELAY] == pytest.approx(size, rel=0.01)
