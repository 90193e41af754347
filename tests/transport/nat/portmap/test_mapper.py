"""The mapper against simulated routers: what they grant, refuse, forget and get wrong."""

import math
from typing import Any

import pytest
import trio

from shoal.netsim.nat.portmap.igd import Igd
from shoal.netsim.nat.portmap.leases import Full
from shoal.netsim.nat.portmap.upnp import UpnpFault
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.world import World
from shoal.transport.nat.portmap.defaults import PortmapLimits
from shoal.transport.nat.portmap.mapper import PROTOCOLS
from shoal.transport.nat.portmap.mapping import Scope
from tests.transport.nat.portmap.home import PORT, Home, Node


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_each_protocol_alone_opens_both_ports(world: World, protocol: str) -> None:
    home = Home(world, igd=protocol)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        assert (mapping.address, mapping.tcp_port, mapping.udp_port) == (
            home.gate.address,
            PORT,
            PORT,
        )
        assert (mapping.protocol, mapping.gateway) == (protocol, "192.168.1.1")
        assert mapping.scope is Scope.PUBLIC
        assert home.held == {"tcp": PORT, "udp": PORT}
        assert await home.calls(PORT)
        await node.stop()
        await trio.sleep(0.1)
        assert home.held == {} and node.told == [mapping, None]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_without_its_strategy_nothing_is_mapped(world: World, protocol: str) -> None:
    """The twin of the test above."""
    home = Home(world, igd=protocol)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery, protocols=[each for each in PROTOCOLS if each != protocol])
        await trio.sleep(30)
        assert node.mapper.mapping is None and home.held == {}
        assert not await home.calls(PORT)
        await node.stop()


async def test_of_all_at_once_the_best_is_kept_and_the_others_map_nothing(world: World) -> None:
    home = Home(world)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node, 0.2)
        assert mapping.protocol == "pcp"
        await trio.sleep(10)
        assert len(home.leases) == 2 and node.told == [mapping]
        assert node.mapper.outcome.answers == {
            "pcp": "answers and maps the ports",
            "nat-pmp": "answers",
            "upnp": "answers",
        }
        await node.stop()


async def test_a_router_that_maps_nothing_is_explained_and_asked_again(world: World) -> None:
    home = Home(world, igd=False)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await trio.sleep(30)
        said = node.mapper.outcome.sentences()
        assert "192.168.1.1 maps no ports (" in said[0]
        assert all(f"{name}: no answer" in said[0] for name in ("PCP", "NAT-PMP", "UPnP"))
        assert "switch on UPnP or NAT-PMP" in said[1]
        sent = world.network.sent
        await trio.sleep(3600)
        assert world.network.sent - sent < 400, "a router without an answer is left in peace"
        await node.stop()


@pytest.mark.parametrize(
    ("speaks", "asked", "words"),
    [("nat-pmp", "pcp", "speaks NAT-PMP only"), ("pcp", "nat-pmp", "speaks PCP only")],
)
async def test_a_router_of_the_other_version_is_told_apart(
    world: World, speaks: str, asked: str, words: str
) -> None:
    home = Home(world, igd=speaks)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        await trio.sleep(10)
        assert mapping.protocol == speaks and node.mapper.outcome.answers[asked] == words
        await node.stop()


async def test_behind_a_carrier_the_mapping_is_kept_and_double_nat_told(world: World) -> None:
    cgn = world.gateway("cgn", "cgn", filtering="apd")
    home = Home(world, behind=cgn)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        assert mapping.address.startswith("100.64.") and mapping.scope is Scope.CARRIER
        held, but = node.mapper.outcome.sentences()
        assert "leads TCP port 4001 and UDP port 4001 of 100.64." in held
        assert "double NAT" in but and "carrier" in but
        await node.stop()


