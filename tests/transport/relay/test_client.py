"""Nodes behind NATs stay reachable through relays of their choice."""

from dataclasses import replace

import pytest
import trio

from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.errors import DialFailed
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link
from shoal.transport.relay import client as relay_client
from shoal.transport.relay import survey
from shoal.transport.relay.defaults import IMPROVE_S
from tests.transport.pipes import read, receive, write
from tests.transport.relay.circuits import secure
from tests.transport.relay.internet import LENDS, Node, started, until


def relays(world: World, *delays: float, ports: dict[int, int] | None = None) -> list[Node]:
    """Relays of different networks, by their links' delays in seconds."""
    return [
        Node(world, f"r{n}", 100 + n, lends=LENDS, address=f"{20 + n}.1.1.1", delay=delay,
             port=(ports or {}).get(n, 4001))
        for n, delay in enumerate(delays)
    ]  # fmt: skip


def offers(nodes: list[Node]) -> list[tuple[PeerId, Address]]:
    return [(node.peer, node.address) for node in nodes]


def used(node: Node) -> set[PeerId]:
    return {held.relay for held in node.client.relays}


@pytest.mark.parametrize("kinds", [("linux-drop", "linux-drop"), ("linux-random", "cgn")])
async def test_two_behind_nats_meet_through_a_relay(world: World, kinds: tuple[str, str]) -> None:
    a = Node(world, "a", 1, behind=world.gateway("ga", kinds[0]))
    b = Node(world, "b", 2, behind=world.gateway("gb", kinds[1]))
    (relay,) = relays(world, 0.02)
    async with started(a, b, relay):
        b.client.offer(offers([relay]))
        assert await until(b.client.addresses) < 1
        (address,) = b.client.addresses()
        assert str(address) == f"{relay.address}/p2p-circuit/p2p/{b.peer}"
        near = await a.dial(Address.parse(str(address)))
        await until(lambda: b.arrived)
        (came,) = b.arrived
        paths = await secure(near, came.byte_stream, a.identity, b.identity)
        assert paths[0].tls.peer == b.peer and paths[1].tls.peer == came.source == a.peer
        assert came.relay == relay.peer
        assert near.seen is not None and came.seen is not None
        assert near.seen.ip == world.gateways["gb"].wan.addresses[0]
        assert came.seen.ip == world.gateways["ga"].wan.addresses[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, near, bytes(300_000))
            await read(came.byte_stream, 300_000)


async def test_the_three_nearest_are_chosen(world: World) -> None:
    every = relays(world, 0.1, 0.01, 0.15, 0.02, 0.03, 0.12)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, *every):
        b.client.offer(offers(every))
        assert await until(lambda: len(used(b)) == 3) < 3
        assert used(b) == {every[1].peer, every[3].peer, every[4].peer}
        rtts = [held.rtt for held in b.client.relays]
        assert rtts == sorted(rtts) and 0.03 < rtts[0] < 0.06
        assert b.client.addresses()[0].relay == every[1].address


async def test_different_networks_before_near_ones(world: World) -> None:
    near = [
        Node(world, f"n{n}", 50 + n, lends=LENDS, address=f"30.1.{n}.1", delay=0.01)
        for n in range(3)
    ]
    far = relays(world, 0.05, 0.06)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, *near, *far):
        b.client.offer(offers(near + far))
        await until(lambda: len(used(b)) == 3)
        assert {each.peer for each in far} < used(b)


async def test_one_on_443_is_among_them_whenever_it_comes(world: World) -> None:
    every = relays(world, 0.01, 0.02, 0.03, 0.1, ports={3: 443})
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    c = Node(world, "c", 3, behind=world.gateway("gc"))
    async with started(b, c, *every):
        b.client.offer(offers(every))
        c.client.offer(offers(every[:3]))
        await until(lambda: len(used(b)) == len(used(c)) == 3)
        expected = {every[0].peer, every[1].peer, every[3].peer}
        assert used(b) == expected
        c.client.offer(offers(every[3:]))
        await until(lambda: used(c) == expected)
        await until(lambda: every[2].service.book.figures().reservations == 0)


