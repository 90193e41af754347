"""The owner's caps on real links: in the simulator and on loopback, per node and per class."""

from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
import trio.testing

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Priority
from shoal.transport.lane.lane import Lane
from shoal.transport.lane.meter import PathMeter
from shoal.transport.lane.shaper import Cap, Caps, Flow, Shaper, TrafficDirection
from shoal.transport.limits import Limits
from shoal.transport.link.calls import Reply
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from tests.transport.fleet import LOOPBACK, make_node, running
from tests.transport.lane_pair import windows

UP, DOWN = TrafficDirection
PORT = 7000
CAP = 250e3  # bytes per second
LINE = LinkSpec(PipeSpec(delay=0.01, rate=12.5e6, queue=0.1), PipeSpec(delay=0.01, rate=12.5e6))
SETTLE_S, MEASURE_S = 2.0, 10.0


# The account itself.


def make_lane() -> Lane:
    return Lane(dialled=True, limits=Limits(), remote=windows(Limits()), now=0.0)


def queue(lane: Lane, priority: Priority, size: int) -> None:
    lane.post("x", {}, bytes(size), priority)


class Watched(Shaper):
    """Records what was spent."""

    def __init__(self, caps: Caps) -> None:
        super().__init__(caps, 0.0)
        self.spent = dict.fromkeys(Flow, 0)

    def spend(self, direction: TrafficDirection, flow: Flow, size: int, now: float) -> None:
        self.spent[flow] += size
        super().spend(direction, flow, size, now)


def test_a_class_without_budget_is_skipped() -> None:
    shaper = Shaper(Caps(up=Cap(bulk=10e3)), 0.0)
    meter, lane = PathMeter(shaper), make_lane()
    connection = lane.attach(0.0)
    shaper.spend(UP, Flow.BULK, 10**6, 0.0)
    queue(lane, Priority.BULK, 50_000)
    lane.take(connection, 1 << 16, 0.0, meter.allow(1 << 16, 0.0))  # the first ping
    assert lane.take(connection, 1 << 16, 0.0, meter.allow(1 << 16, 0.0)) == b""
    assert meter.again_at > 90
    queue(lane, Priority.CONTROL, 100)
    assert 100 < len(lane.take(connection, 1 << 16, 0.0, meter.allow(1 << 16, 0.0))) < 300
    assert len(lane.take(connection, 1 << 16, 0.0)) > 50_000  # the twin


def test_bulk_is_split_to_what_may_leave() -> None:
    shaper = Shaper(Caps(up=Cap(node=100e3)), 0.0)
    meter, lane = PathMeter(shaper), make_lane()
    connection = lane.attach(0.0)
    queue(lane, Priority.BULK, 50_000)
    taken = lane.take(connection, 1 << 16, 0.0, meter.allow(1 << 16, 0.0))
    assert 2000 < len(taken) < 4000


def test_all_encrypted_bytes_are_charged_including_handshakes() -> None:
    shaper = Watched(Caps(up=Cap(node=100e3)))
    meter, lane = PathMeter(shaper), make_lane()
    connection = lane.attach(0.0)
    queue(lane, Priority.BULK, 3000)
    size = len(lane.take(connection, 1 << 16, 0.0, meter.allow(1 << 16, 0.0)))
    meter.sent(4000 + size)
    assert sum(shaper.spent.values()) == pytest.approx(4000 + size, abs=2)
    assert shaper.spent[Flow.BULK] > 0.9 * sum(shaper.spent.values())


def test_bytes_before_a_cap_are_not_owed() -> None:
    shaper = Shaper(Caps(), 0.0)
    meter, lane = PathMeter(shaper), make_lane()
    connection = lane.attach(0.0)
    assert meter.allow(1 << 16, 0.0) is None
    meter.sent(10**9)
    assert meter.read(connection, 10**9, 0.0) == []
    shaper.change(Caps(up=Cap(node=100e3), down=Cap(node=100e3)), 0.0)
    meter.sent(10**9 + 100)
    meter.read(connection, 10**9 + 100, 0.0)
    assert shaper.room(UP, Flow.BULK, "x", 0.0, 1000) and shaper.room(
        DOWN, Flow.BULK, "x", 0.0, 1000
    )


