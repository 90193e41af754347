"""TCP over simulated networks: times, losses, silence, ends. All in virtual time."""

import errno
import gc
import itertools
import socket as stdlib
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio

from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.network import Network
from shoal.netsim.network.packet import ICMP, TCP, Icmp, Packet
from shoal.netsim.sockets.tcp.defaults import GIVE_UP_S
from shoal.netsim.sockets.tcp.segment import TcpSegment
from shoal.netsim.sockets.tcpstack import TcpStack
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

PORT = 4000
PAYLOAD = 1448 / 1500  # of a full packet


class Wire:
    """Observer of every TCP packet that arrives, which it drops if `decide` returns True."""

    def __init__(
        self, world: World, decide: Callable[[Packet, str], bool] = lambda *_: False
    ) -> None:
        self.world = world
        self.decide = decide
        self.seen: list[tuple[float, str, TcpSegment]] = []  # time, receiver, segment
        world.network.interfere_by(self._interfere)

    def _interfere(self, packet: Packet, host: str) -> float:
        if packet.proto == TCP:
            self.seen.append((self.world.events.now, host, packet.segment))
        return -1.0 if self.decide(packet, host) else 0.0


def two(seed: int = 1, *, delay: float = 0.02, pipe: PipeSpec | None = None, **world: Any) -> Any:
    """Return a world, and the hosts `near` (behind the pipe, upwards) and `far`."""
    made = World(seed, latency=delay, **world)
    link = LinkSpec(up=pipe or PipeSpec())
    return made, made.host("near", link=link), made.host("far")


async def listen(host: Host, *, family: int = stdlib.AF_INET) -> Any:
    async def go() -> Any:
        sock = trio.socket.socket(family, stdlib.SOCK_STREAM)
        sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR, 1)
        await sock.bind(("::" if family == stdlib.AF_INET6 else "0.0.0.0", PORT))
        sock.listen(100)
        return sock

    return await host.run(go)


async def dial(host: Host, to: Host) -> Any:
    async def go() -> Any:
        address = to.addresses()[0]
        family = stdlib.AF_INET6 if ":" in address else stdlib.AF_INET
        sock = trio.socket.socket(family, stdlib.SOCK_STREAM)
        sock.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, 1)
        await sock.connect((address, PORT))
        return sock

    return await host.run(go)


async def joined(near: Host, far: Host) -> tuple[Any, Any]:
    """Return both ends of a connection."""
    listener = await listen(far)
    here = await dial(near, far)
    there, _ = await listener.accept()
    listener.close()
    return here, there


