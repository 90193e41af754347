"""Bulk over QUIC byte streams: the share of a lossy link, and CPU on loopback.

`link` is the share of a home's line that a bulk stream gets over a punched path. In the simulator,
two homes behind port-restricted NATs meet through a relay and punch over UDP; the stream begins
when only the punched path carries the link. The lines have 100 Mbit/s up, 40 ms round trip, 0.5 %
random loss. The figure is the bytes of the stream that arrive within 10 s, divided by the line's
rate, for the worst seed. `bare` is the same for a fresh QUIC byte stream between two public hosts,
from its first byte on, and `cubic` that over aioquic's CUBIC. `cpu` is the CPU milliseconds per
megabyte of both ends together, on loopback with one process per end, in reference ms
(`yardstick.py`): medians of bare byte streams, and of byte streams with the link's own TLS inside,
as links use them. Goals: 0.7 of the line, 40 reference ms per MB.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import median
from unittest import mock

import trio
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.recovery import QuicPacketPacer
from worlds.punchedbulk import lossy_line, punched_bulk
from yardstick import Yardstick

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.bytestream import PathKind
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Bytes
from shoal.transport.udp import connection as quic
from shoal.transport.udp.port import UdpPort
from shoal.transport.udp.quic import QuicByteStream

MEASURES = ("transport", "netsim")

GOALS = {"link": 0.7, "cpu_per_mb": 40.0}  # reference ms
RATE = 100e6 / 8
RTT_S = 0.04
LOSS = 0.005
LOOPBACK = "127.0.0.1"
PORT = 4001
CHUNK = bytes(64 * 1024)


async def write(byte_stream: QuicByteStream, data: Bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[byte_stream.write_ready(left) :]
        except BlockingIOError:
            await byte_stream.wait_writable()


async def read(byte_stream: QuicByteStream) -> bytes:
    """Return what has arrived, b"" at the end."""
    while True:
        await byte_stream.wait_readable()
        try:
            return byte_stream.read_ready(256 * 1024)
        except BlockingIOError:
            continue


# In the simulator.


class CubicPacer(QuicPacketPacer):
    """aioquic's own pacer, with the interface that our code uses."""

    datagram_bytes = 1200

    def begin(self, now: float) -> None: ...

    def settle(self, sent: int) -> None: ...


class Cubic(CubicCongestionControl):
    """aioquic's own congestion control, with the interface that our code uses."""

    rate = base_rtt = 0.0

    def nothing_more(self) -> None: ...


@contextmanager
def aioquic_s_own() -> Iterator[None]:
    """Replace our congestion control by CUBIC."""
    with (
        mock.patch.object(quic, "DelayControl", Cubic),
        mock.patch.object(quic, "Pacer", lambda _, size: CubicPacer(max_datagram_size=size)),
    ):
        yield


def punched(seed: int, seconds: float) -> float:
    """Return the fraction of its line's rate that a stream gets over a link whose path was
    punched.
    """
    world = World(seed, latency=0.0)

    async def main() -> float:
        async with punched_bulk(world, lossy_line(RTT_S, RATE, LOSS)) as bulk:
            before = bulk.received
            await trio.sleep(seconds)
            assert bulk.link.path_kind is PathKind.PUNCHED
            return (bulk.received - before) / seconds / RATE

    return float(world.run(main))