def test_received_bytes_are_charged_to_their_class_in_pieces() -> None:
    shaper = Watched(Caps(down=Cap(node=1e6)))
    meter, sender, reader = PathMeter(shaper), make_lane(), make_lane()
    out, into = sender.attach(0.0), reader.attach(0.0)
    meter.read(into, 0, 0.0)
    queue(sender, Priority.CONTROL, 1000)
    queue(sender, Priority.BULK, 60_000)
    wire, total = sender.take(out, 1 << 20, 0.0), 0
    flows: set[Flow] = set()
    for at in range(0, len(wire), 4096):
        piece = wire[at : at + 4096]
        total += len(piece)
        reader.receive(into, piece, 0.0)
        flows |= set(meter.read(into, total, 0.0))
    assert flows == {Flow.CONTROL, Flow.BULK}
    spent = shaper.spent
    assert sum(spent.values()) == pytest.approx(len(wire), abs=20)
    assert spent[Flow.BULK] == pytest.approx(60_040, abs=40)


# Links.


class Node:
    """An endpoint as the program of a simulated host."""

    def __init__(self, seed: int, caps: Caps | None = None) -> None:
        self.seed, self.caps = seed, caps
        self.got = 0
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None
        return self._endpoint

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            real = SimulatedHost(host, PROFILES["desktop"], nursery)
            self._endpoint = made = Endpoint(
                real,
                Identity.from_seed(bytes([self.seed]) * 32),
                admission=OpenSwarm(),
                shaper=Shaper(self.caps, real.now()) if self.caps else None,
            )
            made.handle("echo", lambda call: Reply(payload=call.payload))
            made.handle_stream("sink", self._sink)
            made.handle_stream("source", _source)
            await nursery.start(made.run, host.addresses()[0], PORT)
            task_status.started()

    async def _sink(self, incoming: IncomingStream) -> None:
        await _drain(incoming)


async def _drain(incoming: IncomingStream) -> None:
    while await incoming.stream.receive(1 << 18):
        pass


async def _source(incoming: IncomingStream) -> None:
    while True:
        await incoming.stream.send(bytes(1 << 15))


async def _fill(link: Link, priority: Priority) -> None:
    stream = await link.open_stream("sink", priority=priority)
    while True:
        await stream.send(bytes(1 << 15))


async def _fetch(link: Link, priority: Priority) -> None:
    stream = await link.open_stream("source", priority=priority)
    while await stream.receive(1 << 18):
        pass


Work = Callable[[Link, Priority], Awaitable[None]]


async def measured(
    world: World,
    caps: Caps | None,
    work: Work,
    count: Callable[[Link], int],
    *,
    links: int = 1,
    priorities: tuple[Priority, ...] = (Priority.BULK,),
) -> tuple[list[float], list[float]]:
    """Return each link's bytes per second over 10 s, and the durations of calls on the first."""
    hosts = [world.host(f"h{index}", link=LINE) for index in range(links + 1)]
    nodes = [Node(1, caps), *(Node(index + 2) for index in range(links))]
    for host, node in zip(hosts, nodes, strict=True):
        await host.start(node)
    took: list[float] = []
    async with trio.open_nursery() as nursery:
        found: list[Link] = []
        for host in hosts[1:]:
            address = Address(host.addresses()[0], PORT)
            dial = hosts[0].run(lambda: nodes[0].endpoint.dial(address, timeout=30))  # noqa: B023
            found.append(await dial)
        for link, priority in ((link, each) for link in found for each in priorities):
            hosts[0].start_soon(nursery, work, link, priority)
        await trio.sleep(SETTLE_S)
        before, began = [count(link) for link in found], trio.current_time()
        while trio.current_time() < began + MEASURE_S:
            asked = trio.current_time()
            await found[0].call("echo", payload=bytes(100), timeout=30)
            took.append(trio.current_time() - asked)
            await trio.sleep(0.1)
        span = trio.current_time() - began
        rates = [(count(link) - had) / span for link, had in zip(found, before, strict=True)]
        nursery.cancel_scope.cancel()
    return rates, sorted(took)