async def send_all(sock: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[await sock.send(view) :]


def connections(host: Host) -> dict[Any, Any]:
    """Return the connections of a host, including those in TIME-WAIT."""
    stack = host.protocols[TCP]
    assert isinstance(stack, TcpStack)
    return stack.connections


async def drain(sock: Any) -> None:
    while await sock.recv(1 << 20):
        pass


async def transfer(near: Host, far: Host, size: int) -> list[tuple[float, int]]:
    """Send `size` bytes; return the times with the number of bytes received so far."""
    here, there = await joined(near, far)
    marks: list[tuple[float, int]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, here, bytes(size))
        got = 0
        while got < size:
            got += len(await there.recv(1 << 20))
            marks.append((trio.current_time(), got))
    return marks


def rate(marks: list[tuple[float, int]], after: float) -> float:
    """Return the bytes per second after a fraction of the bytes has arrived."""
    total = marks[-1][1]
    start = next(mark for mark in marks if mark[1] >= total * after)
    return (total - start[1]) / (marks[-1][0] - start[0])


def gaps(marks: list[tuple[float, int]]) -> float:
    """Return the longest silence."""
    return max(b[0] - a[0] for a, b in itertools.pairwise(marks))


async def number(awaitable: Awaitable[Any]) -> int:
    """Return the errno of the error that is raised."""
    with pytest.raises(OSError) as caught:
        await awaitable
    return caught.value.errno or 0


# Speed.


@pytest.mark.parametrize(("bandwidth", "delay"), [(1.25e6, 0.01), (2.5e6, 0.05)])
def test_a_saturated_link_carries_its_rate(bandwidth: float, delay: float) -> None:
    world, near, far = two(delay=delay, pipe=PipeSpec(rate=bandwidth, queue=1.0))
    marks = world.run(transfer, near, far, int(4 * bandwidth))
    assert rate(marks, 0.5) == pytest.approx(bandwidth * PAYLOAD, rel=0.05)


def test_a_short_queue_still_carries_most() -> None:
    world, near, far = two(pipe=PipeSpec(rate=1.25e6, queue=0.06))
    marks = world.run(transfer, near, far, 6_000_000)
    assert world.network.dropped > 0
    assert rate(marks, 0.3) == pytest.approx(1.25e6 * PAYLOAD, rel=0.05)


def test_slow_start_ends_before_a_deep_queue_is_full() -> None:
    """With two seconds of queue it would double until the receive window stops it."""
    world, near, far = two(pipe=PipeSpec(rate=1.25e6, queue=2.0))

    async def main() -> float:
        here, there = await joined(near, far)
        with trio.move_on_after(1.5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, there)
                await send_all(here, bytes(9_000_000))
        return float(here.connection.round_trip.smooth)

    assert world.run(main) < 0.2


def test_slow_start_doubles_each_round_trip() -> None:
    """10, 20, 40 segments, one round trip of 0.2 s after the other."""
    world, near, far = two(delay=0.1)
    marks = world.run(transfer, near, far, 55 * 1448)
    took = [at for at, _ in itertools.groupby(mark[0] for mark in marks)]
    assert took == pytest.approx([0.4, 0.6, 0.8])


def test_loss_reduces_the_rate_as_predicted() -> None:
    """Mathis et al. 1997: MSS / RTT * 1.22 / sqrt(p), within a factor of two."""
    world, near, far = two(delay=0.025, pipe=PipeSpec(loss=0.01))
    marks = world.run(transfer, near, far, 5_000_000)
    bound = 1448 / 0.05 * 1.22 / 0.01**0.5
    assert bound / 2 < rate(marks, 0.1) < bound * 2


def test_the_content_survives_loss_reordering_and_duplication() -> None:
    pipe = PipeSpec(loss=0.03, jitter=0.005, reorder=0.05, duplicate=0.02)
    world, near, far = two(3, pipe=pipe)
    sent = bytes(range(251)) * 2000

    async def main() -> bytes:
        here, there = await joined(near, far)
        got = bytearray()
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                await send_all(here, sent)
                here.shutdown(stdlib.SHUT_WR)

            nursery.start_soon(write)
            while data := await there.recv(5000):
                got += data
        return bytes(got)

    assert world.run(main) == sent


# Losses.


def _dropping(count: int, first: int) -> Callable[[Packet, str], bool]:
    """Drop `count` full packets in a row, from the `first` on."""
    full = itertools.count()

    def decide(packet: Packet, host: str) -> bool:
        return packet.size > 1400 and first <= next(full) < first + count

    return decide


def test_a_burst_is_recovered_without_a_timeout() -> None:
    world, near, far = two(delay=0.03)
    Wire(world, _dropping(12, 60))
    marks = world.run(transfer, near, far, 600_000)
    assert world.network.dropped == 12
    assert gaps(marks) < 0.15


def test_without_sack_the_same_burst_takes_longer() -> None:
    """The twin: the benefit of the receiver's reports."""

    def run(sack: bool) -> float:
        world, near, far = two(delay=0.03)
        dropping = _dropping(12, 60)

        def decide(packet: Packet, host: str) -> bool:
            if not sack:
                packet.segment.sack = ()
            return dropping(packet, host)

        Wire(world, decide)
        return gaps(world.run(transfer, near, far, 600_000))

    assert run(sack=False) > run(sack=True) + 0.05


def test_a_lost_tail_is_probed_for() -> None:
    """The last three segments are lost. No later segment shows it, but a probe does (RFC
    8985, 7).
    """
    world, near, far = two(delay=0.03)
    Wire(world, _dropping(3, 17))
    marks = world.run(transfer, near, far, 20 * 1448)
    assert marks[-1][0] < 0.5  # a timeout would make it 0.6


def test_a_spike_of_delay_is_no_loss() -> None:
    """All packets are held back for a second. The timeout is recognised as spurious (RFC 3522), and
    little is sent twice.
    """
    world, near, far = two(delay=0.05, pipe=PipeSpec(rate=1e6))
    count = 0

    def hold(packet: Packet, host: str) -> float:
        nonlocal count
        now = world.events.now
        count += packet.size > 1400
        return 2.0 - now if host == "far" and 1.0 <= now < 2.0 else 0.0

    world.network.interfere_by(hold)
    marks = world.run(transfer, near, far, 1_448_000)
    assert marks[-1][0] < 3.5
    assert count < 1000 + 10


def test_a_lost_syn_and_a_lost_answer() -> None:
    for receiver in ("far", "near"):
        world, near, far = two(delay=0.01)
        first = iter([True])

        def decide(
            packet: Packet, host: str, name: str = receiver, turn: Iterator[bool] = first
        ) -> bool:
            return host == name and next(turn, False)

        Wire(world, decide)
        world.run(joined, near, far)
        assert world.events.now == pytest.approx(1.02, abs=0.02)


# Silence.


def test_syns_and_their_end() -> None:
    world, near, far = two()
    wire = Wire(world, lambda packet, host: True)

    async def main() -> int:
        await listen(far)
        return await number(dial(near, far))

    assert world.run(main) == errno.ETIMEDOUT
    times = [round(at - 0.02, 3) for at, _, _ in wire.seen]
    assert times == [0, 1, 3, 7, 15, 31, 63]
    assert world.events.now == pytest.approx(127)


def test_a_dead_peer_times_out() -> None:
    trace = Trace(keep=True)
    world, near, far = two(trace=trace)
    dead = False
    Wire(world, lambda packet, host: dead)

    async def main() -> int:
        nonlocal dead
        here, _ = await joined(near, far)
        await trio.sleep(10)
        dead = True
        await here.send(b"anybody there?")
        return await number(here.recv(1))

    assert world.run(main) == errno.ETIMEDOUT
    assert world.trace.digest
    sent = [r[0] for r in trace.records if r[1] == "sent" and r[2] == "near" and r[0] >= 10]
    waits = [b - a for a, b in itertools.pairwise(sent)]
    ratios = [b / a for a, b in itertools.pairwise(waits[2:9])]
    assert ratios == pytest.approx([2] * len(ratios))
    assert max(waits) == pytest.approx(120)
    assert world.events.now - 10 == pytest.approx(GIVE_UP_S, rel=0.15)


def test_a_host_that_crashed_answers_nothing_then_resets() -> None:
    world, near, far = two()

    class Server:
        async def run(self, host: Host, *, task_status: Any) -> None:
            sock = trio.socket.socket()
            await sock.bind(("0.0.0.0", PORT))
            sock.listen()
            task_status.started()
            while True:
                held, _ = await sock.accept()
                del held

    async def main() -> tuple[int, int]:
        await far.start(Server())
        here = await dial(near, far)
        await far.crash()
        before = world.network.delivered
        await here.send(b"x")
        await trio.sleep(5)
        silent = world.network.delivered - before
        await far.restart()
        return silent, await number(here.recv(1))

    assert world.run(main) == (0, errno.ECONNRESET)


def test_sockets_of_a_crashed_host_stay_silent() -> None:
    world, near, far = two()
    wire = Wire(world)

    async def main() -> int:
        here, _ = await joined(near, far)
        await trio.sleep(1)
        before = len(wire.seen)
        await near.crash()
        near.equip(near)
        near.up = True
        here.close()  # no FIN of its old run, neither then nor now
        await trio.sleep(1000)
        return len(wire.seen) - before

    assert world.run(main) == 0


def test_keepalive_finds_a_dead_peer() -> None:
    world, near, far = two()
    dead = False
    Wire(world, lambda packet, host: dead)

    async def main() -> int:
        nonlocal dead
        here, _ = await joined(near, far)
        here.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_KEEPALIVE, 1)
        await trio.sleep(3 * 7200 - 100)
        assert not here.is_readable()
        dead = True
        return await number(here.recv(1))

    assert world.run(main) == errno.ETIMEDOUT
    assert world.events.now == pytest.approx(3 * 7200 + 9 * 75, abs=1)


