"""Cost of 200 idle links for their node: CPU, and memory after 1 MiB in each direction on each.

Loopback, two processes: 200 small endpoints in one dial the endpoint of the other, which is
measured. CPU is its time divided by the elapsed time while only pings pass, in parts of one core of
the reference machine (`yardstick.py`), the median of several windows; goal 0.01. Memory is the
growth of its resident set since before the first link, divided by 200, half a minute after the last
byte, when the node has given freed memory back; goal 120 kB. `bytes_per_link_at_once` is the same
right after the last byte.
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import trio
from lane import make_endpoint
from yardstick import Yardstick

from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream

MEASURES = ("transport",)

GOALS = {"cpu_share": 0.01, "bytes_per_link": 120_000}
LOOPBACK = "127.0.0.1"
LINKS = 200
EACH_WAY = 1024 * 1024
CHUNK = bytes(64 * 1024)
SETTLE_S = 33.0
WINDOWS = 6


async def echo(incoming: IncomingStream) -> None:
    """Take 1 MiB and send as much back."""
    stream = incoming.stream
    while await stream.receive(len(CHUNK)):
        pass
    for _ in range(EACH_WAY // len(CHUNK)):
        await stream.send(CHUNK)
    await stream.finish()


# The process that dials.


async def use(link: Link) -> None:
    stream = await link.open_stream("echo")
    for _ in range(EACH_WAY // len(CHUNK)):
        await stream.send(CHUNK)
    await stream.finish()
    got = 0
    while data := await stream.receive(len(CHUNK)):
        got += len(data)
    assert got == EACH_WAY


async def dial_all(port: int, links: int) -> None:
    """Obey the standard input: dial on the first line, use the links on the second, end with it."""
    async with trio.open_nursery() as nursery:
        await trio.to_thread.run_sync(sys.stdin.readline)
        found = []
        for _ in range(links):
            endpoint = make_endpoint()
            await nursery.start(endpoint.run, LOOPBACK, 0)
            found.append(await endpoint.dial(Address(LOOPBACK, port), timeout=10))
        print("up", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        for link in found:
            await use(link)
        print("used", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


# The process that is measured.


def resident(*, trim: bool) -> int:
    """Return the bytes of this process in memory."""
    gc.collect()
    if trim:
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def busy(seconds: float) -> float:
    """Return the part of a core that this process used."""
    cpu, began = time.process_time(), time.perf_counter()
    await trio.sleep(seconds)
    return (time.process_time() - cpu) / (time.perf_counter() - began)


async def say(child: subprocess.Popen[str], line: str, answer: str) -> None:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()
    assert (await trio.to_thread.run_sync(child.stdout.readline)).strip() == answer


async def measure(links: int, seconds: float) -> dict[str, object]:
    hub: Endpoint = make_endpoint()
    hub.handle_stream("echo", echo)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(hub.run, LOOPBACK, 0)
        command = [sys.executable, __file__, "--dial", str(port), str(links)]
        with subprocess.Popen(  # noqa: ASYNC220
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                found = await _measure(hub, child, links, seconds)
            finally:
                child.kill()
        nursery.cancel_scope.cancel()
    return found


async def _measure(
    hub: Endpoint, child: subprocess.Popen[str], links: int, seconds: float
) -> dict[str, object]:
    before = resident(trim=True)
    await say(child, "dial", "up")
    fresh = resident(trim=True) - before
    await say(child, "use", "used")
    at_once = resident(trim=False) - before
    await trio.sleep(SETTLE_S)
    used = resident(trim=False) - before
    shares, yardstick = list[float](), Yardstick()
    for _ in range(WINDOWS):
        yardstick.sample(5)
        shares.append(await busy(seconds / WINDOWS))
    share = median(shares)
    assert len(hub.links()) == links
    return {
        "cpu_share": round(yardstick.reference_ms(share), 5),
        "cpu_share_here": round(share, 5),
        "reference_ms": round(yardstick.ms, 3),
        "bytes_per_link": round(used / links),
        "bytes_per_link_unused": round(fresh / links),
        "bytes_per_link_at_once": round(at_once / links),
        "links": links,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a shorter run, under 50 s")
    parser.add_argument("--dial", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.dial:
        trio.run(dial_all, *args.dial)
        return 0
    found = trio.run(measure, LINKS, 10.0 if args.quick else 60.0)
    value = {name: found[name] for name in GOALS}
    ok = all(float(str(value[name])) <= goal for name, goal in GOALS.items())
    print(json.dumps({"name": "links_idle", "value": value, "goal": GOALS, "ok": ok, **found}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
