"""A blob of 256 MiB from one provider, compared with a lower bound and with Lattica's Bitswap.

Loopback, two processes per side, interleaved round by round; each figure is the median over the
rounds, MiB/s by elapsed time. Ours: `ChunkExchange.fetch_blob` of fresh random bytes into an empty
library on disk, every chunk verified, all of it synced when the clock stops. Bound: the minimum for
a verified copy over the same link, measured in the same run. The provider reads a file and sends it
as one stream, reading ahead; the getter hashes each MiB with SHA-256 and writes it to a file of its
own, in threads, while it receives the next, and syncs them at the end. The bound has no names,
requests, bookkeeping or other providers. Lattica 1.0.21's: as many blocks of 1 MiB by `get_block`
with 1, 4 and 16 threads in turn; the fastest counts. `value` has the two ratios; goals: 0.9 of the
bound, and faster than Lattica.

Further figures: `of_one_file` is the ratio to the same bound with one file instead of one per MiB,
which no store that serves single chunks after a crash can reach. `of_raw` is the ratio to as many
bytes over one stream that are dropped. `sha256_cpu_ms_per_mib` is the cost of verifying alone: if
both processes keep all cores busy, no verified copy can be as fast as the raw stream.

Lattica gets an environment of its own below the cache folder, unless --lattica or
SHOAL_BENCH_LATTICA names a Python that has it.
"""

import argparse
import hashlib
import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import trio
from lane import make_endpoint
from rpc_vs_lattica import LOOPBACK, started
from worlds import others

from shoal.dht.content.library import Library
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.host.real import RealHost
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream

MEASURES = ("dht", "transport", "bench/peers/bitswap_side.py")

GOALS = {"bound": 0.9, "lattica": 1.0}
SIDE = Path(__file__).parent / "peers" / "bitswap_side.py"
MIB = 2**20
PIECE = bytes(256 * 1024)
SIDES = ("raw", "one_file", "bound", "blob")
THREADS = (1, 4, 16)
AHEAD = 4  # MiB that are read before they are sent, or hashed and written while receiving


# The provider's process.


