"""Whole nodes measure how they are reached, over links, on a simulated internet."""

import pytest
import trio

from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.world import World
from shoal.transport.errors import CallRefused
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.nat.reach import asking, defaults, stun
from shoal.transport.nat.reach.dialback import WantedDialBack
from shoal.transport.nat.reach.looking import Looker
from shoal.transport.nat.reach.measuring import Mapped
from shoal.transport.nat.reach.reachability import Behaviour, DialBackResult, Ipv6, UdpKind
from shoal.transport.nat.reach.service import Reach
from shoal.transport.nat.reach.stun import MessageClass, StunMessage
from tests.transport.nat.reach.swarm import (
    DIALBACK_PORT,
    PORT,
    Node,
    measured,
    on_the_internet,
    running,
)
from tests.transport.nat.reach.test_natkind import TRUTH


@pytest.mark.parametrize("kind", [kind for kind in TRUTH if kind != "firewall6"])
async def test_every_kind(world: World, kind: str) -> None:
    gate = world.gateway("gate", kind)
    node = Node(world.host("node", behind=gate), 1)
    found = await measured(world, node, on_the_internet(world, 4))
    mapping, filtering, pattern = TRUTH[kind]
    assert (found.udp.mapping, found.udp.filtering) == (mapping, filtering)
    assert found.udp.allocation.pattern is pattern
    assert found.udp.blocked is False
    if mapping.symmetric:
        assert found.udp_place is None
        assert found.public is False
    else:
        assert found.udp_place is not None
        assert bool(found.reached("udp")) == (filtering is Behaviour.ENDPOINT_INDEPENDENT)
    if "-" in kind and kind.partition("-")[0] in ("eim", "apdm"):  # these treat TCP as UDP
        assert bool(found.reached("tcp")) == (kind == "eim-eif")
    known = {item.answer for item in found.dialled if item.transport == "udp"}
    assert (DialBackResult.REACHED_BY_KNOWN in known) == (
        filtering is Behaviour.ADDRESS_DEPENDENT and not mapping.symmetric
    )


async def test_a_public_node(world: World) -> None:
    node = Node(world.host("node"), 1)
    found = await measured(world, node, on_the_internet(world, 3))
    assert found.public is True
    assert found.udp.mapping is found.tcp_mapping is Behaviour.NONE
    assert found.reached("tcp") == ((node.ip, DIALBACK_PORT),)
    assert found.reached("udp") == ((node.ip, PORT),)
    assert (found.cgn, found.ipv6) == (False, Ipv6.NONE)
    assert node.first_bytes


async def test_udp_blocked_leaves_tcp(world: World) -> None:
    gate = world.gateway("gate", "linux-drop", allow=frozenset({(6, PORT), (6, DIALBACK_PORT)}))
    node = Node(world.host("node", behind=gate), 1)
    found = await measured(world, node, on_the_internet(world, 3))
    assert found.udp.blocked is True
    assert found.udp.mapping is Behaviour.UNKNOWN
    assert found.tcp_mapping is Behaviour.ENDPOINT_INDEPENDENT
    assert found.public is False


@pytest.mark.parametrize("open_to", ["nobody", "all"])
async def test_ipv6(world: World, open_to: str) -> None:
    """Peers see the node at another address, so it pays."""
    kind = "firewall6" if open_to == "nobody" else "router"
    gate = world.gateway("gate", kind, ipv6=True)
    node = Node(world.host("node", behind=gate), 1, six=True)
    found = await measured(world, node, on_the_internet(world, 3, six=True))
    assert found.ipv6 is (Ipv6.FILTERED if open_to == "nobody" else Ipv6.OPEN)


async def test_ipv6_without_a_peer_to_try_it(world: World) -> None:
    gate = world.gateway("gate", "firewall6")
    node = Node(world.host("node", behind=gate), 1, six=True)
    found = await measured(world, node, on_the_internet(world, 3))
    assert found.ipv6 is Ipv6.UNKNOWN
    assert found.public is False


async def test_a_forwarded_port(world: World) -> None:
    gate = world.gateway("gate", "address-restricted")
    node = Node(world.host("node", behind=gate), 1)
    gate.forward(TCP, 5000, (node.ip, DIALBACK_PORT))
    gate.forward(UDP, 5000, (node.ip, PORT))
    peers = on_the_internet(world, 3)
    outer = gate.address, 5000
    async with running(node, *peers):
        for peer in peers:
            await node.dial(peer)
        node.reach.port_mapped(Mapped(outer, outer, gate.address))
        found = await node.measure()
    assert (outer in found.reached("tcp"), outer in found.reached("udp")) == (True, True)
    assert found.public is True
    assert found.cgn is False