# Windows.


def test_a_closed_window_is_probed_and_opens_again() -> None:
    world, near, far = two()

    async def main() -> tuple[int, int]:
        here, there = await joined(near, far)
        with trio.move_on_after(600):
            await send_all(here, bytes(5_000_000))
        held = here.connection.queued
        before = world.network.sent
        await trio.sleep(600)
        probes = world.network.sent - before
        got = 0
        with trio.move_on_after(5):
            while True:
                got += len(await there.recv(1 << 20))
        assert got >= held
        return probes, here.connection.queued

    probes, left = world.run(main)
    assert 8 <= probes <= 16  # one in each direction in two minutes
    assert left == 0


def test_the_window_is_half_the_receive_buffer() -> None:
    world, near, far = two()

    async def main() -> int:
        listener = await listen(far)
        listener.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_RCVBUF, 20000)
        here = await dial(near, far)
        there, _ = await listener.accept()
        with trio.move_on_after(5):
            await send_all(here, bytes(500_000))
        return int(there.connection.inbox.size)

    assert 18_000 <= world.run(main) <= 20_000


def test_a_window_that_grows_with_the_reader() -> None:
    """Half of 128 KiB per round trip of 0.2 s would be 0.3 MB/s; the window grows beyond that."""
    world, near, far = two(delay=0.1)
    marks = world.run(transfer, near, far, 8_000_000)
    assert rate(marks, 0.5) > 2_000_000


