"""Programs whose traces are compared, each in a process of its own.

    python -m tests.netsim.workload NAME SEED [--leak NAME] [--idle] [--exact] [--trace FILE]

prints a JSON object: the digest of the trace, and one of each host's own records.
"""

import argparse
import ctypes
import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import trio
from trio import socket

from shoal.netsim.determinism.reexec import reexec
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World
from tests.netsim.serving import serving_world
from tests.netsim.swarm import Leak, swarm_world

HOSTS = 20


class Hidden:
    """The real clock and entropy, where the simulator does not replace them."""

    clock = staticmethod(time.perf_counter)
    computed = staticmethod(time.process_time)
    entropy = staticmethod(os.urandom)


BEGAN = time.perf_counter()


def pressed() -> int:
    """Return how much slower than alone the process has run so far, in thousandths: fine enough to
    show on a machine that is loaded anyway.
    """
    return int(1000 * (Hidden.clock() - BEGAN) / max(Hidden.computed(), 0.01))


MALLOC = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
"""The address of a function of the C library. Unlike the addresses of objects on the heap, it
depends only on address randomisation.
"""


def located(name: str) -> int:
    """Return a number below 256 from a host's name and that address."""
    return sha256(f"{MALLOC} {name}".encode()).digest()[0]


LEAKS: dict[str, Leak] = {
    # A small number that exposes a property of the machine.
    "time": lambda host: int(Hidden.clock() * 1e6) % 50,
    "load": lambda host: pressed() % 50,
    "entropy": lambda host: Hidden.entropy(1)[0] % 50,
    "hash": lambda host: int(next(iter({f"name {n}" for n in range(50)})).split()[1]),
    "idle": lambda host: len(host.network.streams._streams) % 50,
    "address": lambda host: located(host.name) % 50,
}


def echo_world(leak: Leak | None, seed: int, trace: Trace) -> tuple[World, Any]:
    """Return hosts on lossy links, half of them behind a router, that ask each other by name.

    With a `leak` each datagram is longer by its value in bytes.
    """
    world = World(seed, trace=trace)
    luck = Random(seed)
    gateway = world.gateway("router", "linux-drop")
    for number in range(HOSTS):
        up = PipeSpec(luck.uniform(0.005, 0.05), 0.002, 1.25e6, loss=0.01)
        behind = gateway if number % 2 else None
        world.host(f"h{number}", behind=behind, link=LinkSpec(up, PipeSpec(rate=6e6)))

    async def node(host: Any) -> None:
        random = host.streams.get(host.name, "app")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            await sock.bind(("0.0.0.0", 4001))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer, sock)
                nursery.start_soon(trio.serve_tcp, echo, 4002)
                for _ in range(15):
                    await trio.sleep(random.random())
                    size = random.randrange(9, 900) + (leak(host) if leak is not None else 0)
                    to = f"h{random.randrange(HOSTS // 2) * 2}"
                    await sock.sendto(b"Q" + bytes(size), (to, 4001))
                    if random.random() < 0.2:
                        nursery.start_soon(ask, to, bytes(50 * size))
                await trio.sleep(1)
                nursery.cancel_scope.cancel()

    async def echo(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in stream:
                await stream.send_all(data)

    async def ask(to: str, data: bytes) -> None:
        gone = OSError, trio.BrokenResourceError, trio.ClosedResourceError
        with trio.move_on_after(5), suppress(*gone):  # others have finished before
            async with await trio.open_tcp_stream(to, 4002) as stream:
                await stream.send_all(data)
                await stream.send_eof()
                async for _ in stream:
                    pass

    async def answer(sock: Any) -> None:
        while True:
            data, source = await sock.recvfrom(2000)
            if data.startswith(b"Q"):
                await sock.sendto(b"R" + data[1:], source)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for host in world.hosts.values():
                if host.name != "idle":
                    host.start_soon(nursery, node, host)

    return world, main


WORKLOADS = {"echo": echo_world, "daemons": swarm_world, "serving": serving_world}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--leak", choices=LEAKS)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--trace", type=Path)
    args = parser.parse_args()
    if args.exact:
        reexec()
    file = args.trace.open("wb") if args.trace else None
    trace = Trace(keep=True, file=file)
    leak = LEAKS[args.leak] if args.leak else None
    world, program = WORKLOADS[args.name](leak, args.seed, trace)
    if args.idle:
        world.host("idle")
    world.run(program)
    result = {"digest": trace.digest, "count": trace.count, "hosts": by_host(trace)}
    if file is not None:
        file.close()
    json.dump(result, sys.stdout)


def by_host(trace: Trace) -> dict[str, str]:
    """Return a digest for each host of its own records."""
    digests: dict[str, Any] = {}
    for record in trace.records:
        digests.setdefault(record[2], hashlib.blake2b()).update(repr(record).encode())
    return {name: digest.hexdigest() for name, digest in digests.items()}


if __name__ == "__main__":
    main()
