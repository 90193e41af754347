"""Calls beside bulk on a home line: 20 Mbit/s, 40 ms, a modem that buffers 250 ms."""

import pytest
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity
from shoal.transport.lane.queueing import Yielding
from shoal.transport.link import paths as shell
from shoal.transport.link.calls import Reply
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream

PORT = 7000
RTT = 0.04
RATE = 2.5e6
SLOW = PipeSpec(delay=RTT / 4, rate=RATE, queue=0.25)


class Node:
    """An endpoint as the program of a simulated host."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.endpoint: Endpoint | None = None

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            made = Endpoint(
                SimulatedHost(host, PROFILES["desktop"], nursery),
                Identity.from_seed(bytes([self.seed]) * 32),
                admission=OpenSwarm(),
            )
            self.endpoint = made
            made.handle("echo", lambda call: Reply(payload=call.payload))
            made.handle_stream("sink", _sink)
            await nursery.start(made.run, host.addresses()[0], PORT)
            task_status.started()


async def _sink(incoming: IncomingStream) -> None:
    while await incoming.stream.receive(1 << 18):
        pass


async def _fill(link: Link) -> None:
    stream = await link.open_stream("sink")
    while True:
        await stream.send(bytes(1 << 16))


async def calls_beside_bulk(world: World) -> tuple[list[float], float]:
    """Return sorted durations of calls beside a bulk stream, and the share of the line in use."""
    near, far = world.host("near", link=LinkSpec(SLOW, SLOW)), world.host("far")
    asking, serving = Node(1), Node(2)
    await far.start(serving)
    await near.start(asking)
    assert asking.endpoint is not None
    took: list[float] = []
    async with trio.open_nursery() as nursery:
        address = Address(far.addresses()[0], PORT)
        link = await near.run(lambda: asking.endpoint.dial(address, timeout=10))  # type: ignore[union-attr]
        near.start_soon(nursery, _fill, link)
        await trio.sleep(2)
        sent, began = link.status.bytes_out, trio.current_time()
        for _ in range(60):
            asked = trio.current_time()
            await link.call("echo", payload=bytes(100), timeout=10)
            took.append(trio.current_time() - asked)
            await trio.sleep(0.02)
        used = (link.status.bytes_out - sent) / (trio.current_time() - began) / RATE
        nursery.cancel_scope.cancel()
    return sorted(took), used


async def test_a_call_does_not_wait_behind_bulk(world: World) -> None:
    took, used = await calls_beside_bulk(world)
    assert took[-2] < 2.1 * RTT
    assert used > 0.9


@pytest.mark.ci
async def test_without_a_window_a_call_waits_behind_bulk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind(Yielding):
        def window(self, now: float) -> int:
            return 1 << 30

        def rate(self, now: float) -> float:
            return 1e12

    monkeypatch.setattr(shell, "Yielding", Blind)
    took, _ = await calls_beside_bulk(world)
    assert took[-2] > 5 * RTT
