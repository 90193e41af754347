"""DHT nodes on real endpoints of a simulated internet: joining, churn, homes, restarts."""

from collections.abc import Sequence
from random import Random

import pytest
import trio

from bench.worlds.finder import Finder
from shoal.dht import defaults
from shoal.dht.kademlia.mode import Mode
from shoal.dht.records.record import NameBody
from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import Strategies

ROOT = "ab" * 32


def name(number: int) -> NameBody:
    return NameBody(f"model {number}", ROOT, 1, 1)


async def crowd(world: World, count: int, *, lasts: bool = False) -> list[Finder]:
    """Start public nodes that join through the first one, and give them some time."""
    nodes: list[Finder] = []
    for number in range(count):
        first = [node.address for node in nodes[:1]]
        host = world.host(f"node{number}")
        nodes.append(Finder(host, (number + 1).to_bytes(32), bootstrap=first, lasts=lasts))
        await host.start(nodes[-1])
        await trio.sleep(0.05)
    with trio.fail_after(60):
        for node in nodes:
            await node.joined()
    return nodes


async def all_found(random: Random, writers: Sequence[Finder], readers: Sequence[Finder]) -> float:
    """Return the fraction of 20 records, each by a random writer, that a random reader finds."""
    found = 0
    for number in range(20):
        await random.choice(writers).publish(name(number))
        records = (await random.choice(readers).find(name(number).key)).records
        found += bool(records)
    return found / 20


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.long)])
async def test_every_node_finds_the_records_of_all(world: World, count: int) -> None:
    nodes = await crowd(world, count)
    assert await all_found(Random(1), nodes, nodes) == 1.0
    assert all(node.dht.view().mode == "server" for node in nodes)
    view = nodes[-1].dht.view()
    assert view.contacts >= min(count - 1, 10)
    assert sum(bucket.contacts for bucket in view.buckets) == view.contacts


@pytest.mark.long
async def test_no_record_is_lost_if_a_third_of_the_nodes_leaves_at_once(world: World) -> None:
    nodes = await crowd(world, 30)
    for number in range(10):
        await nodes[number % 5].publish(name(number))
    random = Random(2)
    gone = random.sample(nodes[5:], 10)
    faults = Faults(world)
    for node in gone:
        await faults.crash(node.computer)
    left = [node for node in nodes if node not in gone]
    for number in range(10):
        assert (await random.choice(left).find(name(number).key)).records, number
    await trio.sleep(60)
    began = trio.current_time()
    report = await left[0].publish(name(99))
    assert report.done and report.stored_least >= 10
    assert trio.current_time() - began < 30


async def test_back_by_one_remembered_peer_when_all_bootstraps_are_gone(world: World) -> None:
    """It takes 30 s at most. Twin: without the disk no peer is found."""
    nodes = await crowd(world, 12, lasts=True)
    await nodes[11].publish(name(1))
    await trio.sleep(defaults.CONTACTS_PAUSE + 10)
    faults = Faults(world)
    for node in nodes[:10]:  # the bootstrap node, and all but one that it knew
        await faults.crash(node.computer)
    await faults.crash(nodes[11].computer)
    await trio.sleep(600)
    back = nodes[11]
    back.bootstrap = ()
    began = trio.current_time()
    await faults.restart(back.computer)
    with trio.fail_after(30):
        await back.joined()
    assert trio.current_time() - began <= 30
    assert [contact.peer for contact in back.dht.table.contacts()] == [nodes[10].peer]
    await trio.sleep(10)
    assert back.dht.own() == [name(1)]
    assert (await nodes[10].find(name(1).key)).records
    forgetful = Finder(world.host("forgetful"), b"f" * 32)
    await forgetful.computer.start(forgetful)
    with trio.move_on_after(60) as alone:
        await forgetful.joined()
    assert alone.cancelled_caught


@pytest.mark.ci
async def test_homes_are_clients_that_find_and_publish(world: World) -> None:
    """Homes behind routers that map nothing: no peer stores with them or dials them."""
    strategies = Strategies(lan=False, mapping=False)
    servers: list[Finder] = []
    for number in range(20):
        first = [node.address for node in servers[:1]]
        host = world.host(f"server{number}")
        servers.append(
            Finder(
                host,
                (number + 1).to_bytes(32),
                bootstrap=first,
                whole_dialer=True,
                strategies=strategies,
                relaying=RelayLimits(volunteer=True),
            )
        )
        await host.start(servers[-1])
    homes = []
    for number in range(3):
        router = world.gateway(f"router{number}", "linux-drop")
        host = world.host(f"home{number}", behind=router)
        seed = (number + 101).to_bytes(32)
        homes.append(
            Finder(
                host, seed, bootstrap=[servers[0].address], whole_dialer=True, strategies=strategies
            )
        )
        await host.start(homes[-1])
    await trio.sleep(60)
    assert {node.dht.presence.rule.mode for node in servers} == {Mode.SERVER}
    assert {node.dht.presence.rule.mode for node in homes} == {Mode.CLIENT}
    assert await all_found(Random(3), homes, homes) == 1.0
    assert [len(node.dht.store) for node in homes] == [0, 0, 0]
    await trio.sleep(defaults.REFRESH_LOOK)
    at_home = {node.peer for node in homes}
    for node in servers:
        assert not at_home & {contact.peer for contact in node.dht.table.contacts()}


@pytest.mark.long
async def test_unused_links_of_look_ups_end(world: World) -> None:
    nodes = await crowd(world, 30)
    assert await all_found(Random(4), nodes, nodes) == 1.0
    assert any(node.dht.view().links for node in nodes)
    await trio.sleep(defaults.REFRESH_LOOK)  # joining still sends some requests
    await trio.sleep(defaults.BRIEF_IDLE + 4 * defaults.BRIEF_LOOK)
    assert not any(node.dht.view().links for node in nodes)
    assert all(node.endpoint.link(nodes[0].peer) for node in nodes[1:]), "others wanted these"
