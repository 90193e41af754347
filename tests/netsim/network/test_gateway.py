"""Common functions of all gateways: addresses, two stacks, reboot, a new address, hop counts."""

import pytest
import trio

from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.packet import UDP, Packet
from shoal.netsim.world import World
from tests.netsim.nat.wire import INSIDE, A, Wire

DGRAM = trio.socket.SOCK_DGRAM


def reachable(world: World, source: Host, target: Host, address: str) -> bool:
    """Whether a datagram from `source` reaches `target` at that address."""
    family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
    found = []

    async def listen() -> None:
        with trio.socket.socket(family, DGRAM) as sock:
            await sock.bind(("", 7))
            with trio.move_on_after(1):
                found.append((await sock.recvfrom(10))[0])

    async def send() -> None:
        await trio.sleep(0.1)
        with trio.socket.socket(family, DGRAM) as sock:
            await sock.sendto(b"?", (address, 7))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            target.start_soon(nursery, listen)
            source.start_soon(nursery, send)

    world.run(main)
    return bool(found)


def test_hosts_of_a_dual_stack_home_have_both_addresses() -> None:
    world = World()
    home = world.gateway("home", "linux-drop", ipv6=True)
    alice, bob = world.host("alice", behind=home), world.host("bob", ipv6=True)
    four, six = alice.addresses()
    assert four.startswith("192.168.") and six.startswith("2600:")
    assert reachable(world, alice, bob, bob.addresses()[1])
    assert reachable(world, alice, bob, bob.addresses()[0])
    assert not reachable(world, bob, alice, six)


def test_open_ipv6_is_reachable_from_outside() -> None:
    world = World()
    home = world.gateway("home", "linux-drop", ipv6=True, filtering6="ei")
    alice, bob = world.host("alice", behind=home), world.host("bob", ipv6=True)
    six = alice.addresses()[1]
    assert not reachable(world, bob, alice, six)  # not before it has sent
    world = World()
    router = world.gateway("router", "router", ipv6=True)
    alice, bob = world.host("alice", behind=router), world.host("bob", ipv6=True)
    assert reachable(world, bob, alice, alice.addresses()[1])


def test_ipv6_is_routed_through_a_carrier() -> None:
    world = World()
    cgn = world.gateway("cgn", "cgn")
    home = world.gateway("home", "router", behind=cgn, ipv6=True)
    alice, bob = world.host("alice", behind=home), world.host("bob", ipv6=True)
    assert reachable(world, bob, alice, alice.addresses()[1])


def test_ipv6_can_be_refused_and_must_be_there() -> None:
    world = World()
    dual, single = world.gateway("dual", ipv6=True), world.gateway("single")
    assert len(world.host("a", behind=dual, ipv6=False).addresses()) == 1
    with pytest.raises(ValueError, match="ipv6=True"):
        world.host("b", behind=single, ipv6=True)


def test_firewall6_needs_no_asking() -> None:
    world = World()
    home = world.gateway("home", "firewall6")
    assert len(world.host("a", behind=home).addresses()) == 2


def test_public_firewall_gives_public_addresses() -> None:
    world = World()
    wall = world.gateway("wall", "public-firewall")
    alice, bob = world.host("alice", behind=wall), world.host("bob")
    assert alice.addresses()[0].rpartition(".")[0] == wall.address.rpartition(".")[0]
    assert reachable(world, alice, bob, bob.addresses()[0])
    assert not reachable(world, bob, alice, alice.addresses()[0])


@pytest.mark.parametrize("kind", ["linux-drop", "eim-eif"])
def test_reboot_forgets_flows_and_takes_its_time(kind: str) -> None:
    wire = Wire(kind)
    outer = wire.out(INSIDE, A)
    assert outer is not None
    wire.gate.reboot(30.0)
    assert not wire.gate.up and wire.out(INSIDE, A) is None
    wire.at(30.0)
    assert wire.gate.up and wire.back(A, outer) is None
    assert wire.out(INSIDE, A) == outer


def test_second_reboot_starts_the_wait_again() -> None:
    wire = Wire("linux-drop")
    wire.gate.reboot(30.0)
    wire.at(20.0).gate.reboot(30.0)
    assert not wire.at(40.0).gate.up
    assert wire.at(50.0).gate.up


