"""The lane compared with Lattica 1.0.21 on TCP, and its bulk with a bare `trio.SSLStream`.

Loopback, two processes per side, interleaved round by round; each figure is the median over the
rounds of ours / theirs (of their speeds: more is faster), by wall clock; the same by CPU of both
processes is beside it. Both sides of a pair do the same: 128-byte calls one in flight (echoed) and
64 in flight (counted), 256 KiB calls 64 in flight (counted), 128 MiB one way over a stream. `value`
is how far the worst of the five ratios is from its goal (1: reached).

Lattica gets an environment of its own below the cache folder, unless --lattica or
SHOAL_BENCH_LATTICA names a Python that has it.
"""

import argparse
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import trio
from lane import Bare, connect_bare, count_bytes, make_certificate, make_endpoint, receive_exactly
from worlds import others

from shoal.transport.address import Address
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link

MEASURES = ("transport", "bench/peers/lattica_side.py")

GOALS = {"one": 2.5, "many": 2.5, "large": 2.0, "stream": 4.0, "bare": 0.85}
SIDE = Path(__file__).parent / "peers" / "lattica_side.py"
LOOPBACK = "127.0.0.1"
SMALL = os.urandom(128)
LARGE = os.urandom(256 * 1024)
CHUNK = bytes(64 * 1024)
IN_FLIGHT = 64
STREAM_BYTES = 128 * 1024 * 1024
SIZES = {"one": 2500, "many": 15000, "large": 1500, "stream": STREAM_BYTES, "bare": STREAM_BYTES}
UNITS = {"one": 1, "many": 1, "large": 1, "stream": 1e6, "bare": 1e6}


@dataclass(frozen=True)
class Cost:
    """Elapsed seconds, and CPU seconds of both processes."""

    wall: float
    cpu: float


# Our lane, and the bare stream beside it.


async def serve_bare(stream: Bare) -> None:
    """Receive and drop rounds of 128 MiB."""
    await stream.receive_some(1)
    while await receive_exactly(stream, STREAM_BYTES):
        await stream.send_all(b"!")


async def serve(certificate: Path) -> None:
    """Run both servers; print their ports, and end with the standard input."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate)
    endpoint = make_endpoint()
    endpoint.handle("echo", lambda call: Reply(payload=call.payload))
    endpoint.handle("count", lambda call: Reply({"n": len(call.payload)}))
    endpoint.handle("cpu", _cpu)
    endpoint.handle_stream("count", count_bytes)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(endpoint.run, LOOPBACK, 0)
        listeners = await nursery.start(trio.serve_ssl_over_tcp, serve_bare, 0, context)
        bare = next(iter(listeners)).transport_listener.socket.getsockname()[1]
        print(port, bare, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


def _cpu(_: Call) -> Reply:
    return Reply({"s": time.process_time()})


@dataclass
class Ours:
    """The lane's four kinds of work, and the bare stream's one."""

    link: Link
    bulk: Bare

    async def one(self, calls: int) -> None:
        for _ in range(calls):
            await self.link.call("echo", payload=SMALL, timeout=10)

    async def many(self, calls: int, payload: bytes = SMALL) -> None:
        left = iter(range(calls))

        async def caller() -> None:
            for _ in left:
                await self.link.call("count", payload=payload, timeout=30)

        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(caller)

    async def large(self, calls: int) -> None:
        await self.many(calls, LARGE)

    async def stream(self, size: int) -> None:
        stream = await self.link.open_stream("count")
        for _ in range(size // len(CHUNK)):
            await stream.send(CHUNK)
        await stream.finish()
        assert await stream.receive(100) == str(size).encode()

    async def bare(self, size: int) -> None:
        for _ in range(size // len(CHUNK)):
            await self.bulk.send_all(CHUNK)
        await receive_exactly(self.bulk, 1)

    async def measure(self, name: str) -> Cost:
        """Measure one round; the two calls that ask for the CPU time are about 0.2 ms of it."""
        work: Callable[[int], Awaitable[None]] = getattr(self, name)
        theirs = float(str((await self.link.call("cpu", timeout=10)).header["s"]))
        ours, began = time.process_time(), time.perf_counter()
        await work(SIZES[name])
        wall, ours = time.perf_counter() - began, time.process_time() - ours
        theirs = float(str((await self.link.call("cpu", timeout=10)).header["s"])) - theirs
        return Cost(wall, ours + theirs)


# Lattica's side.


@dataclass
class Lattica:
    """The calling process of Lattica's pair."""

    process: subprocess.Popen[str]

    def measure(self, name: str) -> Cost:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{name} {SIZES[name]}\n")
        self.process.stdin.flush()
        wall, cpu = map(float, self.process.stdout.readline().split())
        return Cost(wall, cpu)


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def lattica_pair(python: str) -> Iterator[Lattica]:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with started(python, str(SIDE), "serve", str(port)) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with started(python, str(SIDE), "call", address) as client:
            assert client.stdout is not None and client.stdout.readline() == "ready\n"
            yield Lattica(client)