def share(seed: int, seconds: float) -> float:
    """Return the fraction of the link's rate that a fresh connection gets within `seconds`."""
    world = World(seed, latency=0.0)
    delay = RTT_S / 2
    up, down = PipeSpec(delay=delay, rate=RATE, loss=LOSS), PipeSpec(delay=delay, loss=LOSS)
    a, b = world.host("a", link=LinkSpec(up, down)), world.host("b")
    received = 0

    async def run_on(host: Host, work: Callable[[UdpPort], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            port = UdpPort(SimulatedHost(host, next(iter(PROFILES.values())), nursery))
            await nursery.start(port.run, ["0.0.0.0"], PORT)
            await work(port)

    async def accept(port: UdpPort) -> None:
        nonlocal received
        send, pipes = trio.open_memory_channel[QuicByteStream](1)
        port.on_byte_stream(send.send_nowait)
        byte_stream = await pipes.receive()
        byte_stream.trust()
        while data := await read(byte_stream):
            received += len(data)

    async def push(port: UdpPort) -> None:
        byte_stream = await port.dial((b.addresses()[0], PORT), timeout=5)
        byte_stream.trust()
        while True:
            await write(byte_stream, CHUNK)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            b.start_soon(nursery, run_on, b, accept)
            await trio.sleep(0.01)
            a.start_soon(nursery, run_on, a, push)
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()

    world.run(main)
    return received / seconds / RATE


# On loopback, in two processes.


def make_tls(seed: int, *, server: bool) -> Tls:
    host = RealHost()
    return Tls(Certificate.generate(Identity.generate(host), host), server=server)


async def shake(byte_stream: QuicByteStream, tls: Tls) -> None:
    while True:
        await write(byte_stream, tls.outgoing())
        if tls.established:
            return
        tls.feed(await read(byte_stream))


async def answer(byte_stream: QuicByteStream) -> None:
    """Serve one transfer: its first byte selects the kind; the reply is the CPU time."""
    byte_stream.trust()
    began, total = time.process_time(), 0
    first = byte_stream.read_ready(1)
    tls = make_tls(2, server=True) if first == b"t" else None
    if tls is not None:
        await shake(byte_stream, tls)
        total += len(tls.read())
    while piece := await read(byte_stream):
        data: Bytes = piece
        if tls is not None:
            tls.feed(data)
            data = tls.read()
        total += len(data)
    took = time.process_time() - began
    said: Bytes = json.dumps([took, total]).encode()
    if tls is not None:
        tls.write(said)
        said = tls.outgoing()
    await write(byte_stream, said)
    byte_stream.end()


async def serve() -> None:
    """Print the port, and end with the standard input."""
    port = UdpPort(RealHost())
    async with trio.open_nursery() as nursery:
        port.on_byte_stream(lambda byte_stream: nursery.start_soon(answer, byte_stream))
        print(await nursery.start(port.run, [LOOPBACK], 0), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def transfer(port: UdpPort, number: int, size: int, *, tls: bool) -> tuple[float, float]:
    """Return the CPU milliseconds per MB of both ends, and MB per second."""
    byte_stream = await port.dial((LOOPBACK, number), timeout=5)
    byte_stream.trust()
    began, wall = time.process_time(), time.perf_counter()
    await write(byte_stream, b"t" if tls else b"b")
    inner = make_tls(1, server=False) if tls else None
    if inner is not None:
        await shake(byte_stream, inner)
    for _ in range(size // len(CHUNK)):
        data: Bytes = CHUNK
        if inner is not None:
            inner.write(CHUNK)
            data = inner.outgoing()
        await write(byte_stream, data)
    byte_stream.end()
    arrived = bytearray()
    while piece := await read(byte_stream):
        arrived += piece
    said: Bytes = bytes(arrived)
    if inner is not None:
        inner.feed(said)
        said = inner.read()
    theirs, total = json.loads(bytes(said))
    cpu, wall = time.process_time() - began + theirs, time.perf_counter() - wall
    byte_stream.close()
    assert total == size, (total, size)
    return cpu * 1e3 / (size / 1e6), size / 1e6 / wall


async def on_loopback(child: subprocess.Popen[str], rounds: int) -> dict[str, float]:
    assert child.stdout is not None
    number = int(await trio.to_thread.run_sync(child.stdout.readline))
    port = UdpPort(RealHost())
    found: dict[str, float] = {}
    stick = Yardstick()
    async with trio.open_nursery() as nursery:
        await nursery.start(port.run, [LOOPBACK], 0)
        size = 256 * len(CHUNK)
        for name, tls in (("cpu", False), ("cpu_tls", True)):
            runs = []
            for _ in range(rounds + 1):
                runs.append(await transfer(port, number, size, tls=tls))
                stick.sample(20)
            runs = runs[1:]  # the first run warms up
            cpu = median(cpu for cpu, _ in runs)
            found[f"{name}_ms_per_mb"] = round(cpu, 1)
            found[f"{name}_reference_ms_per_mb"] = round(stick.reference_ms(cpu), 1)
            found[f"{name}_mb_per_s"] = round(median(rate for _, rate in runs), 1)
        nursery.cancel_scope.cancel()
    return found | {"reference_ms": round(stick.ms, 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds and rounds, under 30 s")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        trio.run(serve)
        return 0
    seeds, rounds = (range(1, 3), 3) if args.quick else (range(1, 6), 9)
    shares = [punched(seed, 10) for seed in seeds]
    bare = [share(seed, 10) for seed in seeds]
    with aioquic_s_own():
        cubic = share(1, 10)
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            cpu = trio.run(on_loopback, child, rounds)
        finally:
            child.kill()
    value = {"link": round(min(shares), 3), "cpu_per_mb": cpu["cpu_tls_reference_ms_per_mb"]}
    ok = value["link"] >= GOALS["link"] and value["cpu_per_mb"] <= GOALS["cpu_per_mb"]
    raw: dict[str, object] = {"shares": [round(each, 3) for each in shares], "seeds": len(shares)}
    raw |= {"bare": round(min(bare), 3), "cubic": round(cubic, 3), **cpu}
    print(json.dumps({"name": "udp_bulk", "value": value, "goal": GOALS, "ok": ok, **raw}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