async def hold(folder: Path) -> None:
    """Print the port, and end with the standard input."""
    host, endpoint = RealHost(), make_endpoint()
    library = Library(host, folder / "models")
    await library.open()
    ChunkExchange(host, endpoint, library)

    async def make(call: Call) -> Reply:
        """Make a fresh blob of the given size."""
        path = folder / "file"
        await host.offload(path.write_bytes, os.urandom(int(str(call.header["size"]))))
        return Reply({"root": await library.add_blob(path)})  # the file stays for `least`

    async def send(incoming: IncomingStream) -> None:
        for _ in range(int(str(incoming.header["size"])) // len(PIECE)):
            await incoming.stream.send(PIECE)
        await incoming.stream.finish()
        await incoming.stream.receive(1)

    async def least(incoming: IncomingStream) -> None:
        """The file, each MiB read while those before it are sent."""
        size = int(str(incoming.header["size"]))
        put, get = trio.open_memory_channel[bytes](AHEAD)

        async def read() -> None:
            async with put:
                for at in range(0, size, MIB):
                    await put.send(await host.offload(os.pread, file, MIB, at))

        file = os.open(folder / "file", os.O_RDONLY)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                async for data in get:
                    await incoming.stream.send(data)
        finally:
            os.close(file)
        await incoming.stream.finish()
        await incoming.stream.receive(1)

    endpoint.handle("make", make)
    endpoint.handle("cpu", lambda call: Reply({"s": time.process_time()}))
    endpoint.handle_stream("raw", send)
    endpoint.handle_stream("least", least)
    async with trio.open_nursery() as nursery:
        print(await nursery.start(endpoint.run, LOOPBACK, 0), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


# The getter's process.


class Sink:
    """Hashes and writes each MiB, bypassing the cache if the disk allows it."""

    def __init__(self, folder: Path, *, apart: bool) -> None:
        self.folder = folder
        self.apart = apart
        self.digests: dict[int, bytes] = {}
        self.files: dict[int, int] = {}  # descriptors, by the offset where their bytes begin

    def keep(self, at: int, data: mmap.mmap) -> None:
        self.digests[at] = hashlib.sha256(data).digest()
        if self.apart:
            self.open(at)
        begin = at if self.apart else 0
        os.pwrite(self.files[begin], data, at - begin)

    def open(self, begin: int) -> None:
        """Open a file for the bytes from `begin` on."""
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_DIRECT", 0)
        self.files[begin] = os.open(self.folder / f"{begin:x}", flags)

    def sync(self) -> None:
        """Sync and close each file, under its name."""
        with ThreadPoolExecutor(AHEAD) as pool:
            list(pool.map(os.fsync, self.files.values()))
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        for file in (*self.files.values(), folder):
            os.close(file)


class Ours:
    """The getting end of one link."""

    def __init__(self, endpoint: Endpoint, link: Link, folder: Path) -> None:
        self.endpoint = endpoint
        self.link = link
        self.folder = folder
        # seconds of both processes
        self.cpu: dict[str, list[float]] = {name: [] for name in SIDES}

    async def _processors(self) -> float:
        there = await self.link.call("cpu", timeout=10)
        return float(str(there.header["s"])) + time.process_time()

    async def raw(self, size: int) -> float:
        cpu, began = await self._processors(), time.perf_counter()
        stream = await self.link.open_stream("raw", {"size": size})
        got = 0
        while data := await stream.receive(len(PIECE)):
            got += len(data)
        took = time.perf_counter() - began
        assert got == size
        await stream.finish()
        self.cpu["raw"].append(await self._processors() - cpu)
        return took

    async def bound(self, size: int, name: str) -> float:
        """The file that `blob` got, hashed and written as it comes: `bound` to a file for each
        MiB, `one_file` to one."""
        folder, sink = self.folder / "least", Sink(self.folder / "least", apart=name == "bound")
        spare = [mmap.mmap(-1, MIB) for _ in range(2 * AHEAD)]
        room, free = trio.CapacityLimiter(AHEAD), trio.Semaphore(2 * AHEAD)

        async def keep(at: int, data: mmap.mmap) -> None:
            await trio.to_thread.run_sync(sink.keep, at, data, limiter=room)
            spare.append(data)
            free.release()

        folder.mkdir()
        if not sink.apart:
            sink.open(0)
        cpu, began = await self._processors(), time.perf_counter()
        stream = await self.link.open_stream("least", {"size": size})
        async with trio.open_nursery() as nursery:
            for at in range(0, size, MIB):
                await free.acquire()
                whole, got = spare.pop(), 0
                while got < MIB:
                    data = await stream.receive(min(len(PIECE), MIB - got))
                    assert data
                    whole[got : got + len(data)] = data
                    got += len(data)
                nursery.start_soon(keep, at, whole)
            assert not await stream.receive(1)
        await trio.to_thread.run_sync(sink.sync)
        took = time.perf_counter() - began
        assert len(sink.digests) == size // MIB
        await stream.finish()
        self.cpu[name].append(await self._processors() - cpu)
        shutil.rmtree(folder)
        return took

    async def blob(self, size: int, number: int) -> float:
        host = RealHost()
        root = str((await self.link.call("make", {"size": size}, timeout=120)).header["root"])
        library = Library(host, self.folder / str(number))
        await library.open()
        exchange = ChunkExchange(host, self.endpoint, library)
        cpu, began = await self._processors(), time.perf_counter()
        report = await exchange.fetch_blob(root, lambda: [self.link.peer])
        took = time.perf_counter() - began
        assert report.size == size
        self.cpu["blob"].append(await self._processors() - cpu)
        return took


class Bitswap:
    """Lattica's two processes."""

    def __init__(self, holder: subprocess.Popen[str], getter: subprocess.Popen[str]) -> None:
        self.holder = holder
        self.getter = getter

    def get(self, blocks: int, threads: int) -> float:
        names = _ask(self.holder, str(blocks))
        return float(_ask(self.getter, f"{threads} {names}"))


def _ask(child: subprocess.Popen[str], line: str) -> str:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


@contextmanager
def bitswap(python: str) -> Iterator[Bitswap]:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with started(python, str(SIDE), "hold", str(port)) as holder:
        assert holder.stdout is not None
        address = holder.stdout.readline().strip()
        with started(python, str(SIDE), "get", address) as getter:
            assert getter.stdout is not None and getter.stdout.readline() == "ready\n"
            yield Bitswap(holder, getter)


async def compare(
    child: subprocess.Popen[str], theirs: Bitswap, folder: Path, rounds: int, size: int
) -> dict[str, list[float]]:
    """Return the seconds of every round by name; the first round warms up and is dropped."""
    assert child.stdout is not None
    port = int(await trio.to_thread.run_sync(child.stdout.readline))
    endpoint = make_endpoint()
    found: dict[str, list[float]] = {name: [] for name in (*SIDES, "lattica")}
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, LOOPBACK, 0)
        link = await endpoint.dial(Address(LOOPBACK, port), timeout=10)
        ours = Ours(endpoint, link, folder)
        for number in range(rounds + 1):
            found["raw"].append(await ours.raw(size))
            found["blob"].append(await ours.blob(size, number))
            for name in ("bound", "one_file"):
                found[name].append(await ours.bound(size, name))
            # Our loop stands still in the meantime, on purpose.
            found["lattica"].append(theirs.get(size // MIB, THREADS[number % len(THREADS)]))
        nursery.cancel_scope.cancel()
    found = {name: seconds[1:] for name, seconds in found.items()}
    return found | {f"{name}_cpu": seconds[1:] for name, seconds in ours.cpu.items()}


def sha256_cost() -> float:
    """Return the CPU milliseconds per MiB, the best of several."""
    data, costs = os.urandom(MIB), []
    for _ in range(32):
        began = time.process_time()
        hashlib.sha256(data).digest()
        costs.append(time.process_time() - began)
    return min(costs) * 1000


def figures(found: dict[str, list[float]], size: int) -> dict[str, object]:
    mib = size / MIB
    of = {
        name: median(a / b for a, b in zip(found[name], found["blob"], strict=True))
        for name in SIDES[:-1]
    }
    ratios = {"bound": of["bound"]}
    shown: dict[str, object] = {
        f"{name}_mib_per_s": round(mib / median(found[name]), 1) for name in SIDES
    }
    shown |= {f"of_{name}": round(of[name], 3) for name in ("raw", "one_file")}
    for name in SIDES:
        shown[f"{name}_cpu_ms_per_mib"] = round(median(found[f"{name}_cpu"]) / mib * 1000, 2)
    shown["sha256_cpu_ms_per_mib"] = round(sha256_cost(), 2)
    by_threads = {
        threads: [
            seconds
            for number, seconds in enumerate(found["lattica"], 1)
            if THREADS[number % len(THREADS)] == threads
        ]
        for threads in THREADS
    }
    best = min(median(seconds) for seconds in by_threads.values() if seconds)
    shown["lattica_mib_per_s"] = round(mib / best, 1)
    ratios["lattica"] = best / median(found["blob"])
    value = {name: round(ratio, 3) for name, ratio in ratios.items()}
    ok = set(value) == set(GOALS) and all(value[name] >= GOALS[name] for name in GOALS)
    return {"name": "blob_vs_lattica", "value": value, "goal": GOALS, "ok": ok, **shown}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="128 MiB, fewer rounds")
    others.option(parser, "lattica")
    parser.add_argument("--hold", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        trio.run(hold, args.hold)
        return 0
    python = others.python("lattica", args.lattica)
    size, rounds = (128 * MIB, 3) if args.quick else (256 * MIB, 6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(sys.executable, __file__, "--hold", str(folder)) as child:
            with bitswap(python) as theirs:
                found = trio.run(compare, child, theirs, folder, rounds, size)
    result = figures(found, size)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