def test_little_is_unsent_when_the_writer_wakes() -> None:
    world, near, far = two(pipe=PipeSpec(rate=100_000))

    async def main() -> int:
        here, there = await joined(near, far)
        here.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NOTSENT_LOWAT, 16384)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, there)
            await send_all(here, bytes(200_000))
            await here.wait_writable()
            unsent = int(here.connection.outbox.size)
            nursery.cancel_scope.cancel()
        return unsent

    assert world.run(main) < 8192


# Acknowledgements and small segments.


def test_an_acknowledgement_is_delayed_in_a_dialogue() -> None:
    world, near, far = two(delay=0.01)
    wire = Wire(world)

    async def main() -> float:
        here, there = await joined(near, far)
        for _ in range(3):
            await here.send(b"question")
            await there.recv(100)
            await there.send(b"answer")
            await here.recv(100)
        last = trio.current_time()
        await trio.sleep(1)
        return last

    last = world.run(main)
    after = [(at, host) for at, host, segment in wire.seen if at > last]
    ((at, host),) = after
    assert host == "far"
    assert at == pytest.approx(last + 0.04 + 0.01)


def test_every_second_full_segment_is_acknowledged() -> None:
    world, near, far = two()
    wire = Wire(world)

    async def main() -> None:
        await transfer(near, far, 1448 * 400)
        await trio.sleep(1)

    world.run(main)
    data = sum(1 for _, host, s in wire.seen if host == "far" and s.data)
    acks = sum(1 for _, host, s in wire.seen if host == "near" and not s.syn)
    assert data <= 404  # a write that does not fill its last segment
    assert data / 2 - 5 <= acks <= data / 2 + 20


@pytest.mark.parametrize(("no_delay", "segments"), [(1, 3), (0, 2)])
def test_nagle(no_delay: int, segments: int) -> None:
    world, near, far = two()
    wire = Wire(world)

    async def main() -> None:
        here, _there = await joined(near, far)
        here.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, no_delay)
        for _ in range(3):
            await here.send(b"keystroke")
        await trio.sleep(1)

    world.run(main)
    assert sum(1 for _, host, s in wire.seen if host == "far" and s.data) == segments


