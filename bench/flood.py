"""Speed of honest calls while a stranger floods the node that answers them.

Three processes run in a network namespace of their own, on its loopback: an endpoint with its UDP
port, which is flooded; a linked peer on the same core, which calls it as fast as it answers; and a
flooder on another core, as fast as that core allows, from random addresses of 10.0.0.0/8, so that
no subnet's limit is reached. Kinds, each alone: `open` TCP connections without data, `half` with a
ClientHello and no more, `whole` handshakes under throw-away identities, `udp` first packets of QUIC
at 100 Mbit/s. Windows with and without the flood alternate, once the burst that a node allows for
new peers is used up. `value` is the minimum, over the kinds, of the median ratio of calls per
second; goal 0.9. The ratio of the flooded process's CPU per call is beside each: on a busy machine
it says more.
"""

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from statistics import median

import trio
from lane import make_endpoint

from shoal.transport.address import Address
from shoal.transport.bytestream import TcpByteStream
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.secured import PathLost, SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link
from shoal.transport.rates import ByteBudget
from shoal.transport.udp.connection import UdpConnection, configuration
from shoal.transport.udp.defaults import UdpLimits
from shoal.transport.udp.port import UdpPort

MEASURES = ("transport",)

GOAL = 0.9
KINDS = ("open", "half", "whole", "udp")
VICTIM, HONEST = "10.255.0.1", "10.255.1.1"
HELD = 4000  # connections of the flooder: a new one resets the oldest
AT_ONCE = 64  # handshakes at a time
UDP_PER_S = 10_000
BURST_S = 12.0  # by then the burst is used up, at one in 10 ms
SETTLE_S = 0.3
PAYLOAD = bytes(128)


# The process that is flooded.