@pytest.mark.parametrize("kind", ["linux-drop", "eim-eif"])
def test_redial_changes_the_address_and_kills_flows(kind: str) -> None:
    wire = Wire(kind)
    outer = wire.out(INSIDE, A)
    assert outer is not None
    wire.gate.redial("198.51.100.99")
    assert wire.back(A, outer) is None
    assert wire.drops()[-1] == "no-route"
    assert wire.back(A, ("198.51.100.99", outer[1])) is None
    assert wire.out(INSIDE, A) == ("198.51.100.99", outer[1])


@pytest.mark.parametrize("kind", ["linux-drop", "eim-eif"])
def test_forwarded_port_leads_inside_and_back(kind: str) -> None:
    wire = Wire(kind)
    outer = wire.gate.address, 9000
    assert wire.back(A, outer) is None
    wire.gate.forward(UDP, 9000, INSIDE)
    assert wire.back(A, outer) == INSIDE
    assert wire.out(INSIDE, A) == outer
    wire.gate.unforward(UDP, 9000)
    wire.gate.clear()
    assert wire.back(A, outer) is None


def test_hops_are_counted() -> None:
    wire = Wire("linux-drop")
    packet = Packet(UDP, INSIDE, A, 100, b"x", "inner", "")
    packet.ttl = 1
    wire.put(packet, wire.lan)
    assert wire.drops() == ["ttl"]
    (told,) = wire.inner.got
    assert told.icmp.kind == "ttl"


def test_packet_to_an_unused_inside_address_is_dropped() -> None:
    wire = Wire("linux-drop")
    wire.gate.forward(UDP, 9000, ("192.168.1.77", 1))
    assert wire.back(A, (wire.gate.address, 9000)) is None
    assert wire.drops() == ["no-route"]


def test_inside_runs_out_of_addresses() -> None:
    world = World()
    small = world.gateway("small", inside="10.0.0.0/29")
    taken = world.host("taken", behind=small, address="10.0.0.2")
    assert taken.interfaces()[-1].prefix == 29
    for number in range(4):
        world.host(str(number), behind=small)
    with pytest.raises(ValueError, match="no address left"):
        world.host("more", behind=small)


def test_narrow_access_link_tells_the_inside() -> None:
    wire = Wire("linux-drop", link=LinkSpec(up=PipeSpec(mtu=1000)))
    wire.put(Packet(UDP, INSIDE, A, 1001, b"x", "inner", ""), wire.lan)
    (told,) = wire.inner.got
    assert (told.icmp.kind, told.icmp.mtu, told.icmp.src) == ("too-big", 1000, INSIDE)


def test_redial_renumbers_the_ipv6_inside() -> None:
    """Each gateway has a prefix of its own; behind a carrier it is routed through that one too."""
    world = World()
    carrier = world.gateway("carrier", "router", ipv6=True)
    home = world.gateway("home", "router", behind=carrier, ipv6=True)
    alice, bob = world.host("alice", behind=home), world.host("bob", ipv6=True)
    four, before = alice.addresses()
    route = alice.source(bob.addresses()[1])
    Faults(world).redial(home)
    same, after = alice.addresses()
    assert world.names["alice"] == [same, after]
    assert same == four and after != before and alice.default_gateway(six=True) != before
    assert after.rpartition("::")[0] == (home.prefix or "").rpartition("::")[0]
    assert alice.source(bob.addresses()[1]) != route
    assert before not in world.internet.members and before not in carrier.inside.members
    assert reachable(world, bob, alice, after)
    assert reachable(world, alice, bob, bob.addresses()[1])
    assert not reachable(world, bob, alice, before)


def test_addresses_given_back_are_given_out_again() -> None:
    world = World()
    carrier = world.gateway("carrier", "cgn", inside="100.64.0.0/29")
    home = world.gateway("home", "linux-drop", behind=carrier)
    faults, seen = Faults(world), set()
    for _ in range(20):
        faults.redial(home)
        seen.add(home.address)
    assert len(seen) == 5  # six hosts of a /29, of which the carrier is one
    for number in range(4):
        world.host(f"h{number}", behind=carrier)
    with pytest.raises(ValueError, match="no address left"):
        world.host("one-too-many", behind=carrier)
