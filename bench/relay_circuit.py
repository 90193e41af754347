"""Cost of a circuit for the relay, and its speed compared with a direct connection.

Three processes on loopback: a relay, a target, and this one. The same secured stream carries 64 MiB
in one direction and 128-byte round trips, over TCP and over a circuit in turns; medians over the
rounds. `value` is the relay's CPU per MB in reference ms (`yardstick.py`); goal 3. `rate_ratio` is
circuit / direct by elapsed time: all three processes share the cores that the two of the direct
connection have to themselves, and the ends encrypt twice.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median

import trio
from yardstick import Yardstick

from shoal.transport.address import Address
from shoal.transport.bytestream import ByteStream, TcpByteStream
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.handshake.secured import PathLost, SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link
from shoal.transport.relay.client import RelayClient
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.relay.service import RelayService

MEASURES = ("transport",)

LOOPBACK = "127.0.0.1"
BYTES = 64 * 1024 * 1024
CHUNK = bytes(64 * 1024)
TURNS = 300
GOAL = 3.0  # reference ms per MB
BULK, PING = b"b", b"p"


@dataclass(frozen=True)
class Figures:
    """Figures of one kind: bytes per second, seconds per round trip, the relay's CPU seconds per
    MB.
    """

    rate: float
    round_trip: float
    cpu: float


def _cpu(_: Call) -> Reply:
    return Reply({"s": time.process_time()})


async def _cpu_of(link: Link) -> float:
    """Return the CPU seconds of the peer's process so far."""
    return float(str((await link.call("cpu", timeout=5)).header["s"]))


def an_endpoint(identity: Identity) -> Endpoint:
    endpoint = Endpoint(RealHost(), identity, admission=OpenSwarm())
    endpoint.handle("cpu", _cpu)
    return endpoint