def sent(link: Link) -> int:
    return link.status.bytes_out


def came(link: Link) -> int:
    return link.status.bytes_in


@pytest.mark.parametrize("links", [1, 3])
async def test_a_cap_up_holds_over_ten_seconds(world: World, links: int) -> None:
    rates, took = await measured(world, Caps(up=Cap(node=CAP)), _fill, sent, links=links)
    assert sum(rates) == pytest.approx(CAP, rel=0.05)
    assert min(rates) > 0.5 * CAP / links
    assert took[-2] < 0.1  # a call does not wait for bulk


@pytest.mark.parametrize("links", [1, 3])
async def test_a_cap_down_holds_over_ten_seconds(world: World, links: int) -> None:
    rates, took = await measured(world, Caps(down=Cap(node=CAP)), _fetch, came, links=links)
    assert sum(rates) == pytest.approx(CAP, rel=0.05)
    assert min(rates) > 0.5 * CAP / links
    assert took[-2] < 0.3  # it comes behind what is under way on the same path


async def test_without_a_cap_there_is_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin of both tests above."""
    monkeypatch.setattr("tests.transport.lane.test_meter.MEASURE_S", 2.0)
    rates, _ = await measured(world, None, _fill, sent)
    assert rates[0] > 10 * CAP


@pytest.mark.parametrize("work", [_fill, _fetch])
async def test_a_class_has_a_cap_of_its_own(world: World, work: Work) -> None:
    cap = Cap(node=CAP, bulk=CAP / 5)
    caps, count = (Caps(up=cap), sent) if work is _fill else (Caps(down=cap), came)
    rates, took = await measured(world, caps, work, count)
    assert rates[0] == pytest.approx(CAP / 5, rel=0.06)  # calls too, 2 kB/s
    assert took[-2] < (0.1 if work is _fill else 0.3)


async def test_an_unused_share_is_lent(world: World) -> None:
    cap = Caps(up=Cap(node=CAP, bulk=CAP / 5))
    both = (Priority.ACTIVATION, Priority.BULK)
    rates, _ = await measured(world, cap, _fill, sent, priorities=both)
    assert rates[0] == pytest.approx(CAP, rel=0.05)


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield trio.testing.MockClock(autojump_threshold=0.002)


@pytest.mark.long
@pytest.mark.trio
@pytest.mark.parametrize("up", [True, False])
async def test_caps_hold_on_sockets_of_the_operating_system(
    virtual_time: object, *, up: bool
) -> None:
    cap = Cap(node=CAP)
    shaper = Shaper(Caps(up=cap) if up else Caps(down=cap), 0.0)
    a, b = make_node(1, shaper=shaper), make_node(2)
    b.endpoint.handle_stream("sink", _drain)
    b.endpoint.handle_stream("source", _source)
    async with running(a, b) as nursery:
        shaper.change(shaper.caps, RealHost().now())
        link = await a.endpoint.dial(Address(LOOPBACK, b.endpoint.port), timeout=5)
        nursery.start_soon(_fill if up else _fetch, link, Priority.BULK)
        count = sent if up else came
        await trio.sleep(SETTLE_S)
        before, began = count(link), trio.current_time()
        await trio.sleep(MEASURE_S)
        rate = (count(link) - before) / (trio.current_time() - began)
        assert rate == pytest.approx(CAP, rel=0.05)