async def test_a_second_address_on_443_is_published_too(world: World) -> None:
    (relay,) = relays(world, 0.01)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, relay):
        other = Address(relay.address.host, 443, relay.peer)
        b.client.offer([(relay.peer, relay.address), (relay.peer, other)])
        await until(b.client.addresses)
        assert b.client.addresses() == [relay.address.through(b.peer), other.through(b.peer)]


async def test_a_dead_relay_is_dropped_and_replaced(world: World) -> None:
    every = relays(world, 0.01, 0.02, 0.03, 0.04)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, *every):
        b.client.offer(offers(every))
        await until(lambda: len(used(b)) == 3)
        changes = b.changes
        await Faults(world).crash("r0")
        assert await until(lambda: every[0].peer not in used(b)) <= 5
        assert await until(lambda: every[3].peer in used(b)) <= 2
        assert b.changes >= changes + 2
        assert len(b.client.addresses()) == 3


async def test_a_relay_that_was_cut_off_serves_again_at_once(world: World) -> None:
    (relay,) = relays(world, 0.01)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, relay):
        b.client.offer(offers([relay]))
        await until(b.client.addresses)
        faults = Faults(world)
        faults.link_down("r0")
        assert await until(lambda: not b.client.addresses()) <= 5
        await trio.sleep(3)
        faults.link_up("r0")
        assert await until(b.client.addresses) <= 5
        assert len(b.endpoint.links()) == 1


async def test_a_relay_that_comes_back_is_used_again(world: World) -> None:
    every = relays(world, 0.01)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, *every):
        b.client.offer(offers(every))
        await until(b.client.addresses)
        await every[0].stop()
        await until(lambda: not b.client.addresses(), timeout=6)
        await trio.sleep(20)
        await every[0].computer.start(every[0])
        await until(b.client.addresses, timeout=60)
        assert every[0].service.book.figures().reservations == 1


async def test_places_are_renewed_at_half_their_life(world: World) -> None:
    relay = Node(world, "r", 100, lends=replace(LENDS, reservation_s=80), address="20.1.1.1")
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, relay):
        b.client.offer(offers([relay]))
        await until(b.client.addresses)
        (held,) = b.client.relays
        assert held.expires - held.renew == pytest.approx(40, abs=0.1)
        changes = b.changes
        for _ in range(20):
            await trio.sleep(10)
            assert relay.service.book.holds(b.peer, trio.current_time())
        assert b.changes == changes


async def test_a_relay_that_no_longer_volunteers_is_left(world: World) -> None:
    relay = Node(world, "r", 100, lends=replace(LENDS, reservation_s=80), address="20.1.1.1")
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, relay):
        b.client.offer(offers([relay]))
        await until(b.client.addresses)
        relay.service.book.limits = replace(LENDS, volunteer=False)
        await trio.sleep(41)
        assert not b.client.addresses()


async def test_a_reachable_node_needs_none(world: World) -> None:
    every = relays(world, 0.01, 0.02)
    b = Node(world, "b", 2)
    async with started(b, *every):
        b.client.reachable = True
        b.client.offer(offers(every))
        await trio.sleep(3)
        assert not b.client.addresses() and not b.endpoint.links()
        b.client.reachable = False
        await until(lambda: len(used(b)) == 2)
        b.client.reachable = True
        await until(lambda: not b.client.addresses())
        await until(lambda: not every[0].service.book.figures().reservations)


async def test_a_peer_that_does_not_relay_costs_no_time(world: World) -> None:
    others = [Node(world, f"o{n}", 50 + n, address=f"{60 + n}.1.1.1") for n in range(12)]
    every = relays(world, 0.05, 0.05, 0.05)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    silent = [(Identity.from_seed(bytes([9]) * 32).peer, Address("99.1.1.1", 9))]
    async with started(b, *others, *every):
        b.client.offer(silent + offers(others) + offers(every))
        assert await until(lambda: len(used(b)) == 3) < 8
        (known,) = {each.peer for each in others} & {others[0].peer}
        candidate = b.client._choice.find(known)
        assert candidate is not None and candidate.not_before > 3000


