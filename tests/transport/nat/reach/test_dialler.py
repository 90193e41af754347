"""The server of dial-backs: no peer can use it against a third one."""

from dataclasses import replace
from typing import Any, cast

import pytest
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.transport.errors import CallRefused
from shoal.transport.nat.reach import defaults
from shoal.transport.nat.reach.dialback import WantedDialBack
from shoal.transport.nat.reach.reachability import Reachability
from tests.transport.nat.reach.swarm import Node, on_the_internet, running


async def test_a_victim_receives_nothing(world: World) -> None:
    """Peers ask 300 times, at every price but the right one, for dials to a victim."""
    server, victim = Node(world.host("server"), 1), world.host("victim")
    askers = on_the_internet(world, 3)
    there = victim.addresses()[0]
    async with running(server, *askers) as nursery:
        sockets = await listen_everywhere(victim, nursery)
        for asker in askers:
            link = await asker.dial(server)
            for n in range(100):
                wanted = WantedDialBack("tcp" if n % 2 else "udp", (there, 4001), bytes([n]) * 16)
                reply = await link.call("reach.dialback", wanted.header, timeout=20)
                assert cast(int, reply.header["pay"]) >= 30_000
                reply = await link.call(
                    "reach.dialback", wanted.header, bytes(1000 * (n % 30)), timeout=20
                )
                assert "sent" not in reply.header
        assert sockets.heard == 0


async def test_a_paying_asker_is_served_a_few_times(world: World) -> None:
    """Twin: with payment the dials arrive, so the payment is what prevents them."""
    server, victim = Node(world.host("server"), 1), world.host("victim")
    asker = on_the_internet(world, 1)[0]
    there = victim.addresses()[0]
    async with running(server, asker) as nursery:
        sockets = await listen_everywhere(victim, nursery)
        link = await asker.dial(server)
        sent, refused = 0, set()
        for n in range(20):
            wanted = WantedDialBack("udp", (there, 4001), bytes([n]) * 16)
            reply = await link.call("reach.dialback", wanted.header, timeout=20)
            try:
                paid = bytes(cast(int, reply.header["pay"]))
                reply = await link.call("reach.dialback", wanted.header, paid, timeout=20)
                sent += cast(int, reply.header["sent"])
            except CallRefused as no:
                refused.add(no.code)
        assert sent == defaults.FOREIGN_BURST
        assert refused == {"busy"}
        assert sockets.heard == len(defaults.COPIES_S) * sent
        assert sockets.bytes <= 3 * sent * 80


class Ears:
    """Records what a machine receives on port 4001."""

    def __init__(self) -> None:
        self.heard = 0
        self.bytes = 0


async def listen_everywhere(computer: Any, nursery: trio.Nursery) -> Ears:
    ears = Ears()
    host = SimulatedHost(computer, PROFILES["desktop"], nursery)
    socket = await computer.run(host.datagrams, "0.0.0.0", 4001)
    listener = await computer.run(host.listen, "0.0.0.0", 4001)

    async def by_udp() -> None:
        while True:
            for data, _ in await socket.receive():
                ears.heard += 1
                ears.bytes += len(data)

    async def by_tcp() -> None:
        while True:
            await listener.accept()
            ears.heard += 1

    computer.start_soon(nursery, by_udp)
    computer.start_soon(nursery, by_tcp)
    return ears


@pytest.mark.parametrize(
    "change", [{"ip": "10.0.0.1"}, {"port": 22}, {"ip": "x"}, {"nonce": 5}, {"transport": []}]
)
async def test_malformed_or_forbidden_requests_are_refused(world: World, change: Any) -> None:
    server, asker = on_the_internet(world, 2)
    async with running(server, asker):
        link = await asker.dial(server)
        header = WantedDialBack("tcp", (asker.ip, 4001), bytes(16)).header | change
        with pytest.raises(CallRefused) as refused:
            await link.call("reach.dialback", header, timeout=20)
        assert refused.value.code in ("bad-request", "forbidden")
        assert link.alive


@pytest.mark.parametrize("known", [True, False])
async def test_our_own_router_is_not_dialled(world: World, known: bool) -> None:
    """From the inside, a router may answer at its outer address, which outsiders cannot reach.
    A server that does not know this address demands payment and dials it."""
    server, asker = on_the_internet(world, 2)
    async with running(server, asker):
        outer = world.host("router").addresses()[0]
        if known:
            server.reach.reachability = replace(Reachability(), tcp_place=(outer, 61000))
        link = await asker.dial(server)
        header = WantedDialBack("udp", (outer, 8080), bytes(16)).header
        if known:
            with pytest.raises(CallRefused, match="not dialled"):
                await link.call("reach.dialback", header, timeout=20)
        else:
            reply = await link.call("reach.dialback", header, timeout=20)
            assert cast(int, reply.header["pay"]) > 0


async def test_concurrent_dial_backs_are_bounded(world: World) -> None:
    server, asker = on_the_internet(world, 2)
    codes = []
    async with running(server, asker) as nursery:
        link = await asker.dial(server)

        async def ask(n: int) -> None:
            header = WantedDialBack("udp", (asker.ip, 4001), bytes([n]) * 16).header
            try:
                await link.call("reach.dialback", header, timeout=20)
            except CallRefused as no:
                codes.append(no.code)

        for n in range(100):
            nursery.start_soon(ask, n)
        await trio.sleep(10)
    assert codes == ["busy"] * (100 - defaults.ASKER_BURST)
