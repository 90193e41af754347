"""Views of other nodes at the control socket."""

import pytest

from shoal.netsim.world import World
from shoal.node.control.views import listening_address
from shoal.state.membership.record import Capacity, MemberRecord
from shoal.transport.identity import Identity

PEER = Identity.from_seed(bytes([1]) * 32).peer
RELAY = Identity.from_seed(bytes([2]) * 32).peer
LAN, PUBLIC = f"/ip4/10.0.0.5/tcp/4001/p2p/{PEER}", f"/ip4/198.51.100.9/udp/4002/quic-v1/p2p/{PEER}"
GLOBAL = f"/ip4/11.0.2.9/tcp/4002/p2p/{PEER}"
RELAYED = f"/ip4/192.0.2.1/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{PEER}"
SIX = f"/ip6/2001:db8::5/tcp/4001/p2p/{PEER}"


@pytest.mark.parametrize(
    ("addresses", "seen", "shown"),
    [
        ((PUBLIC, LAN), "10.0.0.5", "10.0.0.5:4001"),
        ((LAN, GLOBAL), "11.0.2.1", "11.0.2.9:4002"),
        ((PUBLIC, LAN), None, "198.51.100.9:4002"),
        ((RELAYED,), "203.0.113.1", "203.0.113.1"),
        ((LAN,), "11.0.2.1", "11.0.2.1"),
        ((RELAYED, SIX), None, "[2001:db8::5]:4001"),
        ((), None, None),
    ],
)
def test_where_a_peer_listens(
    addresses: tuple[str, ...], seen: str | None, shown: str | None
) -> None:
    capacity = Capacity(2, 2**30, True)
    record = MemberRecord(PEER, 1, addresses=addresses, capacity=capacity)
    assert listening_address(record, seen) == shown


async def test_address_of_a_dialling_node_has_its_listening_port(world: World) -> None:
    first = await world.host("a").start(engine=False)
    host = world.host("b")
    await host.start(bootstrap=[first], engine=False)
    await first.until(lambda status: status["peers"] == 1)
    await host.crash()
    second = await host.restart()
    await second.until(lambda status: status["peers"] == 1)
    (shown,) = (await first.ask("peers"))["peers"]
    assert shown["address"] == f"{second.address.host}:{second.address.port}"
    assert shown["path"] is not None
