"""The parts of a world: names, interfaces, gateways behind gateways."""

import pytest
import trio

from shoal.netsim.errors import NothingLeft
from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.world import World

DGRAM = trio.socket.SOCK_DGRAM
PORT = 7


def asked(world: World, asker: Host, target: Host, address: str) -> str | None:
    """Return the source that `target` sees when `asker` asks it at that address; None if no reply
    comes.
    """
    family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
    answers: list[str] = []

    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.socket.socket(family, DGRAM) as sock:
            await sock.bind(("", PORT))
            task_status.started()
            _, source = await sock.recvfrom(10)
            await sock.sendto(source[0].encode(), source)

    async def ask() -> None:
        with trio.socket.socket(family, DGRAM) as sock, trio.move_on_after(1):
            await sock.sendto(b"?", (address, PORT))
            answers.append((await sock.recvfrom(100))[0].decode())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await target.run(nursery.start, listen)
            await asker.run(ask)
            nursery.cancel_scope.cancel()

    world.run(main)
    return answers[0] if answers else None


def test_names_are_of_one_host_or_gateway() -> None:
    """Faults and random streams identify hosts and gateways by name."""
    world = World()
    world.host("a")
    world.gateway("g")
    with pytest.raises(ValueError, match="the host `a` already exists"):
        world.gateway("a")
    with pytest.raises(ValueError, match="the gateway `g` already exists"):
        world.host("g")


def test_a_host_with_two_interfaces_speaks_to_each_neighbourhood_from_its_own() -> None:
    world = World()
    lan = world.gateway("lan", ipv6=True)
    server, inside, outside = world.host("server"), world.host("in", behind=lan), world.host("out")
    world.plug(server, behind=lan)
    public, private, six = server.addresses()
    assert [(item.name, item.address) for item in server.interfaces()[2:]] == [
        ("eth0", public), ("eth1", private), ("eth1", six),
    ]  # fmt: skip
    assert world.names["server"] == [public, private, six]
    assert asked(world, inside, server, private) == inside.addresses()[0]
    assert asked(world, server, inside, inside.addresses()[0]) == private
    assert asked(world, inside, server, six) == inside.addresses()[1]
    assert asked(world, outside, server, public) == outside.addresses()[0]
    assert asked(world, server, outside, outside.addresses()[0]) == public


def test_an_interface_plugged_in_changes_the_way_to_its_neighbours() -> None:
    world = World()
    lan = world.gateway("lan")
    host, neighbour = world.host("host"), world.host("neighbour", behind=lan)
    there = neighbour.addresses()[0]
    assert host.source(there)[1] == host.addresses()[0]
    plugged = world.plug(host, behind=lan)
    assert host.source(there) == (plugged, plugged.addresses[0])


@pytest.mark.parametrize("redials", [False, True])
def test_a_home_behind_a_router_has_an_address_of_the_internet(redials: bool) -> None:
    """The router's inside is routed; the home's is not."""
    world = World()
    isp = world.gateway("isp", "router")
    home = world.gateway("home", "linux-drop", behind=isp)
    alice, bob = world.host("alice", behind=home), world.host("bob")
    if redials:
        before = home.address
        Faults(world).redial(home)
        assert home.address != before
    assert asked(world, alice, bob, bob.addresses()[0]) == home.address


def test_a_latency_can_be_a_whole_number() -> None:
    world = World(latency=1)
    a, b = world.host("a"), world.host("b")

    async def main() -> float:
        with trio.socket.socket(type=DGRAM) as sock:
            await sock.bind(("", PORT))
            async with trio.open_nursery() as nursery:
                a.start_soon(nursery, send)
                await sock.recvfrom(10)
        return trio.current_time()

    async def send() -> None:
        with trio.socket.socket(type=DGRAM) as sock:
            await sock.sendto(b"?", (b.addresses()[0], PORT))

    assert world.run(b.run, main) == 1.0


def test_a_world_without_anything_to_do_ends() -> None:
    with pytest.raises(NothingLeft):
        World().run(trio.Event().wait)
