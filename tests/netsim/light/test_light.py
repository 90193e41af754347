"""Light hosts: cores, timers, power; their packets take the same route as all others."""

from math import inf

import pytest
import trio

from shoal.netsim.errors import SimError
from shoal.netsim.light import Sends
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.packet import Addr, Packet
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World


class Echo:
    """Core that replies, and stores what it heard."""

    def __init__(self) -> None:
        self.wake_at = inf
        self.heard: list[tuple[float, bytes, Addr]] = []

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        self.heard.append((round(now, 6), data, source))
        return [(b"echo " + data, source)] if not data.startswith(b"echo") else []

    def on_time(self, now: float) -> Sends:
        return []


class Caller(Echo):
    """Core that sends something every second."""

    def __init__(self, to: Addr, every: float = 1.0) -> None:
        super().__init__()
        self.to, self.every, self.wake_at = to, every, 0.0
        self.called = 0

    def on_time(self, now: float) -> Sends:
        self.wake_at = now + self.every
        self.called += 1
        return [(b"hello", self.to)]


def pair(*, seed: int = 1, link: LinkSpec | None = None) -> tuple[World, Caller, Echo]:
    world = World(seed, latency=0.01, trace=Trace(keep=True))
    echo = Echo()
    to = world.light("echo", echo).address
    caller = Caller(to)
    world.light("caller", caller, link=link)
    return world, caller, echo


def test_a_datagram_goes_and_comes_back_without_trio() -> None:
    world, caller, echo = pair(link=LinkSpec(PipeSpec(delay=0.1), PipeSpec(delay=0.2)))
    world.events.run_until(0.5)
    assert echo.heard == [(0.11, b"hello", ("11.0.2.1", 4001))]
    assert caller.heard == [(0.32, b"echo hello", ("11.0.1.1", 4001))]
    assert world.trace is not None and world.trace.digest
    assert [(what, who, size) for _, what, who, _, _, _, size, _ in world.trace.records] == [
        ("sent", "caller", 33),
        ("received", "echo", 33),
        ("sent", "echo", 38),
        ("received", "caller", 38),
    ]


def test_a_world_of_light_hosts_advances_as_its_events_do() -> None:
    digests = []
    for advance in (True, False):
        world, caller, _ = pair(link=LinkSpec(PipeSpec(jitter=0.01), PipeSpec(jitter=0.01)))
        if advance:
            world.advance(7.3)
            world.advance(20.0)
        else:
            world.events.run_until(20.0)
        assert world.events.now == 20.0 and caller.called == 21
        assert world.trace is not None
        digests.append(world.trace.digest)
    assert digests[0] == digests[1]


def test_the_same_seed_gives_the_same_packets_and_another_others() -> None:
    lossy = LinkSpec(PipeSpec(jitter=0.01, loss=0.3), PipeSpec(jitter=0.01))
    digests = []
    for seed in (1, 1, 2):
        world, *_ = pair(seed=seed, link=lossy)
        world.events.run_until(60)
        assert world.trace is not None
        digests.append(world.trace.digest)
    assert digests[0] == digests[1] != digests[2]


def test_timers_are_lazy_and_exact() -> None:
    """A core may move its timer back or forward at any time."""
    world = World()

    class Moody(Echo):
        def __init__(self) -> None:
            super().__init__()
            self.wake_at = 5.0
            self.times: list[float] = []

        def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
            self.wake_at = float(data)
            return []

        def on_time(self, now: float) -> Sends:
            self.times.append(now)
            self.wake_at = inf
            return []

    moody = Moody()
    host = world.light("moody", moody)
    sender = world.light("sender", Echo())

    def tell(when: str) -> None:
        world.events.at(world.events.now, lambda _: sender.send(when.encode(), host.address))

    tell("7.5")  # later
    world.events.run_until(6.0)
    assert moody.times == []
    world.events.run_until(8.0)
    assert moody.times == [7.5]
    tell("20")
    world.events.run_until(9.0)
    tell("10")  # earlier
    world.events.run_until(30.0)
    assert moody.times == [7.5, 10.0]  # not again at 20
    tell("40")
    tell("inf")  # never
    world.events.run_until(50.0)
    assert moody.times == [7.5, 10.0]


def test_a_core_that_never_moves_its_timer_is_named() -> None:
    world = World()

    class Stuck(Echo):
        wake_at = 1.0

        def __init__(self) -> None:
            pass

    world.light("stuck", Stuck())
    with pytest.raises(SimError, match="stuck"):
        world.events.run_until(2.0)


def test_power_off_and_on() -> None:
    world, caller, _ = pair()
    host = world.lights["caller"]
    world.events.run_until(2.5)
    assert caller.called == 3
    host.crash()
    world.events.run_until(10.0)
    assert caller.called == 3
    world.lights["echo"].send(b"anybody?", host.address)
    world.events.run_until(11.0)
    assert world.network.dropped == 1 and caller.heard[-1][1] == b"echo hello"
    host.restart()
    world.events.run_until(12.5)
    assert caller.called == 5  # what was due at 3 fires at once, then each second
    fresh = Caller(world.lights["echo"].address)
    host.restart(fresh)
    world.events.run_until(14.0)
    assert caller.called == 5 and fresh.called == 2


def test_datagrams_to_another_port_are_dropped() -> None:
    world, _, echo = pair()
    host = world.lights["caller"]
    host.send(b"hello", (world.lights["echo"].address[0], 9))
    world.events.run_until(0.5)
    assert [data for _, data, _ in echo.heard] == [b"hello"]  # sent by its timer, at 0


def test_light_hosts_and_whole_hosts_talk() -> None:
    world = World(latency=0.01)
    echo = Echo()
    light, whole = world.light("light", echo), world.host("whole")

    async def ask() -> bytes:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as socket:
            await socket.sendto(b"hello", light.address)
            return await socket.recv(99)

    async def main() -> None:
        assert await whole.run(ask) == b"echo hello"

    world.run(main)
    assert world.events.now == pytest.approx(0.02)


def test_a_fault_can_hold_and_drop() -> None:
    world, _, echo = pair()
    verdicts = iter([0.5, -1.0, 0.0])

    def interfere(packet: Packet, receiver: str) -> float:
        return next(verdicts) if receiver == "echo" else 0.0

    world.network.interfere_by(interfere)
    world.events.run_until(2.5)
    assert [when for when, *_ in echo.heard] == [0.51, 2.01]
    assert world.network.dropped == 1


def test_names_are_unique() -> None:
    world = World()
    world.host("a")
    world.light("b", Echo())
    for name in "ab":
        with pytest.raises(ValueError, match="already"):
            world.light(name, Echo())
    with pytest.raises(ValueError, match="already"):
        world.host("b")


def test_six_has_longer_headers() -> None:
    world = World(trace=Trace(keep=True))
    host = world.light("six", Echo(), address="2001:db8::1")
    host.send(b"", ("2001:db8::2", 1))
    assert world.trace is not None and world.trace.digest
    assert world.trace.records[0][6] == 48
