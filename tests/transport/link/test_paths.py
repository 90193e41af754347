"""A link over several paths: the choice among them, failover, and no lost frames."""

import random
from collections import deque
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from shoal.transport.bytestream import PathKind
from shoal.transport.lane.connection import LaneConnection
from shoal.transport.lane.events import Called
from shoal.transport.lane.frame import ACK, PING, Fault, Priority
from shoal.transport.lane.lane import Lane
from shoal.transport.lane.stream import QueuedFrame
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from tests.transport.fleet import (
    Node,
    Proxy,
    clock,
    make_node,
    running,
    second_path,
    until,
)
from tests.transport.lane_pair import Pair, Side


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


# The core.


class Wires:
    """Two lanes joined by several connections, each with its own bytes in flight."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(seed)
        self.a, self.b = Side(dialled=True), Side(dialled=False)
        self.joined = [
            (self.a.lane.attach(0.0), self.b.lane.attach(0.0), bytearray(), bytearray())
            for _ in range(count)
        ]

    def step(self) -> bool:
        moved = False
        for left, right, there, back in self.joined:
            for side, sender, other, receiver, wire in (
                (self.a, left, self.b, right, there),
                (self.b, right, self.a, left, back),
            ):
                wire += side.lane.take(sender, self.rng.choice((100, 5000, 1 << 18)), 0.0)
                size = self.rng.randint(0, len(wire))
                data = bytes(wire[:size])
                del wire[:size]
                for event in other.lane.receive(receiver, data, 0.0):
                    other._on(event)
                moved |= bool(wire) or size > 0
        return moved

    def switch(self) -> None:
        left, right, _, _ = self.rng.choice(self.joined)
        if self.rng.random() < 0.5:
            self.a.lane.use(left)
        else:
            self.b.lane.use(right)

    def cut(self) -> None:
        """Lose one connection with its bytes in flight, and add another one."""
        left, right, _, _ = self.joined.pop(self.rng.randrange(len(self.joined)))
        self.a.lane.detach(left)
        self.b.lane.detach(right)
        self.joined.append((self.a.lane.attach(0.0), self.b.lane.attach(0.0), *_wires()))
        left, right, _, _ = self.joined[0]
        if self.a.lane.outbox.carrier is None:
            self.a.lane.use(left)
        if self.b.lane.outbox.carrier is None:
            self.b.lane.use(right)


def _wires() -> tuple[bytearray, bytearray]:
    return bytearray(), bytearray()


class Torn(Wires):
    """Two lanes that drop connections independently. Frames sent before still arrive, and pings
    and acknowledgements come at any time."""

    noisy = True

    def step(self) -> bool:
        moved = False
        for left, right, there, back in self.joined:
            moved |= self._carry(self.a, left, self.b, right, there)
            moved |= self._carry(self.b, right, self.a, left, back)
        return moved

    def _carry(
        self,
        side: Side,
        sender: LaneConnection,
        other: Side,
        receiver: LaneConnection,
        wire: bytearray,
    ) -> bool:
        if sender in side.lane.connections:
            if self.noisy and self.rng.random() < 0.1:
                sender.push_urgent(self.rng.choice((PING, ACK)))
            wire += side.lane.take(sender, self.rng.choice((100, 5000, 1 << 18)), 0.0)
        size = self.rng.randint(0, len(wire))
        data = bytes(wire[:size])
        del wire[:size]
        if receiver in other.lane.connections:
            for event in other.lane.receive(receiver, data, 0.0):
                other._on(event)
        return bool(wire) or size > 0

    def switch(self) -> None:
        side = self.rng.choice((self.a, self.b))
        if side.lane.connections:
            side.lane.use(self.rng.choice(side.lane.connections))

    def cut(self) -> None:
        """Let one side lose a connection, which the other notices later, and add another one."""
        side = self.rng.choice((self.a, self.b))
        if side.lane.connections:
            side.lane.detach(self.rng.choice(side.lane.connections))
        if self.rng.random() < 0.7:
            self.joined.append((self.a.lane.attach(0.0), self.b.lane.attach(0.0), *_wires()))
        self._carry_on()

    def mend(self) -> None:
        """Let both sides notice lost connections, and add one that stays."""
        self.noisy = False
        for left, right, _, _ in self.joined:
            for side, end, other, twin in (
                (self.a, left, self.b, right),
                (self.b, right, self.a, left),
            ):
                if end not in side.lane.connections and twin in other.lane.connections:
                    other.lane.detach(twin)
        self.joined.append((self.a.lane.attach(0.0), self.b.lane.attach(0.0), *_wires()))
        self._carry_on()

    def _carry_on(self) -> None:
        for side in (self.a, self.b):
            if side.lane.outbox.carrier is None and side.lane.connections:
                side.lane.use(side.lane.connections[-1])


def change_paths(wires: Wires) -> None:
    """Make calls, posts and a stream while paths change at random. All must arrive once."""
    rng, a, b = wires.rng, wires.a, wires.b
    calls = [
        a.lane.call(
            "m", {"n": n}, rng.randbytes(rng.choice((0, 9, 70_000))), rng.choice(PRIORITIES)
        )
        for n in range(30)
    ]
    for n in range(200):
        a.lane.post("p", {"n": n}, rng.randbytes(rng.choice((0, 30_000))), Priority.ACTIVATION)
    stream = b.lane.open("s", {}, Priority.BULK)
    assert stream is not None
    data = rng.randbytes(200_000)
    stream.write(data)
    stream.finish()
    b.lane.outbox.schedule(stream)
    for _ in range(300):
        wires.step()
        if rng.random() < 0.3:
            wires.switch()
        if rng.random() < 0.1:
            wires.cut()
    if isinstance(wires, Torn):
        wires.mend()
    while wires.step():
        pass
    assert a.ended is None and b.ended is None
    assert all(a.answer_count[call] == 1 for call in calls)
    posted = [event.header["n"] for event in b.called if event.post]
    assert posted == list(range(200))  # in order, each once
    assert sum(not event.post for event in b.called) == len(calls)
    assert bytes(a.received[stream.ident]) == data


@pytest.mark.parametrize("seed", range(30))
def test_changing_paths_at_any_time_loses_and_repeats_nothing(seed: int) -> None:
    change_paths(Wires(seed, 3))


@pytest.mark.parametrize("seed", range(30))
def test_paths_that_each_side_drops_by_itself_lose_and_repeat_nothing(seed: int) -> None:
    change_paths(Torn(seed, 3))


@pytest.mark.long
@pytest.mark.parametrize("kind", [Wires, Torn])
def test_changing_paths_two_thousand_times(kind: type[Wires]) -> None:
    for seed in range(1000, 3000):
        change_paths(kind(seed, 3))


PRIORITIES = tuple(Priority)
SIZES = (0, 9, 70_000)


def test_each_connection_has_its_own_counts() -> None:
    """Acknowledging frames that only another connection carried is a protocol error."""
    pair = Pair()
    second = pair.a.lane.attach(0.0)
    pair.a.lane.post("p", {}, b"", Priority.CONTROL)
    pair.settle()
    assert isinstance(pair.b.called[0], Called)
    ack = b"\0\0\0\0\x05\0\0\0" + (1).to_bytes(4, "big") + bytes(16)
    (ended,) = pair.a.lane.receive(second, ack, 0.0)
    assert getattr(ended, "code", "") == "bad-count"


def test_frames_sent_again_still_count_on_their_first_path() -> None:
    pair = Pair()
    a, first = pair.a, pair.a.wire
    a.lane.post("p", {}, b"x", Priority.CONTROL)
    slow = a.take(1 << 16)
    second = a.lane.attach(0.0)
    a.lane.use(second)
    assert len(a.lane.take(second, 1 << 16, 0.0)) > 0
    pair.b.take_in(slow)
    pair.b.wire.ping(0.0)
    for event in a.lane.receive(first, pair.b.take(1 << 16), 0.0):
        a._on(event)
    assert a.ended is None
    assert len(pair.b.called) == 1


def to_and_fro() -> tuple[Lane, LaneConnection, LaneConnection]:
    """Send 50 posts ten times over each of two paths, without any acknowledgement."""
    lane = Side(dialled=True).lane
    paths = [lane.attach(0.0) for _ in range(2)]
    for _ in range(50):
        lane.post("p", {}, b"x", Priority.CONTROL)
    for turn in range(20):
        lane.use(paths[turn % 2])
        while lane.take(paths[turn % 2], 1 << 16, 0.0):
            pass
    return lane, paths[0], paths[1]


def test_without_counts_each_change_keeps_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = LaneConnection.give_back

    def listed(connection: LaneConnection) -> list[QueuedFrame]:
        items = list(connection.unacked)
        lost = counted(connection)
        connection.unacked = deque(item if isinstance(item, int) else 1 for item in items)
        return lost

    monkeypatch.setattr(LaneConnection, "give_back", listed)
    _, first, last = to_and_fro()
    assert (len(first.unacked), len(last.unacked)) == (500, 500)


def test_a_peer_that_makes_us_switch_paths_costs_no_memory() -> None:
    """A peer that acknowledges nothing and lets each path look dead in turn gets all frames again
    each time. Frames that left before cost only a count, and the counts stay correct."""
    lane, first, last = to_and_fro()
    assert len(first.unacked) == 1
    assert len(last.unacked) == 51
    assert first.acknowledge(499) == 0
    with pytest.raises(Fault):
        first.acknowledge(501)
    assert first.acknowledge(500) == 0
    assert not first.unacknowledged
    assert last.acknowledge(450) == 0
    freed = last.acknowledge(475)
    assert last.acknowledge(500) == freed > 0
    lane.outbox.acknowledged(2 * freed)
    assert lane.outbox.backlog == 0


# The shell, over real sockets.


async def relayed_link(a: Node, b: Node) -> Link:
    """A link whose only path counts as relayed on the side that dials."""
    link = await second_path(a, b, PathKind.RELAYED)
    await until(lambda: b.up)
    return link


@pytest.mark.trio
async def test_a_better_path_takes_over_and_a_worse_one_does_not() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await relayed_link(a, b)
        assert link.status.path == "relayed"
        assert await second_path(a, b, PathKind.DIRECT) is link
        assert link.status.path == "direct"
        await second_path(a, b, PathKind.PUNCHED)
        assert [path.path_kind for path in link.status.paths] == [
            PathKind.RELAYED,
            PathKind.DIRECT,
            PathKind.PUNCHED,
        ]
        await second_path(a, b, PathKind.RELAYED)
        assert len(link.status.paths) == 3  # there was one too many
        assert sum(path.used for path in link.status.paths) == 1
        assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        assert a.endpoint.links() == [link] and len(b.up) == 1 and not a.lost


@pytest.mark.trio
async def test_a_second_path_of_the_same_kind_is_dropped(
    virtual_time: trio.testing.MockClock,
) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await relayed_link(a, b)
        await second_path(a, b, PathKind.DIRECT)
        await second_path(a, b, PathKind.DIRECT)
        assert len(link.status.paths) == 3
        await trio.sleep(30)
        assert [path.path_kind.value for path in link.status.paths] == ["relayed", "direct"]
        assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        assert not a.lost and not b.lost


@pytest.mark.trio
async def test_a_pong_on_one_path_does_not_put_off_the_tick_of_another(
    virtual_time: trio.testing.MockClock,
) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await relayed_link(a, b)
        await second_path(a, b, PathKind.DIRECT)
        for _ in range(200):
            await trio.sleep(0.1)
            for end in (link, b.up[0]):
                assert end.due <= min(path.due for path in end.paths)
        assert len(link.status.paths) == 2


@pytest.mark.trio
async def test_either_side_may_bring_the_next_path() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await relayed_link(a, b)
        back = b.up[0]
        assert await second_path(b, a, PathKind.LOOPBACK) is back
        await until(lambda: len(link.status.paths) == 2)
        assert (await back.call("echo", {"n": 2}, timeout=5)).header == {"n": 2}
        assert (await link.call("echo", {"n": 3}, timeout=5)).header == {"n": 3}


@pytest.mark.trio
async def test_calls_and_streams_continue_while_paths_come_and_go() -> None:
    a, b = make_node(1), make_node(2)
    got = bytearray()

    async def sink(incoming: IncomingStream) -> None:
        while data := await incoming.stream.receive(1 << 16):
            got.extend(data)
        await incoming.stream.finish()

    b.endpoint.handle_stream("sink", sink)
    data = random.Random(1).randbytes(3_000_000)
    async with running(a, b) as nursery:
        link = await relayed_link(a, b)
        proxies = [Proxy(b.endpoint.port) for _ in range(2)]
        for proxy in proxies:
            await nursery.start(proxy.run)

        async def change() -> None:
            for turn in range(12):
                await second_path(a, b, PathKind.DIRECT, proxies[turn % 2].port)
                await trio.sleep(0.02)
                proxies[turn % 2].cut()

        async def ask(first: int) -> None:
            for n in range(first, first + 40):
                reply = await link.call("slow" if n % 2 else "echo", {"n": n}, b"x", timeout=9)
                assert reply.header == {"n": n}

        async def pour() -> None:
            stream = await link.open_stream("sink", {})
            for at in range(0, len(data), 1 << 16):
                await stream.send(data[at : at + (1 << 16)])
                await trio.sleep(0.005)
            await stream.finish()
            assert await stream.receive(1) == b""

        async with trio.open_nursery() as work:
            work.start_soon(change)
            work.start_soon(pour)
            for first in range(0, 200, 40):
                work.start_soon(ask, first)
        assert bytes(got) == data
        assert sorted(b.calls, key=int) == [str(n) for n in range(200)]
        assert not a.lost and not b.lost and not a.quiet_at


@pytest.mark.trio
async def test_a_silent_path_is_left_before_calls_time_out(
    virtual_time: trio.testing.MockClock,
) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link = await relayed_link(a, b)
        proxy = Proxy(b.endpoint.port)
        await nursery.start(proxy.run)
        await second_path(a, b, PathKind.DIRECT, proxy.port)
        for n in range(20):
            await trio.sleep(0.1)
            await link.call("echo", {"n": n}, timeout=5)
        proxy.freeze()
        began = trio.current_time()
        reply = await link.call("echo", {"n": 99}, timeout=5)
        assert reply.header == {"n": 99}
        assert trio.current_time() - began < 2.5
        assert link.path_kind is PathKind.RELAYED
        assert b.calls.count("99") == 1


@pytest.mark.trio
async def test_a_standby_path_stays(virtual_time: trio.testing.MockClock) -> None:
    """A standby path is pinged seldom, and has the full time to reply."""
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        link = await relayed_link(a, b)
        await second_path(a, b, PathKind.DIRECT)
        await trio.sleep(60)
        assert [path.path_kind.value for path in link.status.paths] == ["relayed", "direct"]
        assert [path.path_kind.value for path in b.up[0].status.paths] == ["loopback", "loopback"]


@pytest.mark.trio
async def test_other_dead_paths_are_not_tried_one_after_the_other(
    virtual_time: trio.testing.MockClock,
) -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b) as nursery:
        link = await relayed_link(a, b)
        proxies = [Proxy(b.endpoint.port) for _ in range(2)]
        for proxy, path_kind in zip(proxies, (PathKind.PUNCHED, PathKind.DIRECT), strict=True):
            await nursery.start(proxy.run)
            await second_path(a, b, path_kind, proxy.port)
        for n in range(20):
            await trio.sleep(0.1)
            await link.call("echo", {"n": n}, timeout=5)
        for proxy in proxies:
            proxy.freeze()
        began = trio.current_time()
        await link.call("echo", {"n": 99}, timeout=5)
        assert trio.current_time() - began < 1.7
        assert link.path_kind is PathKind.RELAYED
