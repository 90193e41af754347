"""A long path with much traffic gets a UDP path beside TCP's, and uses it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bench.worlds.transportnode import TransportNode
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport import defaults
from shoal.transport.bytestream import PathKind
from shoal.transport.dial.longpaths import LongPaths
from shoal.transport.guard import Guard
from shoal.transport.link.calls import Reply
from shoal.transport.link.link import Link
from shoal.transport.link.path import best
from shoal.transport.strategies.dialer import Strategies

FAST = 25e6  # bytes per second
PAYLOAD = bytes(1 << 18)


def line(trip: float) -> LinkSpec:
    byte_stream = PipeSpec(delay=trip / 2 - 0.001, rate=FAST, queue=0.05)
    return LinkSpec(byte_stream, byte_stream)


async def linked(world: World, trip: float, **far: object) -> tuple[TransportNode, Link]:
    near, other = world.host("near", link=line(trip)), world.host("far")
    a = TransportNode(near, b"a" * 32, strategies=Strategies(lan=False, mapping=False, relay=False))
    strategies = Strategies(lan=False, mapping=False, relay=False, **far)  # type: ignore[arg-type]
    b = TransportNode(other, b"b" * 32, strategies=strategies)
    await other.start(b)
    await near.start(a)
    b.endpoint.handle("count", lambda call: Reply({"n": len(call.payload)}))
    return a, await a.connect(b.peer, [b.address()])


async def carry(
    a: TransportNode, link: Link, seconds: float, in_flight: int = 24, method: str = "echo"
) -> int:
    """Return how many calls of 256 KiB complete."""
    done = 0

    async def ask() -> None:
        nonlocal done
        while True:
            await a.call(link, method, payload=PAYLOAD)
            done += 1

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(ask)
    return done


def carrier(link: Link) -> str:
    return next(path.medium for path in link.status.paths if path.used)


@pytest.mark.ci
async def test_udp_carries_a_long_path_where_there_is_traffic(world: World) -> None:
    a, link = await linked(world, 0.2)
    await trio.sleep(5)
    assert carrier(link) == "tcp" and len(link.status.paths) == 1
    await carry(a, link, 4)
    assert carrier(link) == "udp" and len(link.status.paths) == 2
    assert (await a.call(link, header={"n": 1})).header == {"n": 1}
    await trio.sleep(60)
    assert (await a.call(link, header={"n": 2})).header == {"n": 2}


async def test_a_short_path_stays_with_tcp(world: World) -> None:
    a, link = await linked(world, 0.04)
    await carry(a, link, 3)
    assert [path.medium for path in link.status.paths] == ["tcp"]


async def test_without_udp_at_the_other_end_tcp_goes_on(world: World) -> None:
    a, link = await linked(world, 0.2, udp=False)
    assert await carry(a, link, 4) > 20
    assert [path.medium for path in link.status.paths] == ["tcp"]


async def test_a_port_that_does_not_answer_is_not_asked_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, link = await linked(world, 0.2)
    asked: list[float] = []

    async def nobody(place: object, timeout: float) -> None:
        asked.append(trio.current_time())
        raise OSError("no answer")

    assert a.dialer.udp is not None
    monkeypatch.setattr(a.dialer.udp, "dial", nobody)
    monkeypatch.setattr(defaults, "LONG_AGAIN_S", 5.0)
    assert await carry(a, link, 11, in_flight=4) > 20
    assert carrier(link) == "tcp"
    assert len(asked) == 2 and asked[1] - asked[0] >= 5


@pytest.mark.long
async def test_udp_is_faster_and_without_it_tcp_s_window_is_the_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, link = await linked(world, 0.3)
    await carry(a, link, 6, 48, "count")
    with_udp = await carry(a, link, 5, 48, "count")
    assert carrier(link) == "udp"
    monkeypatch.setattr(defaults, "LONG_S", 10.0)
    await trio.sleep(1)
    await carry(a, link, 3, 48, "count")
    assert carrier(link) == "tcp"
    without = await carry(a, link, 5, 48, "count")
    assert with_udp > 1.5 * without


def path(
    medium: str,
    trip: float | None,
    path_kind: PathKind = PathKind.DIRECT,
    *,
    doubtful: bool = False,
) -> object:
    connection = SimpleNamespace(
        least_rtt=trip,
        heard=0.0,
        is_doubtful=lambda now: doubtful,
        is_unanswered=lambda now: doubtful,
    )
    return SimpleNamespace(
        connection=connection,
        path_kind=path_kind,
        secured=SimpleNamespace(medium=medium),
        since=0.0,
        wanted=0.0,
    )


@pytest.mark.parametrize(
    ("paths", "chosen"),
    [
        ([path("tcp", 0.05), path("udp", 0.04)], 0),
        ([path("tcp", 0.2), path("udp", 0.19)], 1),
        ([path("tcp", 0.2), path("udp", None)], 1),
        ([path("tcp", None), path("udp", None)], 0),
        ([path("tcp", 0.2), path("udp", 0.05)], 0),
        ([path("tcp", 0.2), path("udp", 0.2, doubtful=True)], 0),
        ([path("tcp", 0.2), path("udp", 0.2, PathKind.RELAYED)], 0),
    ],
)
def test_which_path_is_best(paths: list[object], chosen: int) -> None:
    assert best(paths, 0.0, None) is paths[chosen]  # type: ignore[arg-type]


async def test_nothing_is_dialled_once_dialling_has_ended(world: World) -> None:
    """A node that stops sends what waits before it closes its links."""
    told: list[Callable[[Link], None]] = []
    endpoint: Any = SimpleNamespace(on_much_traffic=told.append, guard=Guard())
    host: Any = SimpleNamespace(now=trio.current_time)
    link: Any = SimpleNamespace(peer="a", udp_place=("192.0.2.1", 1))
    dialled = []

    async def dial(*place: object) -> None:
        dialled.append(place)

    dialling: Any = dial
    paths = LongPaths(host, endpoint, dialling)
    told[0](link)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paths.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    told[0](link)
    assert not dialled
