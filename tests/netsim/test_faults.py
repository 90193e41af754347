"""Partitions, clogs, sleep, clocks, cables, reboots: their effects, and that they end."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
from trio._core import _run

from shoal.netsim.errors import SimError
from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.light import Sends
from shoal.netsim.network.packet import Addr
from shoal.netsim.world import World

PORT = 9


@pytest.fixture(autouse=True)
def scheduler_is_left_as_it_was() -> Iterator[None]:
    before = _run.Runner.reschedule
    yield
    assert _run.Runner.reschedule is before


class Swarm:
    """Hosts that record what they hear, from which host and when."""

    def __init__(self, *names: str, seed: int = 1) -> None:
        self.world = World(seed, latency=0.01)
        self.hosts = {name: self.world.host(name) for name in names}
        self.faults = Faults(self.world)
        self.heard: list[tuple[float, str, str]] = []
        self.names = {host.addresses()[0]: host.name for host in self.hosts.values()}

    async def listen(self, host: Host) -> None:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as socket:
            await socket.bind(("0.0.0.0", PORT))
            while True:
                _, source = await socket.recvfrom(99)
                item = round(trio.current_time(), 3), self.names[source[0]], host.name
                self.heard.append(item)

    async def say(self, host: Host) -> None:
        """Send a datagram to all other hosts."""
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as socket:
            for address, name in self.names.items():
                if name != host.name:
                    await socket.sendto(host.name.encode(), (address, PORT))

    async def round(self, wait: float = 1.0) -> set[tuple[str, str]]:
        """Let all hosts send; return the pairs (receiver, sender) of which the datagram arrived
        within `wait` seconds.
        """
        self.heard.clear()
        for host in self.hosts.values():
            await host.run(self.say, host)
        await trio.sleep(wait)
        return {(who, whom) for _, who, whom in self.heard}

    def run(self, main: Callable[[], Awaitable[Any]]) -> None:
        async def whole() -> None:
            async with trio.open_nursery() as nursery:
                for host in self.hosts.values():
                    host.start_soon(nursery, self.listen, host)
                await trio.sleep(0.1)
                await main()
                nursery.cancel_scope.cancel()

        self.world.run(whole)


ALL = {(a, b) for a in "abc" for b in "abc" if a != b}


def test_a_partition_parts_and_heals() -> None:
    swarm = Swarm(*"abc")

    async def main() -> None:
        assert await swarm.round() == ALL
        rules = swarm.faults.partition("a", "bc")
        assert await swarm.round() == {("b", "c"), ("c", "b")}
        swarm.faults.heal(*rules)
        assert await swarm.round() == ALL
        assert swarm.world.network.interfere is None  # packets are not inspected any more

    swarm.run(main)
    assert [(deed.what, deed.targets) for deed in swarm.faults.timeline] == [
        ("partition", ("a", "b", "c")),
        ("heal", ()),
    ]


def test_a_partition_may_be_one_way_and_leave_some_out() -> None:
    swarm = Swarm(*"abc")

    async def main() -> None:
        swarm.faults.partition("a", "b", oneway=True)
        assert await swarm.round() == ALL - {("a", "b")}

    swarm.run(main)


@pytest.mark.parametrize("groups", [("a",), ("ab", "bc")])
def test_a_partition_that_means_nothing_is_refused(groups: tuple[str, ...]) -> None:
    with pytest.raises(SimError):
        Swarm(*"abc").faults.partition(*groups)


def test_loss_and_delay_between_groups() -> None:
    swarm = Swarm(*"abc")

    async def main() -> None:
        rules = swarm.faults.loss("a", "bc", 1.0)
        assert await swarm.round() == {pair for pair in ALL if pair[0] != "a"}
        swarm.faults.heal(*rules)
        swarm.faults.loss("a", "bc", 0.0)
        swarm.faults.delay("b", "a", 0.5)
        assert await swarm.round(0.4) == ALL - {("b", "a")}
        await trio.sleep(0.2)
        assert [item[1:] for item in swarm.heard][-1] == ("b", "a")

    swarm.run(main)


def test_a_clog_holds_packets_and_then_releases_them() -> None:
    swarm = Swarm(*"abc")

    async def main() -> None:
        swarm.faults.clog("a", 5.0)
        assert await swarm.round(4.8) == {("b", "c"), ("c", "b")}
        await trio.sleep(1)
        assert {(who, whom) for _, who, whom in swarm.heard} == ALL
        assert max(when for when, *_ in swarm.heard) == pytest.approx(5.1)
        assert await swarm.round() == ALL

    swarm.run(main)


def test_a_swizzle_clogs_a_part_and_ends() -> None:
    chosen: list[list[str]] = []
    for seed in (1, 1, 2, 3):
        swarm = Swarm(*"abcdefgh", seed=seed)

        async def main(swarm: Swarm = swarm) -> None:
            chosen.append(swarm.faults.swizzle(swarm.hosts.values(), 10.0))
            await trio.sleep(10.1)
            assert len(await swarm.round()) == 56

        swarm.run(main)
        clogs = [deed for deed in swarm.faults.timeline if deed.what == "clog"]
        assert [deed.targets[0] for deed in clogs] == chosen[-1]
        assert [deed.time for deed in clogs] == sorted(deed.time for deed in clogs)
        ends = [deed.time + float(deed.detail.split()[0]) for deed in clogs]
        assert max(ends) == pytest.approx(10.1) and len(set(ends)) == len(ends)
    assert chosen[0] == chosen[1] and len({tuple(names) for names in chosen}) == 3


def test_healing_everything_ends_a_swizzle() -> None:
    swarm = Swarm(*"abcdefgh")

    async def main() -> None:
        swarm.faults.swizzle(swarm.hosts.values(), 100.0)
        await trio.sleep(1)
        swarm.faults.heal()
        assert len(await swarm.round()) == 56
        await trio.sleep(50)
        assert len(await swarm.round()) == 56

    swarm.run(main)


def test_a_block_holds_one_direction() -> None:
    swarm = Swarm(*"abc")

    async def main() -> None:
        swarm.faults.block("a", "b", 3.0)
        assert await swarm.round(2.5) == ALL - {("a", "b")}
        await trio.sleep(1)
        when, *who = swarm.heard[-1]
        assert who == ["a", "b"] and when == pytest.approx(3.1)

    swarm.run(main)


# Sleep.


class Ticker:
    """Program that records the time each second."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    async def run(self, host: Host, *, task_status: trio.TaskStatus[Any]) -> None:
        task_status.started()
        while True:
            self.ticks.append(round(trio.current_time(), 3))
            await trio.sleep(1)


