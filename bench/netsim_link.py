"""One link in the simulator and between real network namespaces: round trips, loss, rate.

One link specification and one program (UDP through trio) in two worlds: `netsim.world` in virtual
time, and `netsim.netns` with TUN devices and a user-space switch that uses the same pipes in real
time. Goals: quantiles of the round trip within 10 % of the kernel's; losses inside the binomial
interval of 99 % (and of the very same datagrams, because both draw from the same stream); a
saturated link within 5 % of its rate on both sides. The switch forwards 30,000 packets in a
reference second (`yardstick.py`), half of them at most 0.3 reference ms late. Without root there is
nothing to compare with: the script says so, passes, and is not recorded.
"""

import argparse
import json
import math
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio
from yardstick import Yardstick

from shoal.netsim.netns.backend import KernelWorld
from shoal.netsim.netns.namespaces import available
from shoal.netsim.network.link import Burst, LinkSpec, PipeSpec
from shoal.netsim.world import World

MEASURES = ("netsim",)

GOALS = {"rtt_off": 0.10, "loss_off": 1.0, "same_losses": True, "rate_off": 0.05,
         "packets_per_reference_s": 30_000, "late_reference_ms": 0.3}  # fmt: skip
SEED = 7
PORT = 7000
QUANTILES = (0.05, 0.5, 0.95)
Z99 = 2.576  # standard deviations of the 99 % interval
SETTLE_S = 0.5  # for packets in flight at the end
HEADERS = 28  # bytes of IP and UDP

RTT_LINKS = {
    "cable": LinkSpec(PipeSpec(delay=0.008, jitter=0.004), PipeSpec(delay=0.008, jitter=0.004)),
    "mobile": LinkSpec(PipeSpec(delay=0.025, jitter=0.012), PipeSpec(delay=0.025, jitter=0.012)),
}
LOSS = 0.05
LOSSY = {
    "random": PipeSpec(delay=0.005, loss=LOSS),
    "bursts": PipeSpec(delay=0.005, burst=Burst(0.01, 0.2, 0.4)),
}
RATE = 2.5e6  # bytes/s


class Ends(Protocol):
    """A world with the hosts `a`, which has the link, and `b`, which has none."""

    def socket(self, host: str) -> trio.socket.SocketType: ...
    def address(self, host: str) -> str: ...


Measure = Callable[[Ends], Awaitable[Any]]


class _Simulated:
    def __init__(self, link: LinkSpec) -> None:
        self.world = World(seed=SEED, latency=0.0)
        self.world.host("a", link=link)
        self.world.host("b")

    def socket(self, host: str) -> trio.socket.SocketType:
        from shoal.netsim.host import CURRENT

        token = CURRENT.set(self.world.hosts[host])
        try:
            return trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        finally:
            CURRENT.reset(token)

    def address(self, host: str) -> str:
        return self.world.hosts[host].addresses()[0]


class _Real:
    def __init__(self, world: KernelWorld) -> None:
        self.world = world
        self.sockets: list[socket.socket] = []

    def socket(self, host: str) -> trio.socket.SocketType:
        sock = self.world.hosts[host].space.socket()
        self.sockets.append(sock)
        return trio.socket.from_stdlib_socket(sock)

    def address(self, host: str) -> str:
        return self.world.hosts[host].address


def simulated(link: LinkSpec, measure: Measure) -> Any:
    ends = _Simulated(link)
    return ends.world.run(measure, ends)


def real(link: LinkSpec, measure: Measure) -> Any:
    with KernelWorld(seed=SEED) as world:
        world.host("a", link=link)
        world.host("b")
        ends = _Real(world)
        try:
            return trio.run(measure, ends)
        finally:
            for sock in ends.sockets:
                sock.close()