async def test_a_much_nearer_relay_takes_the_place_of_the_farthest(world: World) -> None:
    every = relays(world, 0.05, 0.06, 0.08)
    near = Node(world, "n", 50, lends=LENDS, address="60.1.1.1", delay=0.005)
    similar = Node(world, "s", 51, lends=LENDS, address="61.1.1.1", delay=0.07)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, near, similar, *every):
        b.client.offer(offers(every))
        await until(lambda: len(used(b)) == 3)
        b.client.offer(offers([near, similar]))
        await trio.sleep(IMPROVE_S + 5)
        assert used(b) == {every[0].peer, every[1].peer, near.peer}
        await until(lambda: not every[2].service.book.figures().reservations)


async def test_dials_that_cannot_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (relay,) = relays(world, 0.01)
    a = Node(world, "a", 1)
    async with started(a, relay):
        stranger = Node(world, "z", 9).peer
        for address, code in (
            (relay.address.through(a.peer), "self"),
            (Address("99.9.9.9", 4009, relay.peer).through(stranger), "unreachable"),
        ):
            with pytest.raises(DialFailed) as caught:
                await a.dial(address)
            assert caught.value.code in (code, "timeout")
        for module in (relay_client, survey):
            monkeypatch.setattr(module, "is_relayed", lambda link: True)
        with pytest.raises(DialFailed) as caught:
            await a.dial(relay.address.through(Node(world, "y", 8).peer))
        assert caught.value.code == "relayed"


async def test_a_relay_on_udp_is_reached_by_capable_peers(world: World) -> None:
    (relay,) = relays(world, 0.01)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    over_udp = Address(relay.address.host, 4009, relay.peer, transport="udp")
    asked: list[Address] = []

    async def reach(address: Address, timeout: float) -> Link:
        asked.append(address)
        return await b.endpoint.reach(relay.address, timeout=timeout)

    async with started(b, relay):
        b.client.offer([(relay.peer, over_udp)])
        await trio.sleep(2)
        assert not b.client.addresses()
        b.client._survey.reach = reach
        await until(b.client.addresses)
        assert asked == [over_udp]
        assert b.client.addresses() == [over_udp.through(b.peer)]


async def test_a_link_that_is_relayed_itself_gets_a_direct_path_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (relay,) = relays(world, 0.01)
    b = Node(world, "b", 2, behind=world.gateway("gb"))
    async with started(b, relay):
        link = await b.computer.run(lambda: b.endpoint.dial(relay.address, timeout=5))
        monkeypatch.setattr(survey, "is_relayed", lambda link: len(link.status.paths) < 2)
        b.client.offer(offers([relay]))
        await until(b.client.addresses)
        assert len(link.status.paths) == 2


@pytest.mark.seeds(1, 2, 3)
async def test_the_relay_loses_power_during_a_transfer(world: World) -> None:
    a, b = (
        Node(world, name, number, behind=world.gateway(f"g{name}"))
        for number, name in enumerate("ab", 1)
    )
    every = relays(world, 0.01, 0.02)
    async with started(a, b, *every):
        b.client.offer(offers(every))
        await until(lambda: len(used(b)) == 2)
        first, second = b.client.addresses()
        near = await a.dial(first)
        await until(lambda: b.arrived)
        far = b.arrived[0].byte_stream
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose, world)
            with pytest.raises(OSError):
                await write(near, bytes(100_000_000))
            nursery.cancel_scope.cancel()
        with pytest.raises(OSError):
            while True:
                await receive(far)
        assert near.failure == far.failure == "link-lost"
        near = await a.dial(second)
        await until(lambda: len(b.arrived) == 2)
        await write(near, b"there you are")
        assert await read(b.arrived[1].byte_stream, 13) == b"there you are"


async def lose(world: World) -> None:
    await trio.sleep(0.5)
    await Faults(world).crash("r0")