async def test_a_private_outer_address_is_double_nat_too(world: World) -> None:
    home = Home(world, igd_external="10.0.0.7")
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        assert (await home.until(node)).scope is Scope.PRIVATE
        assert "another router stands before it" in node.mapper.outcome.sentences()[1]
        await node.stop()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "224.0.0.1"])
async def test_a_router_without_an_outer_address_is_no_way_in(
    world: World, protocol: str, address: str
) -> None:
    home = Home(world, igd=protocol, igd_external=address)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await trio.sleep(20)
        assert node.mapper.mapping is None
        assert node.mapper.outcome.answers[protocol] == "has no outer address itself"
        await node.stop()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_leases_are_renewed_at_half_their_life(world: World, protocol: str) -> None:
    home = Home(world, igd=protocol, igd_lease=300.0)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        for _ in range(20):
            await trio.sleep(100)
            assert home.held == {"tcp": PORT, "udp": PORT}
            assert all(each.expires - home.leases.now >= 140 for each in home.leases)
            assert node.mapping.expires > trio.current_time() + 140
        assert node.told == [mapping], "a renewal is no change"
        await node.stop()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_router_of_permanent_leases_only(world: World, version: int) -> None:
    home = Home(world, igd="upnp", igd_permanent=True, igd_version=version)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        assert mapping.expires == math.inf
        assert [each.expires for each in home.leases] == [math.inf] * 2
        await trio.sleep(500)
        assert node.told == [mapping]
        await node.stop()
        assert home.held == {}, "what has no end is removed"


def other_holds(home: Home, proto: int, port: int = PORT) -> None:
    home.leases.add(proto, port, ("192.168.1.77", 4001), 86400.0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("proto", [TCP, UDP])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_port_of_another_computer_stays_its(
    world: World, protocol: str, proto: int, version: int
) -> None:
    home = Home(world, igd=protocol, igd_version=version)
    other_holds(home, proto)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        assert mapping.tcp_port == mapping.udp_port != PORT, "one number for both"
        assert len(home.leases) == 3
        held = home.leases.at_port(proto, PORT)
        assert held is not None and held.inner[0] == "192.168.1.77"
        assert await home.calls(mapping.tcp_port)
        await node.stop()
        await trio.sleep(0.1)
        assert len(home.leases) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_another_number_stays_over_renewals(world: World, protocol: str) -> None:
    home = Home(world, igd=protocol, igd_lease=300.0)
    other_holds(home, TCP)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        await trio.sleep(1000)
        assert node.told == [mapping] and len(home.leases) == 3
        await node.stop()


@pytest.mark.parametrize(("protocol", "seconds"), [("pcp", 16), ("nat-pmp", 16), ("upnp", 65)])
async def test_after_a_reboot_ports_are_mapped_again(
    world: World, protocol: str, seconds: float
) -> None:
    """At once where the router announces it; UPnP is looked at every minute."""
    home = Home(world, igd=protocol)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        await trio.sleep(100)
        home.gate.reboot(2.0)
        await trio.sleep(2.1)
        assert home.held == {}
        await trio.sleep(seconds)
        assert home.held == {"tcp": PORT, "udp": PORT}
        assert node.mapping.tcp_port == PORT
        await node.stop()


@pytest.mark.parametrize("protocol", ["pcp", "nat-pmp"])
async def test_a_reboot_without_announcement_shows_in_the_clock(
    world: World, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(world, igd=protocol)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        await trio.sleep(100)
        assert home.gate.service is not None
        monkeypatch.setattr(home.gate.service, "announce", lambda: None)
        home.gate.reboot(2.0)
        await trio.sleep(70)
        assert home.held == {"tcp": PORT, "udp": PORT}
        await node.stop()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_new_outer_address_is_told(world: World, protocol: str) -> None:
    home = Home(world, igd=protocol)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        first = await home.until(node)
        await trio.sleep(100)
        home.gate.redial(world.public_address())
        await trio.sleep(75)
        assert node.mapping.address == home.gate.address != first.address
        assert node.told == [first, node.mapping]
        await node.stop()


async def test_refresh_renews_soon(world: World) -> None:
    """PCP alone does not tell an address between renewals."""
    home = Home(world, igd="pcp")
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        await trio.sleep(30)
        home.leases.forget()
        for _ in range(100):
            node.mapper.refresh()
        await trio.sleep(16)
        assert home.held == {"tcp": PORT, "udp": PORT}
        await node.stop()


async def test_another_network_means_another_mapping(world: World) -> None:
    """A laptop is carried from one home to another."""
    home = Home(world)
    cafe = world.gateway("cafe", "linux-drop", igd="nat-pmp", inside="192.168.7.0/24")
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        plug = home.alice.attachments.pop()
        plug.subnet.release(plug, plug.addresses[0])
        plug.subnet.leave_all(plug)
        world.plug(home.alice, behind=cafe)
        await trio.sleep(20)
        assert node.mapping.address == cafe.address and node.mapping.gateway == "192.168.7.1"
        assert node.told[1] is None, "in between there is none"
        await node.stop()


async def test_a_cable_pulled_and_put_back(world: World) -> None:
    home = Home(world)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        gateway, home.gate.inside.gateway = home.gate.inside.gateway, None
        await trio.sleep(15)
        assert node.mapper.mapping is None
        assert node.mapper.outcome.sentences() == [
            "no router leads out of this network, so no port can be mapped"
        ]
        home.gate.inside.gateway = gateway
        await trio.sleep(15)
        assert node.mapping.tcp_port == PORT
        await node.stop()


async def test_a_public_address_needs_no_mapping(world: World) -> None:
    home = Home(world)
    cloud = world.gateway("cloud", "router", inside="11.200.0.0/24")
    server = world.host("server", behind=cloud)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery, host=server)
        await trio.sleep(5)
        assert "11.200.0.2 is public" in node.mapper.outcome.sentences()[0]
        await node.stop()


async def test_only_one_port_is_asked_for(world: World) -> None:
    home = Home(world)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery, ports=(0, PORT))
        mapping = await home.until(node)
        assert (mapping.tcp_port, mapping.udp_port) == (0, PORT) and home.held == {"udp": PORT}
        assert "leads UDP port 4001 of" in node.mapper.outcome.sentences()[0]
        await node.stop()


