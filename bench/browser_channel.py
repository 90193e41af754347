"""Cost of a data channel: bulk and round trips between two ends of ours, over loopback UDP.

One process, so that its CPU time is that of both ends. There is no goal: browsers are clients, and
this is the price of serving them.
"""

import argparse
import importlib.util
import json
import sys
import time
from functools import partial
from statistics import median

import trio

from shoal.transport.browser.channel import ChannelByteStream
from shoal.transport.host.datagrams import Datagrams
from shoal.transport.host.real import RealHost

MEASURES = ("transport",)

LOOPBACK = "127.0.0.1"
CHUNK = bytes(64 * 1024)


async def write(byte_stream: ChannelByteStream, size: int) -> None:
    left = size
    while left:
        await byte_stream.wait_writable()
        left -= byte_stream.write_ready(memoryview(CHUNK)[:left])


async def read(byte_stream: ChannelByteStream, size: int) -> None:
    left = size
    while left:
        await byte_stream.wait_readable()
        left -= len(byte_stream.read_ready(1 << 18))


async def bulk(
    byte_stream: ChannelByteStream, other: ChannelByteStream, size: int
) -> tuple[float, float]:
    """Return the CPU milliseconds per MB of both ends, and MB/s."""
    cpu, wall = time.process_time(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, byte_stream, size)
        await read(other, size)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu * 1e3 / (size / 1e6), size / 1e6 / wall


async def round_trips(
    byte_stream: ChannelByteStream, other: ChannelByteStream, count: int
) -> float:
    """Return the milliseconds of the median round trip, 128 bytes in each direction."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await write(byte_stream, 128)
        await read(other, 128)
        await write(other, 128)
        await read(byte_stream, 128)
        times.append(time.perf_counter() - began)
    return median(times) * 1e3


async def measure(rounds: int) -> dict[str, float]:
    from shoal.transport.browser.bridge import Carrier, FarEnd, open_bridge

    host = RealHost()
    a, b = [await host.datagrams(LOOPBACK, 0) for _ in range(2)]

    async def pump(port: Datagrams, carrier: Carrier) -> None:
        while True:
            for data, _ in await port.receive():
                carrier.take(data)

    def send(port: Datagrams, to: Datagrams, data: bytes) -> None:
        port.send(data, (LOOPBACK, to.port))

    async with open_bridge() as bridge, trio.open_nursery() as nursery:
        ends = []
        for port, to, server in ((a, b, True), (b, a, False)):
            carrier = Carrier(
                bridge,
                server=server,
                far=FarEnd(bridge.fingerprint, 5000),
                send=partial(send, port, to),
                settled=lambda: None,
            )
            ends.append(carrier)
            nursery.start_soon(pump, port, carrier)
            nursery.start_soon(carrier.run)
        began = time.perf_counter()
        for carrier in ends:
            await carrier.opened.wait()
        connect = time.perf_counter() - began
        one, other = (carrier.byte_stream for carrier in ends)
        rtt = await round_trips(one, other, 200)
        runs = [await bulk(one, other, 4_000_000) for _ in range(rounds)]
        nursery.cancel_scope.cancel()
    a.close()
    b.close()
    return {
        "connect_ms": round(connect * 1e3, 1),
        "rtt_ms": round(rtt, 3),
        "cpu_ms_per_mb": round(median(cpu for cpu, _ in runs), 1),
        "mb_per_s": round(median(rate for _, rate in runs), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    args = parser.parse_args()
    if importlib.util.find_spec("aiortc") is None:
        said = {"name": "browser_channel", "ok": True, "skipped": "`pip install 'shoal[browser]'`"}
        print(json.dumps(said))
        return 0
    value = trio.run(measure, 2 if args.quick else 7)
    print(json.dumps({"name": "browser_channel", "value": value, "goal": {}, "ok": True}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