def test_segments_of_an_ethernet_and_of_a_tunnel() -> None:
    for mtu, size in ((1500, 1448), (1280, 1228)):
        world, near, far = two(pipe=PipeSpec(mtu=mtu))
        wire = Wire(world)
        world.run(transfer, near, far, 50_000)
        assert max(len(s.data) for _, _, s in wire.seen) == size


def test_a_router_that_passes_less() -> None:
    """ICMP "too big" makes segments smaller, and dropped data is sent again."""
    world, near, far = two()
    network: Network = world.network

    def decide(packet: Packet, host: str) -> bool:
        if packet.proto != TCP or packet.size <= 1400:
            return False
        notice = Packet(
            ICMP, ("11.9.9.9", 0), packet.src, 576, Icmp("too-big", packet, 1400), "r", ""
        )
        network.events.at(network.events.now + 0.01, near.take, notice)
        return True

    wire = Wire(world, decide)
    marks = world.run(transfer, near, far, 100_000)
    assert marks[-1][0] < 0.5
    assert max(len(s.data) for _, host, s in wire.seen[-50:]) == 1400 - 52


# Refusals.


def test_an_unreachable_host() -> None:
    world, near, far = two()
    network: Network = world.network

    def decide(packet: Packet, host: str) -> bool:
        if packet.proto == TCP:
            notice = Packet(ICMP, ("11.9.9.9", 0), packet.src, 56, Icmp("host", packet), "r", "")
            network.events.at(network.events.now + 0.01, near.take, notice)
        return packet.proto == TCP

    Wire(world, decide)

    async def main() -> int:
        return await number(dial(near, far))

    assert world.run(main) == errno.EHOSTUNREACH
    assert world.events.now < 1


def test_no_route() -> None:
    world, near, _ = two()

    async def go() -> Any:
        await trio.socket.socket(stdlib.AF_INET6).connect(("2001:db8::1", 1))

    async def main() -> int:
        return await number(near.run(go))

    assert world.run(main) == errno.ENETUNREACH


def test_a_segment_out_of_the_blue_is_reset() -> None:
    """Only a segment with the expected number resets (RFC 5961); others get an acknowledgement."""
    world, near, far = two()

    async def main() -> tuple[bool, int]:
        here, _there = await joined(near, far)
        connection = here.connection
        forged = TcpSegment(connection.inbox.next + 100, connection.nxt, 0, b"", (), -1.0, -1.0)
        forged.__class__ = _Reset
        here.take(forged)
        before = here.is_readable()
        forged.seq = connection.inbox.next
        here.take(forged)
        return before, await number(here.recv(1))

    assert world.run(main) == (False, errno.ECONNRESET)


class _Reset(TcpSegment):
    __slots__ = ()
    rst = True


# Opening and closing.


def test_syns_that_cross() -> None:
    """Simultaneous open: both dial from bound ports, and neither listens."""
    world, near, far = two()
    wire = Wire(world)

    async def main() -> list[bytes]:
        got: list[bytes] = []

        async def meet(peer: Host, delay: float) -> None:
            await trio.sleep(delay)
            sock = trio.socket.socket()
            await sock.bind(("0.0.0.0", PORT))
            await sock.connect((peer.addresses()[0], PORT))
            await sock.send(b"hello")
            got.append(await sock.recv(10))

        async with trio.open_nursery() as nursery:
            near.start_soon(nursery, meet, far, 0.0)
            far.start_soon(nursery, meet, near, 0.003)
        return got

    assert world.run(main) == [b"hello", b"hello"]
    assert not any(segment.rst for _, _, segment in wire.seen)
    assert world.events.now < 0.2


def _flags(segment: TcpSegment) -> str:
    return "S" * segment.syn + "F" * segment.fin + "R" * segment.rst + "A" * segment.ack


