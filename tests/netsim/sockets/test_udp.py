"""UDP between simulated hosts: effects that a real loopback cannot show."""

import errno
import struct
from typing import Any

import pytest
import trio
from trio import socket

from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.sockets.udp import UdpSocket
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

GROUP, GROUP6, PORT = "239.255.1.2", "ff02::1:2", 5353


async def open_at(host: Host, address: str = "0.0.0.0", port: int = 0) -> Any:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    async def program() -> Any:
        found = socket.socket(family, socket.SOCK_DGRAM)
        await found.bind((address, port))
        return found

    return await host.run(program)


def lan(world: World, count: int) -> list[Host]:
    gateway = world.gateway("router", "router")
    return [world.host(f"h{number}", behind=gateway) for number in range(count)]


def four(group: str, address: str = "0.0.0.0") -> bytes:
    return socket.inet_aton(group) + socket.inet_aton(address)


def heard(found: UdpSocket) -> int:
    return len(found.queue)


def test_between_hosts() -> None:
    world = World(latency=0.05)
    alice, bob = world.host("alice"), world.host("bob")

    async def main() -> None:
        a, b = await open_at(alice), await open_at(bob, port=9)
        await a.sendto(b"hello", (bob.addresses()[0], 9))
        assert await b.recvfrom(9) == (b"hello", (alice.addresses()[0], a.getsockname()[1]))
        assert trio.current_time() == 0.05
        await a.connect((bob.addresses()[0], 9))
        assert a.getsockname()[0] == alice.addresses()[0]

    world.run(main)


def test_names_are_looked_up() -> None:
    world = World()
    alice, bob = world.host("alice"), world.host("bob")

    async def main() -> None:
        a, b = await open_at(alice), await open_at(bob, port=9)
        await alice.run(a.sendto, b"hello", ("bob", 9))
        assert await b.recv(9) == b"hello"
        await alice.run(a.connect, ("bob", 9))
        assert a.getpeername() == (bob.addresses()[0], 9)

    world.run(main)


def test_a_full_buffer_drops_and_records_it() -> None:
    trace = Trace(keep=True)
    world = World(trace=trace)
    alice, bob = world.host("alice"), world.host("bob")

    async def main() -> None:
        a, b = await open_at(alice), await open_at(bob, port=9)
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 5000)
        for _ in range(20):
            await a.sendto(bytes(1000), (bob.addresses()[0], 9))
        await trio.sleep(1)
        assert heard(b) == 10000 // 1512

    world.run(main)
    assert trace.digest
    assert sum(record[1] == "buffer" for record in trace.records) == 20 - 6


def test_unfragmented_datagrams_and_the_path_s_mtu() -> None:
    world = World()
    alice = world.host("alice")
    bob = world.host("bob", link=LinkSpec(down=PipeSpec(mtu=1300)))

    async def main() -> None:
        a, b = await open_at(alice), await open_at(bob, port=9)
        to = (bob.addresses()[0], 9)
        a.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        with pytest.raises(OSError) as caught:
            await a.sendto(bytes(1473), to)
        assert caught.value.errno == errno.EMSGSIZE
        await a.sendto(bytes(1272), to)  # 1300 with its headers
        await a.sendto(bytes(1273), to)  # lost on the way; a router reports it
        await trio.sleep(1)
        assert heard(b) == 1
        with pytest.raises(OSError) as caught:
            await a.sendto(bytes(1273), to)
        assert caught.value.errno == errno.EMSGSIZE

    world.run(main)


