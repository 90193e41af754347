"""Links over relays, shoal's and libp2p's, in the simulator."""

from typing import Any, cast

import pytest
import trio

from bench.worlds.town import Town, is_direct
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.transport import defaults
from shoal.transport.address import Address
from shoal.transport.bytestream import ByteStream, PathKind
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity
from shoal.transport.libp2p import Libp2pResponder
from shoal.transport.libp2p.muxstream import MuxStream
from shoal.transport.libp2p.yamux import PING, SYN
from shoal.transport.link.calls import Refusal
from shoal.transport.relay.book import RelayBook
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import Dialer, Strategies
from tests.transport.homes import (
    HOMES,
    NO_TCP,
    NO_UDP,
    UNPUNCHED,
    Street,
    strategies,
    two_homes,
    until,
    way_of,
)
from tests.transport.libp2p.pipes import OURS, InlineHost, raw_peer


async def plain_relay(world: World, nursery: trio.Nursery) -> Address:
    """A libp2p relay that is not a shoal node."""
    computer = world.host("plain-relay")
    host = SimulatedHost(computer, PROFILES["desktop"], nursery)
    identity = Identity.from_seed(b"r" * 32)
    book = RelayBook(RelayLimits(volunteer=True), trio.current_time())
    responder = Libp2pResponder(host, identity, addresses=list, relay=book)

    async def serve() -> None:
        listener = await host.listen("0.0.0.0", 4001)
        while True:
            stream = await listener.accept()
            nursery.start_soon(responder.serve, stream, b"")

    computer.start_soon(nursery, serve)
    await trio.sleep(0.1)
    return Address(computer.addresses()[0], 4001, identity.peer)


async def test_a_relay_of_the_libp2p_kind_carries_a_link(world: World) -> None:
    async with trio.open_nursery() as nursery:
        relay = await plain_relay(world, nursery)
        town = Town(world)
        a, b = [
            await town.node(
                world.host(name, behind=world.gateway(f"{name}-router", "linux-drop")),
                strategies=strategies(),
                foreign=[relay],
            )
            for name in ("a", "b")
        ]
        await until(lambda: b.dialer.foreign.addresses())
        link = await a.connect(b.peer)
        assert link.path_kind is PathKind.RELAYED
        assert (await a.call(link, header={"n": 1}, payload=bytes(40_000))).header == {"n": 1}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("witnesses", [3, 0])
async def test_a_foreign_relays_link_becomes_direct_with_common_linked_peers(
    world: World, witnesses: int
) -> None:
    """The peers have seen both; no relay has. In the twin no peer vouches for any address."""
    async with trio.open_nursery() as nursery:
        relay = await plain_relay(world, nursery)
        town = Town(world)
        known = [
            await town.node(
                world.host(f"w{n}"), strategies=strategies(), relaying=RelayLimits(rate=0)
            )
            for n in range(3)
        ]
        a, b = [
            await town.node(
                world.host(name, behind=world.gateway(f"{name}-router", "linux-drop")),
                strategies=strategies(),
                foreign=[relay],
            )
            for name in ("a", "b")
        ]
        for node in (a, b):
            await town.introduce(node, known)
        if not witnesses:
            for node in known:
                node.endpoint.handle("reach.where", lambda call: Refusal("not-linked", ""))
        await until(lambda: b.dialer.foreign.addresses())
        await trio.sleep(15)
        link = await a.connect(b.peer)
        assert link.path_kind is PathKind.RELAYED
        with trio.move_on_after(20):
            await until(lambda: is_direct(link), 21)
        assert is_direct(link) is bool(witnesses)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_libp2p_program_on_a_circuit_stays_connected(autojump_clock: Any) -> None:
    """It stays for longer than the handshake timeout of a link."""
    endpoint = Endpoint(InlineHost(), OURS, admission=OpenSwarm())
    off = dict.fromkeys(Strategies.__dataclass_fields__, False) | {"libp2p": True}
    dialer = Dialer(InlineHost(), endpoint, strategies=Strategies(**off))

    class Joins:
        """Handle a byte stream like an incoming circuit."""

        async def serve_byte_stream(self, byte_stream: ByteStream, first: bytes) -> str:
            byte_stream.medium = "circuit"  # type: ignore[misc]
            await dialer.circuits.take_foreign(cast(MuxStream, byte_stream))
            await trio.sleep_forever()
            return ""

    async with trio.open_nursery() as nursery:
        await nursery.start(dialer.run, "127.0.0.1", 0)
        async with raw_peer(cast(Libp2pResponder, Joins())) as peer:
            await trio.sleep(2 * defaults.HANDSHAKE_S)
            await peer.frame(PING, SYN, 0, 7)
            while (frame := await peer.next())[0] != PING:
                pass
            assert frame[3] == 7
        nursery.cancel_scope.cancel()


async def test_a_relay_where_nothing_can_be_punched(world: World) -> None:
    assert await two_homes(world, HOMES, **UNPUNCHED) == ("relayed", "circuit")


async def test_no_peer_is_reached_without_relays(world: World) -> None:
    assert (await two_homes(world, HOMES, relay=False))[0] == "none"


async def test_relays_splice_tcp_and_udp(world: World) -> None:
    street = Street(world)
    await street.relays()
    a = await street.home("a", "linux-drop", allow=NO_UDP)
    b = await street.home("b", "linux-drop", allow=NO_TCP)
    await street.settle(a, b)
    assert await way_of(a, b, 1.0) == ("relayed", "circuit")
    assert {path.medium for relay in b.endpoint.links() for path in relay.status.paths} >= {"udp"}