# The comparison.


async def compare(
    child: subprocess.Popen[str], lattica: Lattica, rounds: int, names: list[str]
) -> dict[str, object]:
    """Return the figures; the first round of each kind warms up and is dropped."""
    assert child.stdout is not None
    words = (await trio.to_thread.run_sync(child.stdout.readline)).split()
    endpoint = make_endpoint()
    found: dict[str, object] = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, LOOPBACK, 0)
        link = await endpoint.dial(Address(LOOPBACK, int(words[0])), timeout=10)
        ours = Ours(link, await connect_bare(int(words[1]), b"b"))
        for name in names:
            pairs = []
            for number in range(rounds + 1):
                pairs.append(await _round(ours, lattica, name, ours_first=number % 2 == 0))
            found |= figures(name, pairs[1:])
        nursery.cancel_scope.cancel()
    return found


async def _round(ours: Ours, lattica: Lattica, name: str, *, ours_first: bool) -> tuple[Cost, Cost]:
    async def mine() -> Cost:
        return await ours.measure("stream" if name == "bare" else name)

    async def theirs() -> Cost:
        if name == "bare":
            return await ours.measure("bare")
        return lattica.measure(name)  # our loop stands still in the meantime, on purpose

    if ours_first:
        first = await mine()
        return first, await theirs()
    first = await theirs()
    return await mine(), first


def figures(name: str, pairs: list[tuple[Cost, Cost]]) -> dict[str, object]:
    """Return medians of both sides (per second, and CPU microseconds each), and of the rounds'
    ratios.
    """
    unit = SIZES[name] / UNITS[name]
    found: dict[str, object] = {}
    for side, costs in (("ours", [p[0] for p in pairs]), ("theirs", [p[1] for p in pairs])):
        found[f"{name}_{side}_per_s"] = round(median(unit / cost.wall for cost in costs), 1)
        found[f"{name}_{side}_cpu_us"] = round(median(cost.cpu / unit * 1e6 for cost in costs), 1)
    found[f"{name}_ratio_wall"] = round(median(p[1].wall / p[0].wall for p in pairs), 3)
    found[f"{name}_ratio_cpu"] = round(median(p[1].cpu / p[0].cpu for p in pairs), 3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 50 s")
    others.option(parser, "lattica")
    parser.add_argument("--only", nargs="*", choices=sorted(GOALS), help="some of the works")
    parser.add_argument("--serve", metavar="PEM", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        trio.run(serve, args.serve)
        return 0
    names = args.only or list(GOALS)
    python = others.python("lattica", args.lattica)
    with tempfile.TemporaryDirectory() as folder:
        certificate = str(make_certificate(Path(folder)))
        with started(sys.executable, __file__, "--serve", certificate) as child:
            rounds = 5 if args.quick else 15
            with lattica_pair(python) as lattica:
                found = trio.run(compare, child, lattica, rounds, names)
    print("units: calls/s and MB/s; CPU of both processes in µs per call and per MB")
    result = verdict(found, names)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def verdict(found: dict[str, object], names: list[str]) -> dict[str, object]:
    ratios = {name: float(str(found[f"{name}_ratio_wall"])) for name in names}
    value = min(ratios[name] / GOALS[name] for name in names)
    ok = value >= 1 and set(names) == set(GOALS)
    result = {"name": "rpc_vs_lattica", "value": ratios, "goal": GOALS, "ok": ok}
    return result | {"worst_over_goal": round(value, 3), **found}


if __name__ == "__main__":
    sys.exit(main())