def test_a_sleeping_host_does_nothing_and_hears_nothing() -> None:
    swarm, ticker = Swarm(*"abc"), Ticker()

    async def main() -> None:
        host = swarm.hosts["a"]
        await host.start(ticker)
        await trio.sleep(2.5)
        swarm.faults.sleep("a")
        wall = host.wall()
        # No packet passes to or from it; what it is told to send is dropped at its own attachment.
        assert await swarm.round(10.0) == {("b", "c"), ("c", "b")}
        assert swarm.faults.asleep("a") and not swarm.faults.asleep("b")
        assert host.wall() - wall == pytest.approx(10.0)  # the clock of the board continues
        swarm.faults.resume("a")
        await trio.sleep(2.5)
        assert await swarm.round() == ALL

    swarm.run(main)
    # Awake at 0.1, 1.1, 2.1; the tick due at 3.1 fires on waking, at 12.6; then each second.
    assert ticker.ticks == pytest.approx([0.1, 1.1, 2.1, 12.6, 13.6, 14.6, 15.6])


def test_without_the_sleep_it_ticks_on() -> None:
    """The twin: the same program, never suspended."""
    swarm, ticker = Swarm("a"), Ticker()

    async def main() -> None:
        await swarm.hosts["a"].start(ticker)
        await trio.sleep(12.5)

    swarm.run(main)
    assert len(ticker.ticks) == 13


def test_tasks_that_are_ready_at_the_moment_of_sleep_wait_too() -> None:
    swarm = Swarm("a", "b")
    done: list[str] = []

    async def step(host: Host) -> None:
        await trio.lowlevel.checkpoint()
        done.append(host.name)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for host in swarm.hosts.values():
                host.start_soon(nursery, step, host)
            swarm.faults.sleep("a")
            await trio.sleep(5)
            assert done == ["b"]
            swarm.faults.resume("a")
        assert done == ["b", "a"]

    swarm.run(main)


def test_a_run_ends_while_a_host_sleeps() -> None:
    swarm = Swarm("a")

    async def main() -> None:
        await swarm.hosts["a"].start(Ticker())
        swarm.faults.sleep("a")
        await trio.sleep(5)

    swarm.world.run(main)


def test_a_run_that_fails_while_a_host_sleeps_ends_too() -> None:
    swarm = Swarm("a")

    async def main() -> None:
        await swarm.hosts["a"].start(Ticker())
        swarm.faults.sleep("a")
        raise RuntimeError("as it happens")

    with pytest.raises(RuntimeError, match="as it happens"):
        swarm.world.run(main)