def test_multicast_reaches_the_lan_s_members_alone() -> None:
    world = World()
    hosts = lan(world, 4)
    outside = world.host("outside")

    async def main() -> None:
        found = [await open_at(host, port=PORT) for host in (*hosts, outside)]
        for one in (found[0], found[1], found[2], found[4]):
            one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, four(GROUP))
        await found[0].sendto(b"x", (GROUP, PORT))
        await trio.sleep(1)
        assert [heard(one) for one in found] == [1, 1, 1, 0, 0]
        found[0].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        found[2].setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, four(GROUP))
        await found[0].sendto(b"x", (GROUP, PORT))
        await trio.sleep(1)
        assert [heard(one) for one in found] == [1, 2, 1, 0, 0]
        found[1].close()
        await hosts[2].crash()
        await found[3].sendto(b"x", (GROUP, PORT))  # a sender need not be a member
        await trio.sleep(1)
        assert [heard(one) for one in found] == [2, 2, 1, 0, 0]

    world.run(main)


def test_multicast_over_ipv6() -> None:
    world = World()
    hosts = lan(world, 2)
    for number, host in enumerate(hosts):
        item = host.attachments[0]
        item.subnet.assign(item, f"fd00::{number + 1}")

    async def main() -> None:
        a, b = [await open_at(host, "::", PORT) for host in hosts]
        packed = socket.inet_pton(socket.AF_INET6, GROUP6)
        b.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed + struct.pack("i", 2))
        await a.sendto(b"x", (GROUP6, PORT))
        assert await b.recvfrom(9) == (b"x", ("fd00::1", PORT, 0, 0))
        with pytest.raises(OSError) as caught:
            b.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed + struct.pack("i", 9))
        assert caught.value.errno == errno.ENODEV

    world.run(main)


def test_membership_errors() -> None:
    world = World()
    (host,) = lan(world, 1)

    async def main() -> None:
        a = await open_at(host)
        for option, value, number in (
            (socket.IP_DROP_MEMBERSHIP, four(GROUP), errno.EADDRNOTAVAIL),
            (socket.IP_ADD_MEMBERSHIP, four("10.0.0.1"), errno.EINVAL),
            (socket.IP_ADD_MEMBERSHIP, four(GROUP, "10.9.9.9"), errno.ENODEV),
            (socket.IP_ADD_MEMBERSHIP, b"abc", errno.EINVAL),
            (socket.IP_MULTICAST_IF, socket.inet_aton("10.9.9.9"), errno.ENODEV),
        ):
            with pytest.raises(OSError) as caught:
                a.setsockopt(socket.IPPROTO_IP, option, value)
            assert caught.value.errno == number
        a.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, four(GROUP))
        with pytest.raises(OSError) as caught:
            a.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, four(GROUP))
        assert caught.value.errno == errno.EADDRINUSE

    world.run(main)


def test_broadcast_reaches_the_lan() -> None:
    world = World()
    hosts = lan(world, 3)

    async def main() -> None:
        found = [await open_at(host, port=PORT) for host in hosts]
        found[0].setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        await found[0].sendto(b"x", ("255.255.255.255", PORT))
        await trio.sleep(1)
        assert [heard(one) for one in found] == [1, 1, 1]

    world.run(main)


def test_an_address_lost_is_not_sent_from() -> None:
    """Routes are forgotten when a host's addresses change."""
    world = World()
    alice, bob = world.host("alice"), world.host("bob")

    async def main() -> None:
        a, b = await open_at(alice), await open_at(bob, port=9)
        to = (bob.addresses()[0], 9)
        await a.sendto(b"x", to)
        item = alice.attachments[0]
        item.subnet.release(item, alice.addresses()[0])
        item.subnet.assign(item, "12.0.0.9")
        alice.addresses_changed()
        await a.sendto(b"x", to)
        await b.recv(9)
        assert (await b.recvfrom(9))[1][0] == "12.0.0.9"

    world.run(main)


def test_nothing_leaves_a_host_without_power() -> None:
    world = World(trace=(trace := Trace(keep=True)))
    alice, bob = world.host("alice"), world.host("bob")

    async def main() -> None:
        a = await open_at(alice)
        await alice.crash()
        await a.sendto(b"x", (bob.addresses()[0], 9))
        await trio.sleep(1)

    world.run(main)
    assert trace.digest and not trace.records