def test_the_four_way_close() -> None:
    world, near, far = two()
    wire = Wire(world)

    async def main() -> None:
        here, there = await joined(near, far)
        here.close()
        assert await there.recv(1) == b""
        await trio.sleep(1)
        there.close()
        await trio.sleep(1)

    world.run(main)
    assert [(host, _flags(segment)) for _, host, segment in wire.seen] == [
        ("far", "S"),
        ("near", "SA"),
        ("far", "A"),
        ("far", "FA"),
        ("near", "A"),
        ("near", "FA"),
        ("far", "A"),
    ]


def test_time_wait_lasts_a_minute() -> None:
    world, near, far = two()

    async def main() -> list[int]:
        here, there = await joined(near, far)
        here.close()
        await trio.sleep(1)
        there.close()
        counts = []
        for pause in (1, 57, 3):
            await trio.sleep(pause)
            counts.append(len(connections(near)))
        assert not connections(far)
        return counts

    assert world.run(main) == [1, 1, 0]


def test_a_lost_last_acknowledgement() -> None:
    """TIME-WAIT answers the FIN that is sent again."""
    world, near, far = two()
    drop = False
    Wire(world, lambda packet, host: drop and host == "far" and not packet.segment.fin)

    async def main() -> int:
        nonlocal drop
        here, there = await joined(near, far)
        here.close()
        await trio.sleep(1)
        drop = True
        there.close()
        await trio.sleep(0.1)
        drop = False
        await trio.sleep(2)
        return len(connections(far))

    assert world.run(main) == 0


def test_a_peer_that_never_sends_fin_is_dropped_after_a_minute() -> None:
    world, near, far = two()

    async def main() -> list[int]:
        here, _there = await joined(near, far)
        here.close()
        counts = []
        for pause in (50, 20):
            await trio.sleep(pause)
            counts.append(len(connections(near)))
        return counts

    assert world.run(main) == [1, 0]


def test_fin_follows_what_is_queued() -> None:
    world, near, far = two(pipe=PipeSpec(rate=200_000))

    async def main() -> int:
        here, there = await joined(near, far)
        sent: int = await here.send(bytes(80_000))
        here.close()
        got = 0
        while data := await there.recv(9999):
            got += len(data)
        return sent - got

    assert world.run(main) == 0


def test_a_dual_stack_listener_over_the_network() -> None:
    world = World(1)
    near, far = world.host("near", address="2001:db8::1"), world.host("far", address="2001:db8::2")
    wire = Wire(world)

    async def main() -> Any:
        listener = await listen(far, family=stdlib.AF_INET6)
        here = await dial(near, far)
        there, shown = await listener.accept()
        await here.send(bytes(3000))
        await there.recv(3000)
        return shown[0]

    assert world.run(main) == "2001:db8::1"
    assert max(len(s.data) for _, _, s in wire.seen) == 1500 - 40 - 32


# The seed, and the cost.


def _digest(seed: int) -> str:
    trace = Trace()
    world, near, far = two(seed, pipe=PipeSpec(rate=2e6, loss=0.01, jitter=0.002), trace=trace)
    world.run(transfer, near, far, 300_000)
    return trace.digest


def test_the_same_seed_gives_the_same_packets() -> None:
    assert _digest(5) == _digest(5)
    assert _digest(5) != _digest(6)


def test_an_idle_connection_is_small() -> None:
    """At most 3 KiB per end, also after use: 500 daemons with 24 links each share a process."""
    world, near, far = two()
    count = 200

    async def main() -> float:
        listener = await listen(far)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        ends = []
        for _ in range(count):
            ends.append(await dial(near, far))
            ends.append((await listener.accept())[0])
        for a, b in zip(ends[::2], ends[1::2], strict=True):
            await a.send(bytes(5000))
            await b.recv(9999)
            await b.send(b"answer")
            await a.recv(9999)
        await trio.sleep(30)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return (after - before) / len(ends)

    assert world.run(main) < 3072