async def relay() -> None:
    """Print the port and peer id, and end with the standard input."""
    identity = Identity.generate(RealHost())
    endpoint = an_endpoint(identity)
    RelayService(RealHost(), endpoint, RelayLimits(volunteer=True, rate=1 << 40))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(endpoint.run, LOOPBACK, 0)
        print(port, identity.peer, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def target(port: int, peer: str) -> None:
    """Reserve at the relay; print a TCP port of its own and its peer id."""
    host = RealHost()
    identity = Identity.generate(host)
    endpoint = an_endpoint(identity)
    client = RelayClient(host, endpoint)
    certificate = Certificate.generate(identity, host)

    async def serve(byte_stream: ByteStream) -> None:
        path = SecureStream(byte_stream, Tls(certificate, server=True, expect=None))
        try:
            await path.handshake()
            while what := await exactly(path, 1):
                await (swallow(path) if what == BULK else echo(path))
        except PathLost:
            pass
        path.close()

    async with trio.open_nursery() as nursery:
        client.on_circuit(lambda byte_stream, *_: nursery.start_soon(serve, byte_stream))
        await nursery.start(endpoint.run, LOOPBACK, 0)
        await nursery.start(client.run)
        client.offer([(PeerId(peer), Address(LOOPBACK, port))])
        while not client.addresses():  # noqa: ASYNC110
            await trio.sleep(0.01)
        listener = await host.listen(LOOPBACK, 0)
        print(listener.socket.getsockname()[1], identity.peer, flush=True)
        while True:
            nursery.start_soon(serve, TcpByteStream(await listener.accept()))


async def exactly(path: SecureStream, size: int) -> bytes:
    """Return `size` bytes; b"" at the end."""
    got = bytearray(REST.pop(path, b""))
    while len(got) < size:
        data = await path.receive()
        if not data:
            return b""
        got += data
    if len(got) > size:
        REST[path] = bytes(got[size:])
    return bytes(got[:size])


REST: dict[SecureStream, bytes] = {}


async def swallow(path: SecureStream) -> None:
    left = BYTES - len(REST.pop(path, b""))
    while left > 0:
        left -= len(await path.receive()) or left
    path.send(b"!")
    await path.drain()


async def echo(path: SecureStream) -> None:
    for _ in range(TURNS):
        path.send(await exactly(path, 128))
        await path.drain()


async def measure(path: SecureStream, relay_link: Link) -> Figures:
    """Measure bulk, then round trips."""
    before = await _cpu_of(relay_link)
    began = time.perf_counter()
    path.send(BULK)
    await path.drain()
    for _ in range(BYTES // len(CHUNK)):
        path.send(CHUNK)
        await path.drain()
    assert await exactly(path, 1) == b"!"
    took = time.perf_counter() - began
    cpu = await _cpu_of(relay_link) - before
    path.send(PING)
    await path.drain()
    trips = []
    for _ in range(TURNS):
        began = time.perf_counter()
        path.send(CHUNK[:128])
        await path.drain()
        await exactly(path, 128)
        trips.append(time.perf_counter() - began)
    return Figures(BYTES / took, median(trips), cpu / (BYTES / 1e6))


async def source(rounds: int, ports: tuple[int, int], peers: tuple[str, str]) -> dict[str, float]:
    host = RealHost()
    identity = Identity.generate(host)
    endpoint = an_endpoint(identity)
    client = RelayClient(host, endpoint)
    client.reachable = True
    certificate = Certificate.generate(identity, host)
    expect = PeerId(peers[1])
    results: dict[str, list[Figures]] = {"direct": [], "circuit": []}
    stick = Yardstick()
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, LOOPBACK, 0)
        address = Address(LOOPBACK, ports[0], PeerId(peers[0]))
        link = await endpoint.dial(address, timeout=5)
        for _ in range(rounds):
            direct: ByteStream = TcpByteStream(await host.connect(LOOPBACK, ports[1]))
            circuit: ByteStream = await client.dial(address, expect, timeout=5)
            for name, byte_stream in (("direct", direct), ("circuit", circuit)):
                path = SecureStream(byte_stream, Tls(certificate, server=False, expect=expect))
                await path.handshake()
                results[name].append(await measure(path, link))
                path.close()
                stick.sample(20)
        nursery.cancel_scope.cancel()
    pairs = list(zip(results["circuit"], results["direct"], strict=True))
    cpu_ms = median(c.cpu for c, _ in pairs) * 1e3
    return {
        "value": stick.reference_ms(cpu_ms),
        "relay_cpu_ms_per_mb": cpu_ms,
        "reference_ms": stick.ms,
        "rate_ratio": median(c.rate / d.rate for c, d in pairs),
        "circuit_mb_s": median(c.rate for c, _ in pairs) / 1e6,
        "direct_mb_s": median(d.rate for _, d in pairs) / 1e6,
        "circuit_rtt_us": median(c.round_trip for c, _ in pairs) * 1e6,
        "direct_rtt_us": median(d.round_trip for _, d in pairs) * 1e6,
    }


def start(*arguments: str) -> tuple[subprocess.Popen[str], int, str]:
    """Start another process of this script; return it, its port and its peer id."""
    command = [sys.executable, __file__, *arguments]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    port, peer = made.stdout.readline().split()
    return made, int(port), peer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    parser.add_argument("--role", choices=("relay", "target"), help=argparse.SUPPRESS)
    parser.add_argument("--at", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "relay":
        trio.run(relay)
        return 0
    if given.role == "target":
        trio.run(target, int(given.at[0]), given.at[1])
        return 0
    middle, middle_port, middle_peer = start("--role", "relay")
    far, far_port, far_peer = start("--role", "target", "--at", str(middle_port), middle_peer)
    try:
        ports, peers = (middle_port, far_port), (middle_peer, far_peer)
        found = trio.run(source, 3 if given.quick else 9, ports, peers)
    finally:
        for process in (far, middle):
            process.kill()
            process.wait()
    ok = found["value"] <= GOAL
    print(json.dumps({"name": "relay_circuit", "goal": GOAL, "ok": ok, **found}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
