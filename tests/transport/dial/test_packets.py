"""Packets of a new link, on simulated hosts."""

from collections.abc import Awaitable, Callable

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.trace.trace import SENT, Trace
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.link.calls import Reply
from shoal.transport.link.link import Link
from tests.transport.fleet import Node, make_node

PORT = 4001
PROFILE = next(iter(PROFILES.values()))


async def start(host: Host, number: int, nursery: trio.Nursery) -> Node:
    """Start an endpoint on a host."""
    node = make_node(number, host=SimulatedHost(host, PROFILE, nursery))
    started = trio.Event()

    class Status(trio.TaskStatus[int]):
        def started(self, value: int | None = None) -> None:
            started.set()

    host.start_soon(nursery, lambda: node.endpoint.run("0.0.0.0", PORT, task_status=Status()))
    await started.wait()
    return node


def linked(trace: Trace, then: Callable[[Link], Awaitable[None]]) -> None:
    """Link two hosts, `a` and `b`, and call `then` on `a`. `b` answers `patient` patiently."""
    world = World(1, trace=trace)
    hosts = world.host("a"), world.host("b")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            near, far = [await start(host, n, nursery) for n, host in enumerate(hosts, 1)]
            place = Address(hosts[1].addresses()[0], PORT, far.endpoint.peer)
            far.endpoint.handle("patient", lambda call: Reply(within=60))

            async def run() -> None:
                await then(await near.endpoint.dial(place, timeout=5))

            await hosts[0].run(run)
            nursery.cancel_scope.cancel()

    world.run(main)


def test_a_new_link_costs_few_packets() -> None:
    """Dialler: SYN, its acknowledgement, hello of TLS, two acknowledgements, hello, ping and pong.
    Listener: SYN, acknowledgement, two segments of TLS, hello, ping, pong.
    """
    trace = Trace(keep=True)

    async def wait(link: Link) -> None:
        await trio.sleep(1)

    linked(trace, wait)
    assert trace.digest
    sent = [record[2] for record in trace.records if record[1] == SENT and record[0] < 1]
    assert (sent.count("a"), sent.count("b")) == (8, 7), trace.records


def test_a_pong_does_not_wait_for_a_patient_reply() -> None:
    took = []

    async def ask(link: Link) -> None:
        await trio.sleep(0.5)
        assert link.paths.used is not None
        began = trio.current_time()
        link.paths.used.connection.ping(began)  # leaves in the packet of the call
        await link.call("patient", timeout=90)
        took.append(trio.current_time() - began)

    linked(Trace(), ask)
    assert took[0] < 0.1