async def test_a_forwarded_port_behind_a_carrier_s_nat(world: World) -> None:
    carrier = world.gateway("carrier", "cgn", filtering="apd")
    gate = world.gateway("gate", "linux-drop", behind=carrier)
    node = Node(world.host("node", behind=gate), 1)
    gate.forward(TCP, 5000, (node.ip, DIALBACK_PORT))
    peers = on_the_internet(world, 3)
    async with running(node, *peers):
        for peer in peers:
            await node.dial(peer)
        node.reach.port_mapped(Mapped((gate.address, 5000), None, gate.address))
        found = await node.measure()
    assert found.cgn is True
    assert found.public is False
    assert (gate.address, 5000) not in {item.place for item in found.dialled}  # 100.64/10


async def test_directly_behind_a_carrier_s_nat(world: World) -> None:
    carrier = world.gateway("carrier", "cgn")
    node = Node(world.host("node", behind=carrier), 1)
    found = await measured(world, node, on_the_internet(world, 3))
    assert found.cgn is True
    assert found.public is True  # its filter accepts any sender


async def test_neighbours_on_the_lan_are_no_observers(world: World) -> None:
    """Their view is not translated by the NAT."""
    gate = world.gateway("gate", "linux-drop")
    node = Node(world.host("node", behind=gate), 1)
    near = [Node(world.host(f"near{n}", behind=gate), 30 + n) for n in range(3)]
    async with running(node, *near):
        for peer in near:
            await node.dial(peer)
        found = await node.measure()
    assert found.udp == UdpKind()
    assert found.public is None


async def test_a_node_that_does_not_volunteer_is_not_asked(world: World) -> None:
    node = Node(world.host("node"), 1)
    peers = on_the_internet(world, 3, volunteer=False)
    async with running(node, *peers):
        link = await node.dial(peers[0])
        found = await node.measure()
        with pytest.raises(CallRefused) as refused:
            await link.call("reach.dialback", timeout=5)
    assert (found.observers, found.public) == (0, None)
    assert refused.value.code == "unknown-method"


async def test_a_node_without_links_knows_nothing(world: World) -> None:
    node = Node(world.host("node"), 1)
    assert (await measured(world, node, [])).public is None


async def test_a_node_measures_by_itself_and_reports(world: World) -> None:
    gate = world.gateway("gate", "linux-drop")
    node = Node(world.host("node", behind=gate), 1)
    peers = on_the_internet(world, 3)
    async with running(node, *peers):
        began = trio.current_time()
        for peer in peers:
            await node.dial(peer)
        version = await node.reach.changed(0)
        assert trio.current_time() - began < 6
        assert node.reach.reachability.udp.mapping is Behaviour.ENDPOINT_INDEPENDENT
        assert node.reach.reachability.public is None  # that takes longer
        await node.reach.changed(version)
        assert node.reach.reachability.public is False
        assert len(node.reach.observers()) == 3
        assert await node.computer.run(node.reach.look) == [(gate.address, PORT)] * 3


async def test_more_peers_improve_the_measurement(world: World) -> None:
    gate = world.gateway("gate", "linux-drop")
    node = Node(world.host("node", behind=gate), 1)
    peers = on_the_internet(world, 3)

    def mapping() -> Behaviour:
        return node.reach.reachability.udp.mapping

    async with running(node, *peers):
        await node.dial(peers[0])
        await trio.sleep(60)
        assert mapping() is Behaviour.UNKNOWN
        await node.dial(peers[1])
        await trio.sleep(60)
        assert mapping() is Behaviour.ENDPOINT_INDEPENDENT
        await node.dial(peers[2])
        await trio.sleep(60)
        assert node.reach.reachability.observers == 3


async def test_an_observed_mapping_that_changes(world: World) -> None:
    gate = world.gateway("gate", "eim-apdf", ports="random")
    node = Node(world.host("node", behind=gate), 1)
    peers = on_the_internet(world, 3)
    async with running(node, *peers):
        for peer in peers:
            await node.dial(peer)
        await trio.sleep(60)
        before = node.reach.reachability
        assert before.measured_at is not None
        gate.redial(world.public_address(again=True))
        for peer in peers:
            await node.dial(peer)
        await trio.sleep(defaults.LOOK_S + 30)
        after = node.reach.reachability
    assert before.udp_place is not None
    assert after.udp_place is not None
    assert after.udp_place[0] == gate.address != before.udp_place[0]