class Rtts:
    """Round trips in milliseconds of pings every 15 ms, sorted."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def __call__(self, ends: Ends) -> list[float]:
        client, server = ends.socket("a"), ends.socket("b")
        await server.bind((ends.address("b"), PORT))
        await client.bind((ends.address("a"), PORT))
        sent: dict[bytes, float] = {}
        took: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._echo, server)
            nursery.start_soon(self._hear, client, sent, took)
            for number in range(self._count):
                data = number.to_bytes(8)
                sent[data] = trio.current_time()
                await client.sendto(data, (ends.address("b"), PORT))
                await trio.sleep(0.015)
            await trio.sleep(SETTLE_S)
            nursery.cancel_scope.cancel()
        return sorted(took)

    async def _echo(self, server: trio.socket.SocketType) -> None:
        while True:
            data, source = await server.recvfrom(64)
            await server.sendto(data, source)

    async def _hear(
        self, client: trio.socket.SocketType, sent: dict[bytes, float], took: list[float]
    ) -> None:
        while True:
            data = await client.recv(64)
            took.append(1e3 * (trio.current_time() - sent[data]))


class Stream:
    """Datagrams of `size` bytes from `a` to `b` for some seconds, at a fixed rate. Records the
    times and numbers of those that arrive.
    """

    def __init__(self, seconds: float, per_second: float, size: int) -> None:
        self._count = round(seconds * per_second)
        self._per_second = per_second
        self._padding = bytes(size - HEADERS - 8)

    async def __call__(self, ends: Ends) -> tuple[int, list[tuple[float, int]]]:
        client, server = ends.socket("a"), ends.socket("b")
        await server.bind((ends.address("b"), PORT))
        came: list[tuple[float, int]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, server, came)
            began, number = trio.current_time(), 0
            while number < self._count:
                due = (trio.current_time() - began) * self._per_second
                while number <= due and number < self._count:
                    data = number.to_bytes(8) + self._padding
                    await client.sendto(data, (ends.address("b"), PORT))
                    number += 1
                await trio.sleep(0.002)
            await trio.sleep(SETTLE_S)
            nursery.cancel_scope.cancel()
        return self._count, came

    async def _hear(self, server: trio.socket.SocketType, came: list[tuple[float, int]]) -> None:
        while True:
            data = await server.recv(2048)
            came.append((trio.current_time(), int.from_bytes(data[:8])))


def _rtt(raw: dict[str, Any], count: int) -> float:
    """Return the largest relative distance of a quantile."""
    worst = 0.0
    for name, link in RTT_LINKS.items():
        sides = {}
        for side, run in ("simulated", simulated), ("kernel", real):
            took = run(link, Rtts(count))
            sides[side] = [round(took[int(part * len(took))], 3) for part in QUANTILES]
        raw[f"rtt_ms_{name}"] = sides
        pairs = zip(sides["simulated"], sides["kernel"], strict=True)
        worst = max(worst, *(abs(ours - theirs) / theirs for ours, theirs in pairs))
    return worst


def _loss(raw: dict[str, Any], seconds: float) -> tuple[float, bool]:
    """Return the distance from the requested loss, in half widths of the 99 % interval (worse
    side), and whether both sides lost the same datagrams.
    """
    off, same = 0.0, True
    for name, pipe in LOSSY.items():
        heard = {}
        for side, run in ("simulated", simulated), ("kernel", real):
            count, came = run(LinkSpec(up=pipe), Stream(seconds, 1000, 200))
            heard[side] = {number for _, number in came}
            lost = 1 - len(heard[side]) / count
            raw[f"loss_{name}_{side}"] = round(lost, 5)
            if name == "random":
                half = Z99 * math.sqrt(LOSS * (1 - LOSS) / count)
                off = max(off, abs(lost - LOSS) / half)
        same = same and heard["simulated"] == heard["kernel"]
    return off, same


def _rate(raw: dict[str, Any], seconds: float) -> float:
    """Return the relative distance of a saturated link from its rate (worse side)."""
    size, off = 1200, 0.0
    for side, run in ("simulated", simulated), ("kernel", real):
        link = LinkSpec(up=PipeSpec(delay=0.005, rate=RATE, queue=0.05))
        _, came = run(link, Stream(seconds, 1.3 * RATE / size, size))
        rate = (len(came) - 1) * size / (came[-1][0] - came[0][0])
        raw[f"rate_{side}"] = round(rate)
        off = max(off, abs(rate / RATE - 1))
    return off


def _forwarding(seconds: float, per_second: int) -> tuple[float, float]:
    """Return packets per second through the switch, and the milliseconds by which half of them are
    late.
    """
    with KernelWorld() as world:
        link = LinkSpec(PipeSpec(delay=0.01))
        a, b = world.host("a", link=link), world.host("b", link=link)
        with a.space.socket() as sock, b.space.socket() as sink:
            sink.bind((b.address, PORT))  # its buffer may overflow, which does not matter here
            sock.connect((b.address, PORT))
            began, number = time.perf_counter(), 0
            while (passed := time.perf_counter() - began) < seconds:
                while number < passed * per_second:
                    sock.send(bytes(1172))
                    number += 1
                time.sleep(0.0005)
            late = world.internet.counts()["late_ms"]["0.5"]
            time.sleep(SETTLE_S)
            return world.internet.counts()["forwarded"] / seconds, late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 30 s")
    quick = parser.parse_args().quick
    reason = available()
    if reason is not None:
        print(json.dumps({"name": "netsim_link", "value": f"skipped: {reason}", "goal": GOALS,
                          "ok": True, "skipped": reason}))  # fmt: skip
        return
    raw: dict[str, Any] = {}
    value: dict[str, Any] = {"rtt_off": _rtt(raw, 200 if quick else 600)}
    value["loss_off"], value["same_losses"] = _loss(raw, 3 if quick else 10)
    value["rate_off"] = _rate(raw, 2 if quick else 6)
    stick = Yardstick(time.perf_counter)
    stick.sample(50)
    forwarded, late = _forwarding(2, round(33_000 / stick.ms))
    value["packets_per_reference_s"] = forwarded * stick.ms
    value["late_reference_ms"] = stick.reference_ms(late)
    raw |= {"packets_per_s": forwarded, "late_ms": late, "reference_ms": stick.ms}
    ok = (
        value["rtt_off"] <= GOALS["rtt_off"]
        and value["loss_off"] <= GOALS["loss_off"]
        and value["same_losses"]
        and value["rate_off"] <= GOALS["rate_off"]
        and value["packets_per_reference_s"] >= GOALS["packets_per_reference_s"]
        and value["late_reference_ms"] <= GOALS["late_reference_ms"]
    )
    shown = {name: item if item is True else round(item, 4) for name, item in value.items()}
    print(json.dumps({"name": "netsim_link", "value": shown, "goal": GOALS, "ok": ok, **raw}))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
