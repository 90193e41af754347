"""Tests of discovery over simulated networks: which peers find each other, and which do not."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.gateway import SubnetRouter
from shoal.netsim.world import World
from shoal.transport.host.datagrams import Place
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lan.defaults import GROUP, PORT, LanLimits
from shoal.transport.lan.mdns import LanDiscovery
from shoal.transport.lan.service import Announcement

SWARM = b"swarm"


@dataclass
class Node:
    """Discovery on a simulated computer, and the peers that it reported."""

    peer: PeerId
    host: Host
    port: int
    lan: LanDiscovery
    told: list[tuple[PeerId, Place]] = field(default_factory=list)
    told_at: list[float] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def place(self) -> Place:
        return self.host.addresses()[0], self.port

    def hear(self, peer: PeerId, place: Place) -> None:
        self.told.append((peer, place))
        self.told_at.append(trio.current_time())

    async def run(self) -> None:
        with self.scope:
            await self.lan.run(self.port)


def node(
    nursery: trio.Nursery,
    host: Host,
    seed: int,
    *,
    swarm: bytes = SWARM,
    port: int = 4001,
    limits: LanLimits | None = None,
) -> Node:
    peer = Identity.from_seed(bytes([seed]) * 32).peer
    seam = SimulatedHost(host, PROFILES["laptop"], nursery, life=seed)
    made = Node(peer, host, port, LanDiscovery(seam, peer, swarm, limits=limits))
    made.lan.on_peer(made.hear)
    host.start_soon(nursery, made.run)
    return made


def home(
    world: World, count: int = 2, name: str = "home", **knobs: Any
) -> tuple[SubnetRouter, list[Host]]:
    gate = world.gateway(name, "linux-drop", **knobs)
    return gate, [world.host(f"{name}{n}", behind=gate) for n in range(count)]


async def test_two_on_one_lan_find_each_other_at_once(world: World) -> None:
    _, hosts = home(world)
    async with trio.open_nursery() as nursery:
        a = node(nursery, hosts[0], 1)
        await trio.sleep(10)
        b = node(nursery, hosts[1], 2)
        await trio.sleep(0.5)
        assert a.told == [(b.peer, b.place)] and b.told == [(a.peer, a.place)]
        assert max(a.told_at + b.told_at) < 10.4
        assert a.lan.places(b.peer) == [b.place] and a.lan.condition is None
        await trio.sleep(2000)
        assert len(a.told) == len(b.told) == 1, "and know each other from then on"
        assert a.lan.places(b.peer) == [b.place]
        nursery.cancel_scope.cancel()


async def test_no_peer_is_found_without_discovery(world: World) -> None:
    """The twin: one of the two does not take part."""
    _, hosts = home(world)
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, hosts[1], 2)
        b.scope.cancel()
        await trio.sleep(100)
        assert a.told == []
        nursery.cancel_scope.cancel()


async def test_a_goodbye_and_a_return(world: World) -> None:
    _, hosts = home(world)
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, hosts[1], 2)
        await trio.sleep(5)
        b.scope.cancel()
        await trio.sleep(0.1)
        assert a.lan.places(b.peer) == []
        await trio.sleep(15)
        again = node(nursery, hosts[1], 2)
        await trio.sleep(1)
        assert a.told == [(b.peer, b.place)] * 2 and a.lan.places(again.peer) == [b.place]
        nursery.cancel_scope.cancel()


async def test_a_peer_without_power_is_forgotten_after_its_ttl(world: World) -> None:
    _, hosts = home(world)
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, hosts[1], 2)
        await trio.sleep(5)
        hosts[1].up = False
        await trio.sleep(100)
        assert a.lan.places(b.peer) == [b.place]
        await trio.sleep(30)
        assert a.lan.places(b.peer) == []
        nursery.cancel_scope.cancel()


async def test_other_swarms_and_other_lans_stay_unseen(world: World) -> None:
    _, hosts = home(world, 3)
    _, others = home(world, 1, "other")
    server = world.host("server")
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, hosts[1], 2)
        nodes = [
            node(nursery, hosts[2], 3, swarm=b"another"),
            node(nursery, others[0], 4),
            node(nursery, server, 5),
        ]
        await trio.sleep(60)
        assert a.told == [(b.peer, b.place)] and b.told == [(a.peer, a.place)]
        assert all(each.told == [] and each.lan.condition is None for each in nodes)
        nursery.cancel_scope.cancel()


async def test_two_nodes_of_one_computer(world: World) -> None:
    _, hosts = home(world, 1)
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, hosts[0], 2, port=4002)
        await trio.sleep(2)
        assert a.told == [(b.peer, b.place)] and b.told == [(a.peer, a.place)]
        nursery.cancel_scope.cancel()


async def test_on_two_lans_each_hears_of_its_own_address_only(world: World) -> None:
    """Every socket gets a copy of each packet of any interface; each peer is reported once."""
    _, hosts = home(world, 2)
    second, others = home(world, 1, "cafe", inside="192.168.7.0/24")
    world.plug(hosts[0], behind=second)
    async with trio.open_nursery() as nursery:
        both = node(nursery, hosts[0], 1)
        left, right = node(nursery, hosts[1], 2), node(nursery, others[0], 3)
        await trio.sleep(5)
        assert sorted(both.told) == sorted([(left.peer, left.place), (right.peer, right.place)])
        assert left.told == [(both.peer, (hosts[0].addresses()[0], 4001))]
        assert right.told == [(both.peer, (hosts[0].addresses()[1], 4001))]
        nursery.cancel_scope.cancel()


async def test_a_cable_is_plugged_in_later_and_pulled_again(world: World) -> None:
    _, hosts = home(world, 1)
    cafe, others = home(world, 1, "cafe", inside="192.168.7.0/24")
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, others[0], 2)
        await trio.sleep(5)
        assert a.told == []
        plug = world.plug(hosts[0], behind=cafe)
        await trio.sleep(12)
        assert a.told == [(b.peer, b.place)] and len(b.told) == 1
        cafe.inside.release(plug, plug.addresses[0])
        hosts[0].attachments.remove(plug)
        await trio.sleep(12)
        assert a.lan.places(b.peer) == [] and a.lan.condition is None
        nursery.cancel_scope.cancel()


async def test_where_the_port_is_taken_it_says_so_and_goes_on(world: World) -> None:
    _, hosts = home(world)

    async def take() -> trio.socket.SocketType:
        sock = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        await sock.bind(("0.0.0.0", PORT))
        return sock

    taken = await hosts[0].run(take)
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, hosts[1], 2)
        await trio.sleep(30)
        assert a.told == [] and "port 5353 exclusively" in str(a.lan.condition)
        taken.close()
        await trio.sleep(12)
        assert a.told == [(b.peer, b.place)] and a.lan.condition is None
        nursery.cancel_scope.cancel()


async def test_a_false_name_is_told_as_one_more_place(world: World) -> None:
    """A peer that claims to be Bob is dialled at its own address, and must prove its id there."""
    _, hosts = home(world, 3)
    bob = Identity.from_seed(bytes([2]) * 32).peer
    async with trio.open_nursery() as nursery:
        a, b = node(nursery, hosts[0], 1), node(nursery, hosts[1], 2)
        await trio.sleep(5)

        async def lie() -> None:
            with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
                await sock.bind(("0.0.0.0", PORT))
                own = hosts[2].addresses()[0]
                for address in (own, hosts[1].addresses()[0], "192.168.1.1", "203.0.113.9"):
                    for port in range(6000, 6050):
                        said = Announcement(bob, SWARM, address, port, bytes(8))
                        await sock.sendto(said.encode(), (GROUP, PORT))
                await trio.sleep(1)

        await hosts[2].run(lie)
        places = [place for _, place in a.told if place != b.place]
        assert len(places) == 4 and {place[0] for place in places} == {hosts[2].addresses()[0]}
        assert b.place in a.lan.places(bob), "the real one stays"
        nursery.cancel_scope.cancel()


@pytest.mark.ci
async def test_thirty_on_one_lan(world: World) -> None:
    """All know all in seconds, and stay quiet afterwards."""
    _, hosts = home(world, 30)
    async with trio.open_nursery() as nursery:
        nodes = [node(nursery, host, seed + 1) for seed, host in enumerate(hosts)]
        await trio.sleep(10)
        assert all(len(each.told) == 29 for each in nodes)
        await trio.sleep(300)
        sent = world.network.sent
        await trio.sleep(600)
        assert all(len(each.told) == 29 for each in nodes)
        rate = (world.network.sent - sent) / 600 / 30
        assert rate < 0.05, f"{rate} datagrams a second and node"
        nursery.cancel_scope.cancel()


@pytest.mark.seeds(10)
async def test_half_of_all_datagrams_lost(world: World) -> None:
    _, hosts = home(world, 4)
    luck = world.streams.get("test", "loss")
    world.network.interfere_by(lambda packet, host: -1.0 if luck.random() < 0.5 else 0.0)
    async with trio.open_nursery() as nursery:
        nodes = [node(nursery, host, seed + 1) for seed, host in enumerate(hosts)]
        await trio.sleep(300)
        assert all(len({peer for peer, _ in each.told}) == 3 for each in nodes)
        nursery.cancel_scope.cancel()


@pytest.mark.seeds(3)
async def test_cancelled_at_any_moment_it_leaves_nothing_open(world: World) -> None:
    _, hosts = home(world)
    async with trio.open_nursery() as nursery:
        b = node(nursery, hosts[1], 2)
        for step in range(20):
            a = node(nursery, hosts[0], 1)
            await trio.sleep(0.01 * step)
            a.scope.cancel()
            await trio.sleep(0.1)
            assert b.lan.places(a.peer) == []
            assert a.lan.served == {} and a.lan.responders == {}
        nursery.cancel_scope.cancel()
