"""A computer: its view of the network, and the life cycle of its program."""

import errno
from collections.abc import Awaitable, Callable

import pytest
import trio

from shoal.netsim.errors import SimError
from shoal.netsim.host import Host
from shoal.netsim.world import World


class Counting:
    """Program that counts its starts and ends, and waits forever or for a given time."""

    def __init__(self, seconds: float = float("inf")) -> None:
        self.starts = self.ends = 0
        self.seconds = seconds

    async def run(self, host: Host, *, task_status: trio.TaskStatus[int]) -> None:
        self.starts += 1
        task_status.started(self.starts)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.ends += 1


def run(main: Callable[[Host, Counting], Awaitable[None]], seconds: float = float("inf")) -> None:
    world = World()
    host, program = world.host("alice"), Counting(seconds)
    world.run(main, host, program)


def test_the_default_gateway_is_that_of_the_lan() -> None:
    world = World()
    home, plain = world.gateway("home", ipv6=True), world.gateway("plain")
    at_home = world.host("a", behind=home)
    assert at_home.default_gateway() == home.lan.addresses[0]
    assert at_home.default_gateway(six=True) == home.lan.addresses[1]
    assert world.host("b", behind=plain).default_gateway(six=True) is None
    assert world.host("c").default_gateway() is None


def test_interfaces_have_names_and_prefixes() -> None:
    world = World()
    home = world.gateway("home", ipv6=True, inside="10.0.0.0/16")
    host = world.host("a", behind=home)
    four, six = host.addresses()
    assert host.interfaces() == [
        ("lo", "127.0.0.1", 8), ("lo", "::1", 128), ("eth0", four, 16), ("eth0", six, 64),
    ]  # fmt: skip
    assert host.has(six) and host.has("127.0.0.9") and not host.has(home.address)


def test_interfaces_by_which_packets_leave() -> None:
    world = World()
    host = world.host("a")
    (own,) = host.addresses()
    assert host.source("203.0.113.9") == (host.attachments[0], own)
    assert host.source(own) == (None, own)
    assert host.source("127.0.0.1") == (None, "127.0.0.1")
    with pytest.raises(OSError) as caught:
        host.source("2600::1")
    assert caught.value.errno == errno.ENETUNREACH


def test_a_program_starts_crashes_and_starts_again() -> None:
    async def main(host: Host, program: Counting) -> None:
        assert await host.start(program) == 1
        with pytest.raises(SimError, match="alice already runs a program"):
            await host.start(program)
        with pytest.raises(SimError, match="alice is still running"):
            await host.restart()
        stack = dict(host.protocols)
        assert stack == host.protocols  # the refused program has changed nothing
        await host.crash()
        assert (host.running, host.up, program.ends) == (False, False, 1)
        with pytest.raises(SimError, match="alice has no power"):
            await host.start(program)
        assert await host.restart() == 2
        assert host.running and host.protocols.keys() == stack.keys()

    run(main)


def test_a_program_may_end_by_itself() -> None:
    async def main(host: Host, program: Counting) -> None:
        await host.start(program)
        await host.ended()
        assert (trio.current_time(), host.running, host.up) == (5.0, False, True)
        assert await host.start(program) == 2

    run(main, 5.0)


def test_nothing_starts_outside_of_a_run_or_without_a_program() -> None:
    host = World().host("alice")
    with pytest.raises(SimError, match="the world is not running"):
        trio.run(host.start, Counting())
    with pytest.raises(SimError, match="no program to restart"):
        trio.run(host.restart)


def test_an_exception_of_a_program_ends_the_simulation_unless_the_power_is_off() -> None:
    class Failing:
        async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            try:
                await trio.sleep(1)
            finally:
                raise KeyError(host.name)

    async def main(host: Host, crashes: bool) -> None:
        await host.start(Failing())
        if crashes:
            await host.crash()
        await trio.sleep(9)

    for crashes in (True, False):
        world = World()
        host = world.host("alice")
        if crashes:
            world.run(main, host, crashes)
        else:
            with pytest.raises(BaseExceptionGroup) as caught:
                world.run(main, host, crashes)
            assert caught.group_contains(KeyError)