async def test_a_killed_node_takes_over_its_own_mapping(world: World) -> None:
    """The nonce of PCP comes from a lasting secret. The twin has none, and falls back."""
    home = Home(world, igd="pcp")
    for key, expected in ((b"secret", True), (b"", False)):
        home.leases.forget()
        async with trio.open_nursery() as nursery:
            first = home.start(nursery, key=key)
            await home.until(first)
            first.mapper._moved = True  # nothing is removed
            await first.stop()
        assert home.held == {"tcp": PORT, "udp": PORT}
        async with trio.open_nursery() as nursery:
            second = home.start(nursery, key=key)
            await trio.sleep(5)
            assert (second.mapper.mapping is not None) is expected
            if not expected:
                assert "does not allow it" in second.mapper.outcome.answers["pcp"]
            await second.stop()


@pytest.mark.seeds(5)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_cancelled_at_any_moment_nothing_is_left_for_ever(
    world: World, protocol: str
) -> None:
    home = Home(world, igd=protocol, igd_permanent=protocol == "upnp")
    for step in range(12):
        async with trio.open_nursery() as nursery:
            node = home.start(nursery, key=b"k", limits=PortmapLimits(end_s=0.5))
            await trio.sleep(0.011 * step * (20 if protocol == "upnp" else 1))
            before = trio.current_time()
            await node.stop()
            assert trio.current_time() - before <= 1.01, "the end is short"
        await trio.sleep(1)
        assert home.held == {}, step


