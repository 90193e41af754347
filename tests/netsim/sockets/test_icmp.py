"""ICMP errors: which sockets get them, through which NATs, and how often."""

from typing import Any

import pytest
import trio
from trio import socket

from shoal.netsim.network.gateway import SubnetRouter
from shoal.netsim.network.packet import ICMP, Icmp
from shoal.netsim.sockets.icmp import IcmpStack
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World


def refused(world: World, behind: SubnetRouter | None, target: Any) -> bool:
    """Whether a connected socket behind `behind` learns that port 9 of `target` is closed."""
    host = world.host("asker", behind=behind)

    async def program() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            await asker.connect((target.addresses()[0], 9))
            await asker.send(b"x")
            with trio.move_on_after(5):
                try:
                    await asker.recv(9)
                except ConnectionRefusedError:
                    return True
        return False

    return bool(world.run(host.run, program))


def test_a_closed_port_is_reported() -> None:
    world = World()
    assert refused(world, None, world.host("target"))


def test_a_host_that_is_off_sends_no_error() -> None:
    world = World()
    target = world.host("target")
    target.up = False
    assert not refused(world, None, target)


def test_errors_come_back_through_a_nat() -> None:
    world = World()
    nat = world.gateway("nat", "linux-drop")
    assert refused(world, nat, world.host("target"))


def test_errors_are_rationed() -> None:
    """Six at once, then one per second; the loopback is not counted."""
    trace = Trace(keep=True)
    world = World(trace=trace)
    host, target = world.host("asker"), world.host("target")

    async def program() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            for _ in range(20):
                await asker.sendto(b"x", (target.addresses()[0], 9))
            await trio.sleep(3)
            for _ in range(20):
                await asker.sendto(b"x", (target.addresses()[0], 9))
            await trio.sleep(1)

    world.run(host.run, program)
    assert trace.digest
    sent = [record for record in trace.records if record[3] == ICMP and record[1] == "sent"]
    assert len(sent) == 6 + 3


def test_error_sizes_and_sources() -> None:
    """An error quotes what fits into 576 bytes, and comes from the address that was asked."""
    trace = Trace(keep=True)
    world = World(trace=trace)
    host, target = world.host("asker"), world.host("target")

    async def program() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            for size in (10, 1000):
                await asker.sendto(bytes(size), (target.addresses()[0], 9))
            await trio.sleep(1)

    world.run(host.run, program)
    assert trace.digest
    sent = [record for record in trace.records if record[3] == ICMP and record[1] == "sent"]
    assert [record[6] for record in sent] == [20 + 8 + 38, 576]
    assert {record[4] for record in sent} == {(target.addresses()[0], 0)}


def test_errors_about_others_are_not_heard() -> None:
    """A forged or stale error does not end a conversation that it does not name."""
    world = World()
    host = world.host("asker")

    async def program() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            await asker.connect(("11.0.0.9", 9))
            stack = host.protocols[ICMP]
            assert isinstance(stack, IcmpStack)
            for source, about in (
                (asker.getsockname(), ("11.0.0.8", 9)),
                ((asker.getsockname()[0], 1), ("11.0.0.9", 9)),
                ((asker.getsockname()[0], 1), ("2001:db8::1", 9)),
            ):
                icmp = Icmp.__new__(Icmp)
                icmp.kind, icmp.proto, icmp.src, icmp.dst, icmp.mtu = "port", 17, source, about, 0
                stack.listeners[17].failed(icmp)
            assert not asker.is_readable()
            icmp.src, icmp.dst = asker.getsockname(), ("11.0.0.9", 9)
            stack.listeners[17].failed(icmp)
            with pytest.raises(ConnectionRefusedError):
                await asker.recv(9)

    world.run(host.run, program)