async def serve() -> None:
    """Print the ports, and end with the standard input."""
    endpoint = make_endpoint()
    endpoint.handle("echo", lambda call: Reply(payload=call.payload))
    endpoint.handle("cpu", _cpu)
    udp = UdpPort(RealHost())
    async with trio.open_nursery() as nursery:
        port = await nursery.start(endpoint.run, VICTIM, 0)
        print(port, await nursery.start(udp.run, [VICTIM], 0), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


def _cpu(_: Call) -> Reply:
    return Reply({"s": time.process_time()})


# The process that floods.


def stranger() -> str:
    return f"10.{random.randrange(254)}.{random.randrange(256)}.{random.randrange(1, 255)}"


def knock(port: int) -> None:
    """Open TCP connections and send nothing."""
    held: deque[socket.socket] = deque()
    while True:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.setblocking(False)
        with suppress(OSError):
            sock.bind((stranger(), 0))
            sock.connect_ex((VICTIM, port))
        held.append(sock)
        if len(held) > HELD:
            held.popleft().close()


async def visit(port: int, names: list[Certificate], *, whole: bool) -> None:
    """Do as much of a handshake as costs the node, then leave."""
    stream = await trio.open_tcp_stream(VICTIM, port, local_address=stranger())
    tls = Tls(random.choice(names), server=False)
    path = SecureStream(TcpByteStream(stream), tls)
    try:
        if whole:
            await path.handshake()
        else:
            await stream.send_all(tls.outgoing())
            await stream.receive_some()
    finally:
        path.close()


async def visits(port: int, *, whole: bool) -> None:
    """Run many visits in parallel."""
    host = RealHost()
    names = [Certificate.generate(Identity.generate(host), host) for _ in range(64)]

    async def again() -> None:
        while True:
            with suppress(OSError, PathLost, trio.BrokenResourceError), trio.move_on_after(1):
                await visit(port, names, whole=whole)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(again)


def first_packets(port: int) -> None:
    """Send `UDP_PER_S` first packets per second: 512 different ones, from 64 addresses."""
    limits = UdpLimits()
    packets = []
    for _ in range(512):
        made = UdpConnection(configuration(None, limits), limits, ByteBudget(limits.extra_bytes))
        made.begin((VICTIM, port), None, time.monotonic())  # type: ignore[arg-type]
        packets.append(bytes(made.transmit(time.monotonic())[0][0]))
    sockets = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(64)]
    for sock in sockets:
        sock.bind((stranger(), 0))
    while True:
        time.sleep(0.005)
        for _ in range(UDP_PER_S // 200):
            random.choice(sockets).sendto(random.choice(packets), (VICTIM, port))


def flood(kind: str, tcp: int, udp: int) -> None:
    print("ready", flush=True)
    if kind == "open":
        knock(tcp)
    elif kind == "udp":
        first_packets(udp)
    else:
        trio.run(partial(visits, tcp, whole=kind == "whole"))


# The process that calls and measures.


@contextmanager
def child(core: int, *args: str) -> Iterator[subprocess.Popen[str]]:
    command = ["taskset", "-c", str(core), sys.executable, __file__, "--inside", *args]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def window(link: Link, seconds: float) -> tuple[float, float]:
    """Return calls per second, and the part of a core that the other end used besides them."""
    cpu = float(str((await link.call("cpu", timeout=10)).header["s"]))
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await link.call("echo", payload=PAYLOAD, timeout=10)
        done += 1
    took = time.perf_counter() - began
    cpu = float(str((await link.call("cpu", timeout=10)).header["s"])) - cpu
    return done / took, cpu / took


async def under(link: Link, kind: str, ports: list[str], rounds: int) -> dict[str, float]:
    """Return one kind of flood's ratios: calls with it to calls without, and the CPU per call."""
    ratios, costs = [], []
    with child(1, "--flood", kind, *ports) as flooder:
        assert flooder.stdout is not None
        flooder.stdout.readline()
        await trio.sleep(BURST_S)
        for _ in range(rounds):
            found = []
            for sign in (signal.SIGCONT, signal.SIGSTOP):
                flooder.send_signal(sign)
                await trio.sleep(SETTLE_S)
                found.append(await window(link, 1.0))
            (calls, cpu), (calm, calm_cpu) = found
            ratios.append(calls / calm)
            costs.append((cpu / calls) / (calm_cpu / calm))
    return {kind: round(median(ratios), 3), f"{kind}_cpu_per_call": round(median(costs), 3)}


async def measure(kinds: list[str], rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind in kinds:
        with child(0, "--serve") as victim:
            assert victim.stdout is not None
            ports = victim.stdout.readline().split()
            endpoint = make_endpoint()
            async with trio.open_nursery() as nursery:
                await nursery.start(endpoint.run, HONEST, 0)
                link = await endpoint.dial(Address(VICTIM, int(ports[0])), timeout=10)
                await window(link, 1.0)
                found |= await under(link, kind, ports, rounds)
                assert link.alive
                nursery.cancel_scope.cancel()
    return found


def enter(args: list[str]) -> int:
    """Run this script again in a namespace, where it does no harm."""
    network = "ip link set lo up && ip route add local 10.0.0.0/8 dev lo && ulimit -n 16384 && "
    command = ["unshare", "-rn", "sh", "-c", network + 'exec "$@"', "sh"]
    return subprocess.run(
        [*command, sys.executable, __file__, "--inside", *args], check=False
    ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, about 100 s")
    parser.add_argument("--kind", choices=KINDS, help="one alone")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--flood", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        return enter(sys.argv[1:])
    if args.serve:
        trio.run(serve)
        return 0
    if args.flood:
        flood(args.flood[0], int(args.flood[1]), int(args.flood[2]))
        return 0
    os.sched_setaffinity(0, {0})
    kinds = [args.kind] if args.kind else list(KINDS)
    found = trio.run(measure, kinds, 4 if args.quick else 10)
    value = min(found[kind] for kind in kinds)
    result = {"name": "flood", "value": value, "goal": GOAL, "ok": value >= GOAL, **found}
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