def test_a_sleeping_host_can_crash_and_restart() -> None:
    swarm, ticker = Swarm("a"), Ticker()

    async def main() -> None:
        await swarm.hosts["a"].start(ticker)
        swarm.faults.sleep("a")
        await trio.sleep(5.5)
        await swarm.faults.crash("a")
        assert ticker.ticks == [0.1]
        await trio.sleep(1)
        await swarm.faults.restart("a")
        await trio.sleep(1.5)
        await swarm.faults.restart("a")  # a running host is crashed first

    swarm.run(main)
    assert ticker.ticks == pytest.approx([0.1, 6.6, 7.6, 8.1])
    whats = [deed.what for deed in swarm.faults.timeline]
    assert whats == ["sleep", "crash", "restart", "crash", "restart"]


def test_no_host_sleeps_outside_a_run() -> None:
    swarm = Swarm("a")
    with pytest.raises(SimError, match="while the world runs"):
        swarm.faults.sleep("a")


# Clocks, cables, gateways.


def test_clocks_step_and_drift_without_a_jump() -> None:
    swarm = Swarm("a", "b")
    a, b = swarm.hosts.values()

    async def main() -> None:
        swarm.faults.step_clock(a, seconds=-30.0)
        assert a.wall() - b.wall() == pytest.approx(-30)
        await trio.sleep(100)
        swarm.faults.drift_clock("a", rate=0.01)
        assert a.wall() - b.wall() == pytest.approx(-30)
        await trio.sleep(100)
        assert a.wall() - b.wall() == pytest.approx(-29)

    swarm.run(main)


def test_a_cable_is_pulled_and_put_back() -> None:
    swarm = Swarm(*"abc")

    async def main() -> None:
        swarm.faults.link_down("a")
        assert await swarm.round() == {("b", "c"), ("c", "b")}
        swarm.faults.sleep("a")
        swarm.faults.resume("a")  # does not restore the cable
        assert await swarm.round() == {("b", "c"), ("c", "b")}
        swarm.faults.link_up("a")
        assert await swarm.round() == ALL
        swarm.faults.cut("a", "up")
        assert await swarm.round() == {pair for pair in ALL if pair[0] != "a"}
        swarm.faults.cut("a", "up", cut=False)
        swarm.faults.cut("a", "down")
        assert await swarm.round() == {pair for pair in ALL if pair[1] != "a"}
        swarm.faults.sleep("a")
        swarm.faults.link_down("a")
        swarm.faults.resume("a")
        swarm.faults.link_up("a")  # does not restore the direction that is cut
        assert await swarm.round() == {pair for pair in ALL if pair[1] != "a"}
        with pytest.raises(SimError, match="up or down"):
            swarm.faults.cut("a", "out")

    swarm.run(main)


def test_one_more_host_does_not_change_the_next_address_of_a_gateway() -> None:
    def address(*, more: bool) -> str:
        world = World()
        gate = world.gateway("gate", "linux-drop", ipv6=True)
        if more:
            world.host("more")
        before = gate.wan.addresses[0]
        Faults(world).redial("gate")
        assert gate.wan.addresses[0] != before
        return f"{gate.wan.addresses[0]} {gate.prefix}"

    assert address(more=True) == address(more=False)


def test_gateways_reboot_redial_and_lose_their_line() -> None:
    world = World()
    faults = Faults(world)
    carrier = world.gateway("carrier", "router")
    home = world.gateway("home", "router", behind=carrier)
    before = carrier.address, home.address
    faults.redial("carrier", home)
    after = carrier.address, home.address
    assert not set(before) & set(after)
    assert after[1] in carrier.inside.members and after[0] in world.internet.members
    faults.reboot("home", seconds=3.0)
    assert not home.up
    world.events.run_until(3.0)
    assert home.up
    faults.link_down("home")
    assert home.wan.up.cut and home.wan.down.cut and not home.lan.up.cut
    whats = [deed.what for deed in faults.timeline]
    assert whats == ["redial", "redial", "nat.reboot", "link.down"]


def test_unknown_names_are_refused() -> None:
    faults = Swarm("a").faults
    for wrong in (faults.sleep, faults.resume, faults.link_down, faults.reboot, faults.asleep):
        with pytest.raises(SimError, match="no "):
            wrong("zoe")


# Light hosts.


class Echo:
    wake_at = 1.0

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        return ()

    def on_time(self, now: float) -> Sends:
        self.times.append(now)
        self.wake_at = now + 1.0
        return ()


def test_light_hosts_sleep_and_have_no_clock() -> None:
    world = World()
    faults, core = Faults(world), Echo()
    world.light("tiny", core)
    world.events.run_until(2.5)
    faults.sleep("tiny")
    assert faults.asleep("tiny")
    world.events.run_until(9.5)
    faults.resume("tiny")
    world.events.run_until(11.0)
    assert core.times == [1.0, 2.0, 9.5, 10.5]
    with pytest.raises(SimError, match="light"):
        faults.step_clock("tiny", seconds=1.0)
