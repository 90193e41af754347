"""Simulated UDP packets: 500 trio hosts that ask each other and reply, trace hash on.

The simulator is compared with the obvious hand-written version: trio's MockClock, and a task that
sleeps for each packet. Both sides run the same program over the same delays and losses, in turns,
on one core. `value` is the packets per CPU second of the simulator, divided by those of the other
side; goal 1.5. `packets_per_s` is its rate on this machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

import trio
import trio.testing

from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

MEASURES = ("netsim",)

GOAL = 1.5
PORT = 4001
LOSS = 0.005
PERIOD_S = 1.0


def _delays(hosts: int) -> list[float]:
    random = Random(1)
    return [random.uniform(0.005, 0.06) for _ in range(hosts)]


async def _talk(
    own: int, count: int, rounds: int, send: Callable[[bytes, int], Any], random: Random
) -> None:
    """Ask a random host about every second."""
    for number in range(rounds):
        await trio.sleep(PERIOD_S * (0.5 + random.random()))
        await send(b"Q" + number.to_bytes(4, "big") + bytes(60), random.randrange(count))


def simulated(count: int, rounds: int) -> dict[str, Any]:
    """Run the simulator: rates, queues, jitter and loss in both directions, every packet traced."""
    trace = Trace()
    world = World(1, trace=trace, latency=0.0)
    hosts = [
        world.host(
            f"n{number}",
            link=LinkSpec(
                PipeSpec(delay, jitter=0.002, rate=1.25e6, loss=LOSS), PipeSpec(rate=6e6)
            ),
        )
        for number, delay in enumerate(_delays(count))
    ]
    addresses = [host.addresses()[0] for host in hosts]

    async def answer(socket: trio.socket.SocketType) -> None:
        while True:
            data, source = await socket.recvfrom(2000)
            if data[:1] == b"Q":
                await socket.sendto(b"R" + data[1:], source)

    async def node(own: int) -> None:
        socket = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        await socket.bind(("0.0.0.0", PORT))

        async def send(data: bytes, to: int) -> None:
            await socket.sendto(data, (addresses[to], PORT))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, socket)
            await _talk(own, count, rounds, send, hosts[own].streams.get(hosts[own].name, "talk"))
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        socket.close()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, host in enumerate(hosts):
                host.start_soon(nursery, node, number)

    began = time.process_time()
    world.run(main)
    seconds = time.process_time() - began
    return {
        "packets": world.network.sent,
        "cpu_s": seconds,
        "per_s": world.network.sent / seconds,
        "virtual_s": world.events.now,
        "digest": trace.digest,
    }


def naive(count: int, rounds: int) -> dict[str, Any]:
    """Run a task per packet on MockClock: only delay and loss, no queue, no trace."""
    delays = _delays(count)
    packets = 0
    luck = Random(2)

    async def main() -> None:
        inboxes = [trio.open_memory_channel[tuple[bytes, int]](1000) for _ in range(count)]

        async def carry(data: bytes, source: int, to: int) -> None:
            await trio.sleep(delays[source] + luck.random() * 0.002)
            inboxes[to][0].send_nowait((data, source))

        async def node(own: int, nursery: trio.Nursery) -> None:
            async def send(data: bytes, to: int) -> None:
                nonlocal packets
                packets += 1
                if luck.random() >= LOSS:
                    nursery.start_soon(carry, data, own, to)
                await trio.lowlevel.checkpoint()

            async def answer() -> None:
                async for data, source in inboxes[own][1]:
                    if data[:1] == b"Q":
                        await send(b"R" + data[1:], source)

            async with trio.open_nursery() as mine:
                mine.start_soon(answer)
                await _talk(own, count, rounds, send, Random(own))
                await trio.sleep(2)
                mine.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(node, number, nursery)

    began = time.process_time()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    seconds = time.process_time() - began
    return {"packets": packets, "cpu_s": seconds, "per_s": packets / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 20 s")
    quick = parser.parse_args().quick
    sides: dict[str, list[dict[str, Any]]] = {"simulated": [], "naive": []}
    for _ in range(2 if quick else 5):
        sides["simulated"].append(simulated(500, 30 if quick else 100))
        sides["naive"].append(naive(500, 30 if quick else 100))
    ours, theirs = (median(run["per_s"] for run in sides[side]) for side in sides)
    same = len({run["digest"] for run in sides["simulated"]}) == 1
    result = {
        "name": "netsim_packets",
        "value": round(ours / theirs, 3),
        "goal": GOAL,
        "ok": same and ours / theirs >= GOAL,
        "packets_per_s": round(ours),
        "same_digest": same,
        **sides,
    }
    print(json.dumps(result))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