async def test_the_end_is_short_though_the_router_is_gone(world: World) -> None:
    home = Home(world, igd="upnp")
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        home.gate.reboot(1000.0)
        before = trio.current_time()
        await node.stop()
        assert trio.current_time() - before <= 1.01


async def test_a_router_that_is_gone_for_long_is_found_again(world: World) -> None:
    home = Home(world, igd="upnp")
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        home.gate.reboot(200.0)
        await trio.sleep(130)
        assert node.mapper.mapping is None, "no reply: no mapping is claimed"
        await trio.sleep(250)
        assert node.mapping.tcp_port == PORT
        await node.stop()


async def test_a_mapping_that_another_program_took_is_made_again(world: World) -> None:
    home = Home(world, igd="upnp")
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await home.until(node)
        for lease in home.leases:
            home.leases.remove(lease)
        await trio.sleep(70)
        assert home.held == {"tcp": PORT, "udp": PORT}
        for lease in home.leases:
            home.leases.remove(lease)
        other_holds(home, TCP)
        await trio.sleep(70)
        assert node.mapping.tcp_port not in (0, PORT)
        await node.stop()


async def test_two_nodes_of_one_home_have_ports_of_their_own(world: World) -> None:
    home = Home(world)
    carol = world.host("carol", behind=home.gate)
    async with trio.open_nursery() as nursery:
        nodes: list[Node] = [home.start(nursery), home.start(nursery, host=carol)]
        first, second = [await home.until(node) for node in nodes]
        assert first.tcp_port == first.udp_port != second.tcp_port == second.udp_port
        for node in nodes:
            await node.stop()
        await trio.sleep(0.1)
        assert home.held == {}


async def test_a_refusing_router_is_said_to_refuse(world: World) -> None:
    home = Home(world, igd="upnp")

    def refuse(arguments: object, client: str) -> dict[str, str]:
        raise UpnpFault(606)

    assert isinstance(home.gate.service, Igd)
    home.gate.service.control.actions["AddPortMapping"] = refuse
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await trio.sleep(10)
        assert node.mapper.mapping is None
        assert "mapping may be switched off" in node.mapper.outcome.answers["upnp"]
        await node.stop()


async def test_a_request_cut_off_before_its_answer_is_taken_back(world: World) -> None:
    home = Home(world, igd="nat-pmp")
    slow = world.host(
        "slow", behind=home.gate, link=LinkSpec(PipeSpec(delay=0.1), PipeSpec(delay=0.1))
    )
    async with trio.open_nursery() as nursery:
        node = home.start(nursery, host=slow)
        while not home.held:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert node.mapper.mapping is None, "the answer is under way"
        await node.stop()
        await trio.sleep(1)
        assert home.held == {}


async def test_a_router_that_maps_one_port_only(world: World) -> None:
    home = Home(world, igd="nat-pmp")
    assert isinstance(home.gate.service, Igd)
    ports = home.gate.service._ports
    real = ports._pmp_map

    def only_udp(proto: int, *rest: Any) -> Any:
        if proto == TCP:
            raise Full
        return real(proto, *rest)

    ports._pmp_map = only_udp  # type: ignore[assignment, method-assign]
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        assert (mapping.tcp_port, mapping.udp_port) == (0, PORT)
        assert node.mapper.outcome.answers["nat-pmp"] == "answers and maps one port"
        await node.stop()


async def test_one_port_unanswered_and_the_other_is_taken_back(world: World) -> None:
    home = Home(world, igd="nat-pmp")
    assert isinstance(home.gate.service, Igd)
    ports = home.gate.service._ports
    real = ports.answer

    def no_udp(data: bytes, source: tuple[str, int]) -> bytes | None:
        return None if data[1] == 1 else real(data, source)

    ports.answer = no_udp  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await trio.sleep(20)
        assert node.mapper.mapping is None and home.held == {}
        assert node.mapper.outcome.answers["nat-pmp"] == "no answer"
        await node.stop()
