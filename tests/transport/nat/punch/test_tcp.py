"""TCP punching: dials from one port, and which side speaks first."""

import errno
from collections.abc import Callable

import pytest
import trio
import trio.testing

from shoal.transport.bytestream import TcpByteStream
from shoal.transport.host.datagrams import Place
from shoal.transport.host.real import RealHost
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.nat.punch.tcp import Dialling, PunchDialResult, stays_silent
from tests.transport.fleet import LOOPBACK, clock

pytestmark = pytest.mark.trio
LIMITS = PunchLimits()
THERE, ELSEWHERE = ("11.0.0.2", 4001), ("11.0.0.3", 4001)


class FakeNet:
    """The scripted results of dials: seconds until each is refused or connects."""

    def __init__(self, meets: Callable[[Place, int], tuple[str, float]]) -> None:
        self.meets = meets
        self.dials: list[tuple[float, Place, int]] = []

    def entropy(self, size: int) -> bytes:
        return bytes([len(self.dials) * 37 % 256]) * size

    async def connect(self, address: str, port: int, *, source_port: int = 0) -> trio.SocketStream:
        place = address, port
        self.dials.append((trio.current_time(), place, source_port))
        what, after = self.meets(place, len(self.dials))
        await trio.sleep(after)
        if what == "refused":
            raise ConnectionRefusedError
        if what == "in-use":
            raise OSError(errno.EADDRNOTAVAIL, "in use")
        return what  # type: ignore[return-value]


class Counter:
    def __init__(self, most: int = 1000) -> None:
        self.spent = 0
        self.most = most

    def __call__(self, ip: str) -> bool:
        self.spent += 1
        return self.spent <= self.most


async def dial(
    net: FakeNet, *places: Place, spend: Counter | None = None
) -> tuple[PunchDialResult, list[Place], float]:
    got: list[Place] = []
    dialling = Dialling(
        net,
        4001,
        spend=spend or Counter(),
        deliver=lambda stream, place: got.append(place),
        limits=LIMITS,
    )
    began = trio.current_time()
    return await dialling.run(places), got, trio.current_time() - began


async def test_dials_leave_from_the_listen_port_until_one_connects(
    autojump_clock: trio.testing.MockClock,
) -> None:
    net = FakeNet(lambda place, n: ("stream", 0.1 if place == THERE else 9.0))
    end, got, took = await dial(net, THERE, ELSEWHERE)
    assert (end, got) == (PunchDialResult.WORKED, [THERE])
    assert took == pytest.approx(0.1 + LIMITS.grace_s)
    assert {source for _, _, source in net.dials} == {4001}


async def test_a_second_connection_soon_after_is_delivered_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The first may be another machine on the local network with the peer's address."""
    net = FakeNet(lambda place, n: ("stream", 0.001 if place == THERE else 0.2))
    assert (await dial(net, THERE, ELSEWHERE))[1] == [THERE, ELSEWHERE]


async def test_resets_are_retried_soon_at_random_times(
    autojump_clock: trio.testing.MockClock,
) -> None:
    net = FakeNet(lambda place, n: ("refused" if n < 6 else "stream", 0.05))
    end, _, _ = await dial(net, THERE)
    pauses = [b[0] - a[0] - 0.05 for a, b in zip(net.dials, net.dials[1:], strict=False)]
    low, high = LIMITS.tcp_retry_s
    assert end is PunchDialResult.WORKED and len(pauses) == 5
    assert all(low <= pause <= high for pause in pauses) and len({*pauses}) > 3


@pytest.mark.parametrize(
    ("what", "after", "end"),
    [
        ("refused", 0.01, PunchDialResult.REFUSED),
        ("in-use", 0.0, PunchDialResult.NO_ANSWER),
        ("stream", 1e9, PunchDialResult.NO_ANSWER),
    ],
)
async def test_tries_and_time_are_bounded(
    what: str, after: float, end: PunchDialResult, autojump_clock: trio.testing.MockClock
) -> None:
    net = FakeNet(lambda place, n: (what, after))
    found, _, took = await dial(net, THERE)
    assert found is end and took <= LIMITS.tcp_s
    assert len(net.dials) <= LIMITS.tcp_tries


async def test_the_syns_that_the_kernel_repeats_are_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    spend = Counter()
    await dial(FakeNet(lambda place, n: ("stream", 1e9)), THERE, spend=spend)
    assert spend.spent == 3, "after 0, 1 and 3 seconds"


@pytest.mark.parametrize(("most", "dials", "took"), [(0, 0, 0.0), (1, 1, 0.95), (2, 1, 2.95)])
async def test_a_spent_budget_ends_the_dial_before_its_next_syn(
    most: int, dials: int, took: float, autojump_clock: trio.testing.MockClock
) -> None:
    net = FakeNet(lambda place, n: ("stream", 1e9))
    _, _, seconds = await dial(net, THERE, spend=Counter(most))
    assert len(net.dials) == dials and seconds == pytest.approx(took, abs=0.3)


async def test_without_addresses_nothing_is_dialled() -> None:
    assert (await dial(FakeNet(lambda place, n: ("refused", 0.0))))[0] is PunchDialResult.NOWHERE


@pytest.fixture
def loopback_clock() -> trio.testing.MockClock:
    return clock()


@pytest.mark.parametrize("speaks", [True, False])
async def test_a_dialler_speaks_first_or_waits(
    speaks: bool, loopback_clock: trio.testing.MockClock
) -> None:
    """Over loopback, an ordinary dialler sends its TLS hello at once."""
    host = RealHost()
    listener = await host.listen(LOOPBACK, 0)
    stream = await host.connect(LOOPBACK, listener.socket.getsockname()[1])
    accepted = await listener.accept()
    if speaks:
        await stream.send_all(b"\x16")
    began = trio.current_time()
    assert await stays_silent(TcpByteStream(accepted), LIMITS) is not speaks
    assert trio.current_time() - began < (0.1 if speaks else 0.2)
    for each in (stream, accepted, listener):
        await each.aclose()


async def test_real_simultaneous_open_over_loopback(
    loopback_clock: trio.testing.MockClock,
) -> None:
    """Two listeners of one machine dial each other from their listen ports."""
    host = RealHost()
    ends = [await host.listen(LOOPBACK, 0) for _ in range(2)]
    ports = [listener.socket.getsockname()[1] for listener in ends]
    got: list[trio.SocketStream] = []

    async def one(source: int, to: int) -> None:
        dialling = Dialling(
            host,
            source,
            spend=lambda ip: True,
            deliver=lambda stream, place: got.append(stream),
            limits=LIMITS,
        )
        assert await dialling.run([(LOOPBACK, to)]) is PunchDialResult.WORKED

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, ports[0], ports[1])
        await nursery.start(_accept_all, ends, got)
        with trio.move_on_after(1.0):
            while len(got) < 2:  # noqa: ASYNC110
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert len(got) >= 2
    for stream in got:
        await stream.aclose()
    for listener in ends:
        await listener.aclose()


async def _accept_all(
    listeners: list[trio.SocketListener],
    got: list[trio.SocketStream],
    task_status: trio.TaskStatus[None],
) -> None:
    async def one(listener: trio.SocketListener) -> None:
        while True:
            got.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(one, listener)
        task_status.started()