async def test_an_address_that_changes(world: World) -> None:
    gate = world.gateway("gate", "linux-drop")
    node = Node(world.host("node", behind=gate), 1)
    peers = on_the_internet(world, 3)
    async with running(node, *peers):
        for peer in peers:
            await node.dial(peer)
        await trio.sleep(60)
        version = node.reach.version
        world.plug(node.computer, address="11.99.0.1")
        await trio.sleep(defaults.INTERFACES_S + 20)
        assert node.reach.version > version


async def test_without_changes_a_node_measures_rarely(world: World) -> None:
    """Half an hour has one measurement, and one observation each minute."""
    node = Node(world.host("node"), 1)
    peers = on_the_internet(world, 3)
    async with running(node, *peers):
        for peer in peers:
            await node.dial(peer)
        await trio.sleep(60)
        version = node.reach.version
        await trio.sleep(1500)
        assert node.reach.version == version
        await trio.sleep(400)
        assert node.reach.version == version + 2


async def test_a_forged_reply_does_not_count(world: World) -> None:
    """An attacker that has seen the transaction id replies first, from elsewhere."""
    assert await forged_look(world) == [("11.0.1.1", PORT)]


async def test_a_forgery_counts_without_the_check(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looker, "_is_from", lambda *_: True)
    assert await forged_look(world) == [("6.6.6.6", 6)]


async def forged_look(world: World) -> list[Place]:
    node, peer = Node(world.host("node"), 1), Node(world.host("peer"), 2)
    async with running(node, peer):
        await node.dial(peer)
        await node.measure()
        send = node.udp.send

        def overheard(data: bytes, to: Place, socket: Datagrams | None = None) -> bool:
            question = stun.decode(data)
            assert question is not None
            forged = StunMessage(MessageClass.SUCCESS, question.transaction, mapped=("6.6.6.6", 6))
            node.reach.on_stun(stun.encode(forged), ("6.6.6.6", 6), node.udp.sockets[0])
            return send(data, to, socket)

        node.udp.send = overheard  # type: ignore[method-assign]
        found: list[Place] = await node.computer.run(node.reach.look)
    return found


async def test_cancelling_anywhere_leaves_nothing(world: World) -> None:
    """At every quarter of a second in the first five seconds."""
    peers = on_the_internet(world, 2)
    gate = world.gateway("gate", "linux-drop")
    for n in range(20):
        node = Node(world.host(f"node{n}", behind=gate), 1)
        async with running(node, *peers):
            for peer in peers:
                await node.dial(peer)
            with trio.move_on_after(n / 4):
                await node.measure()
            assert not node.reach._awaited._arrived
            assert not node.reach._looker.open_looks  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_paid_dial_back_is_reused_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """A home pays once for a dial-back to an IPv6 address that its peers do not see.

    It does not pay again for UDP if TCP did not get in.
    """
    if not kept:  # without reuse
        monkeypatch.setattr(defaults, "BOUGHT_S", 0.0)
    paid: list[int] = []
    asked = asking.ask

    async def counting(link: asking.DialBackPeer, wanted: WantedDialBack) -> bool:
        if wanted.place[0] in node.computer.addresses() and ":" in wanted.place[0]:
            paid.append(1)
        return await asked(link, wanted)

    monkeypatch.setattr(asking, "ask", counting)
    gate = world.gateway("gate", "firewall6", ipv6=True)
    node = Node(world.host("node", behind=gate), 1, six=True)
    async with running(node, *(peers := on_the_internet(world, 3, six=True))):
        for peer in peers:
            await node.dial(peer)
        for _ in range(3):
            await node.computer.run(node.reach._measure_again)
            assert node.reach.reachability.ipv6 is Ipv6.FILTERED
    assert (len(paid) == 1) if kept else (len(paid) > 1)


async def test_peers_that_arrive_during_a_measurement_do_not_repeat_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = world.gateway("gate", "linux-drop")
    node = Node(world.host("node", behind=gate), 1)
    begun: list[float] = []
    measure = Reach._measure

    async def counting(reach: Reach) -> None:
        if reach is node.reach:
            begun.append(world.events.now)
        await measure(reach)

    monkeypatch.setattr(Reach, "_measure", counting)
    async with running(node, *(peers := on_the_internet(world, 5))):
        for peer in peers:
            await node.dial(peer)
            await trio.sleep(0.7)
        await trio.sleep(60)
    assert len(begun) == 1
