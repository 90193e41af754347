"""The lane compared with a bare `trio.SSLStream`: 128-byte calls one at a time, and 64 MiB of bulk.

Two processes on loopback, TLS 1.3 on both sides, interleaved round by round; each figure is the
median over the rounds of ours / bare (of their speeds, so 1.0 is equal and more is faster). The
bare side echoes fixed-size messages and streams 64 KiB writes, with nothing else to do; ours are a
call to a registered method and one stream. `value` is the smaller of the two ratios by wall clock;
the same by CPU time of both processes is beside it. Goal: 0.7.
"""

import argparse
import datetime
import json
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream

MEASURES = ("transport",)

GOAL = 0.7
LOOPBACK = "127.0.0.1"
MESSAGE = bytes(128)
CHUNK = bytes(64 * 1024)
BULK_BYTES = 64 * 1024 * 1024


Bare = trio.SSLStream[trio.SocketStream]


@dataclass(frozen=True)
class Cost:
    """Elapsed seconds, and CPU seconds of both processes."""

    wall: float
    cpu: float


def make_endpoint() -> Endpoint:
    host = RealHost()
    return Endpoint(host, Identity.generate(host), admission=OpenSwarm())


def make_certificate(folder: Path) -> Path:
    """Write a self-signed certificate and its key into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = folder / "bare.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


# The serving process.


async def serve_bare(stream: Bare) -> None:
    """Serve a connection: echo messages (`p` first), or take rounds of 64 MiB (`b` first)."""
    if await stream.receive_some(1) == b"b":
        while await receive_exactly(stream, BULK_BYTES):
            await stream.send_all(b"!")
    else:
        while data := await receive_exactly(stream, len(MESSAGE)):
            await stream.send_all(data)


async def receive_exactly(stream: Bare, size: int) -> bytes | bytearray:
    """Return the last piece of `size` bytes, b"" if the connection ended."""
    data: bytes | bytearray = b""
    while size:
        data = await stream.receive_some(min(size, len(CHUNK)))
        if not data:
            break
        size -= len(data)
    return data


async def count_bytes(incoming: IncomingStream) -> None:
    total = 0
    while data := await incoming.stream.receive(4 * len(CHUNK)):
        total += len(data)
    await incoming.stream.send(str(total).encode())
    await incoming.stream.finish()


async def serve(certificate: Path) -> None:
    """Run both servers; print their ports, and end with the standard input."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate)
    endpoint = make_endpoint()
    endpoint.handle("echo", lambda call: Reply(payload=call.payload))
    endpoint.handle("cpu", _cpu)
    endpoint.handle_stream("count", count_bytes)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(endpoint.run, LOOPBACK, 0)
        listeners = await nursery.start(trio.serve_ssl_over_tcp, serve_bare, 0, context)
        bare = next(iter(listeners)).transport_listener.socket.getsockname()[1]
        print(port, bare, endpoint.peer, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


def _cpu(_: Call) -> Reply:
    return Reply({"s": time.process_time()})


# The measuring process.


async def _cpu_of(link: Link) -> float:
    """Return the CPU seconds of the peer's process so far."""
    return float(str((await link.call("cpu", timeout=10)).header["s"]))


async def measure(link: Link, work: Callable[[], Awaitable[None]]) -> Cost:
    """Return the cost of `work` for both processes; the two calls that ask for it are about 0.2 ms
    of it.
    """
    theirs = await _cpu_of(link)
    ours, began = time.process_time(), time.perf_counter()
    await work()
    wall, ours = time.perf_counter() - began, time.process_time() - ours
    theirs = await _cpu_of(link) - theirs
    return Cost(wall, ours + theirs)


@dataclass
class Sides:
    """The connections under comparison, and the number of calls per round."""

    link: Link
    echo: Bare
    bulk: Bare
    calls: int

    async def bare_call(self) -> None:
        for _ in range(self.calls):
            await self.echo.send_all(MESSAGE)
            await receive_exactly(self.echo, len(MESSAGE))

    async def lane_call(self) -> None:
        for _ in range(self.calls):
            await self.link.call("echo", payload=MESSAGE, timeout=10)

    async def bare_bulk(self) -> None:
        for _ in range(BULK_BYTES // len(CHUNK)):
            await self.bulk.send_all(CHUNK)
        await receive_exactly(self.bulk, 1)

    async def lane_bulk(self) -> None:
        stream = await self.link.open_stream("count")
        for _ in range(BULK_BYTES // len(CHUNK)):
            await stream.send(CHUNK)
        await stream.finish()
        assert await stream.receive(100) == str(BULK_BYTES).encode()

    async def round(self, name: str, *, ours_first: bool) -> tuple[Cost, Cost]:
        """Run both sides once; return our cost and theirs."""
        works = {side: getattr(self, f"{side}_{name}") for side in ("lane", "bare")}
        order = ("lane", "bare") if ours_first else ("bare", "lane")
        costs = {side: await measure(self.link, works[side]) for side in order}
        return costs["lane"], costs["bare"]


async def connect_bare(port: int, mode: bytes) -> Bare:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    stream = trio.SSLStream(await trio.open_tcp_stream(LOOPBACK, port), context)
    await stream.send_all(mode)
    return stream


async def compare(child: subprocess.Popen[str], rounds: int, calls: int) -> dict[str, object]:
    """Return the figures; the first round of each kind warms up and is dropped."""
    assert child.stdout is not None
    words = (await trio.to_thread.run_sync(child.stdout.readline)).split()
    endpoint = make_endpoint()
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, LOOPBACK, 0)
        link = await endpoint.dial(Address(LOOPBACK, int(words[0])), timeout=10)
        echo, bulk = [await connect_bare(int(words[1]), mode) for mode in (b"p", b"b")]
        sides = Sides(link, echo, bulk, calls)
        found: dict[str, object] = {}
        for name, unit in (("call", calls), ("bulk", BULK_BYTES / 1e6)):
            pairs = [await sides.round(name, ours_first=n % 2 == 0) for n in range(rounds + 1)]
            found |= figures(name, unit, pairs[1:])
        nursery.cancel_scope.cancel()
    return found


def figures(name: str, unit: float, pairs: list[tuple[Cost, Cost]]) -> dict[str, object]:
    """Return medians of both sides (per second, and CPU microseconds each), and of the rounds'
    ratios.
    """
    found: dict[str, object] = {}
    for side, costs in (("lane", [p[0] for p in pairs]), ("bare", [p[1] for p in pairs])):
        found[f"{name}_{side}_per_s"] = round(median(unit / cost.wall for cost in costs), 1)
        found[f"{name}_{side}_cpu_us"] = round(median(cost.cpu / unit * 1e6 for cost in costs), 1)
    found[f"{name}_ratio_wall"] = round(median(p[1].wall / p[0].wall for p in pairs), 3)
    found[f"{name}_ratio_cpu"] = round(median(p[1].cpu / p[0].cpu for p in pairs), 3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 50 s")
    parser.add_argument("--serve", metavar="PEM", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        trio.run(serve, args.serve)
        return 0
    rounds, calls = (9, 1500) if args.quick else (25, 3000)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", str(make_certificate(Path(folder)))]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                found = trio.run(compare, child, rounds, calls)
            finally:
                child.kill()
    value = min(float(str(found[f"{name}_ratio_wall"])) for name in ("call", "bulk"))
    result = {"name": "lane", "value": value, "goal": GOAL, "ok": value >= GOAL, **found}
    print("units: calls/s and MB/s; CPU of both processes in µs per call and per MB")
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
