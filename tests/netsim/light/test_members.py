"""Fifty light hosts get to know each other as fifty whole daemons do."""

from collections.abc import Callable
from random import Random

import pytest
import trio

from shoal.netsim import defaults
from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.state import defaults as members

from .members import LightMember

COUNT = 50
PORT = 4001
EVERY_S = 0.05  # seconds between two checks
FACTOR = 1.5
"""Maximum ratio between the two times from the last start to the end."""
LINK = LinkSpec(PipeSpec(0.01, rate=2.5e6), PipeSpec(0.01, rate=12.5e6))

Plan = list[tuple[float, list[int]]]
Knowledge = dict[str, set[str]]


def plan(seed: int, count: int) -> Plan:
    """Draw when each host starts, within five seconds, and which earlier hosts it knows."""
    random = Random(seed)
    starts = sorted(random.uniform(0, 5) for _ in range(count))
    return [
        (when, [random.randrange(number)] if number else []) for number, when in enumerate(starts)
    ]


@pytest.fixture(autouse=True)
def mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Link all with all at once, because a light host knows no member without a link."""
    monkeypatch.setattr(members, "FIRST_LINKS", COUNT)


class Light:
    """The swarm of light hosts: its knowledge, and the time that it took."""

    def __init__(self, seed: int, count: int, broken: Callable[[LightMember], None] | None = None):
        self.world = World(seed, latency=0.02)
        self.members: list[LightMember] = []
        address = [(self.world.public_address(), PORT) for _ in range(count)]
        for number, (start, known) in enumerate(plan(seed, count)):
            name = f"n{number}"
            core = LightMember(
                self.world.streams.get(name, "core"),
                address[number],
                int(defaults.EPOCH * 1000),
                start,
                [address[other] for other in known],
                links=COUNT,
            )
            if broken is not None:
                broken(core)
            self.members.append(core)
            self.world.light(name, core, address=address[number][0], link=LINK, port=PORT)
        self.last = plan(seed, count)[-1][0]

    def knowledge(self) -> Knowledge:
        names = {core.peer: f"n{number}" for number, core in enumerate(self.members)}
        return {names[core.peer]: {names[p] for p in core.members()} for core in self.members}

    def run(self, limit: float = 60.0) -> float:
        """Return the seconds from the last start until all are linked with all that they
        should be.
        """
        while not complete(self.knowledge()):
            assert self.world.events.now < limit, self.knowledge()
            self.world.events.run_until(self.world.events.now + EVERY_S)
        return self.world.events.now - self.last


def complete(known: Knowledge) -> bool:
    return all(len(members) == len(known) for members in known.values())


class Whole:
    """Swarm of whole daemons, with the same knowledge and times."""

    def __init__(self, seed: int, count: int) -> None:
        self.world = World(seed, latency=0.02)
        self.plan = plan(seed, count)
        self.hosts = [self.world.host(f"n{number}", link=LINK) for number in range(count)]
        self.daemons: dict[str, DaemonHandle] = {}
        self.final: Knowledge = {}

    async def start(self, number: int) -> None:
        when, known = self.plan[number]
        await trio.sleep_until(when)
        bootstrap = [f"{self.hosts[other].addresses()[0]}:{PORT}" for other in known]
        host = self.hosts[number]
        self.daemons[host.name] = await host.start(
            Daemon(bootstrap=bootstrap, engine=False, port=PORT, links=COUNT)
        )

    def knowledge(self) -> Knowledge:
        names = {daemon.peer: name for name, daemon in self.daemons.items()}
        return {
            name: {names[peer] for peer in daemon.node.directory.members() if peer in names}
            for name, daemon in self.daemons.items()
        }

    async def main(self) -> float:
        async with trio.open_nursery() as nursery:
            for number in range(len(self.hosts)):
                nursery.start_soon(self.start, number)
        while not complete(self.knowledge()):
            assert trio.current_time() < 60
            await trio.sleep(EVERY_S)
        self.final = self.knowledge()  # before the world ends, and all links with it
        return trio.current_time() - self.plan[-1][0]

    def run(self) -> float:
        found: float = self.world.run(self.main)
        return found


def compare(seed: int, count: int) -> tuple[float, float]:
    """Check that both know the same; return the seconds of the light hosts and of the whole
    daemons.
    """
    light, whole = Light(seed, count), Whole(seed, count)
    times = light.run(), whole.run()
    everybody = {f"n{number}" for number in range(count)}
    assert light.knowledge() == whole.final == dict.fromkeys(everybody, everybody)
    return times


@pytest.mark.ci
def test_a_few_light_hosts_behave_like_whole_daemons() -> None:
    light, whole = compare(1, 10)  # with fewer hosts, a single draw would dominate
    assert whole / FACTOR <= light <= whole * FACTOR


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_fifty_light_hosts_behave_like_fifty_daemons(seed: int) -> None:
    light, whole = compare(seed, COUNT)
    assert whole / FACTOR <= light <= whole * FACTOR


def test_light_hosts_know_each_other_and_again_the_same() -> None:
    assert Light(1, 20).run() == Light(1, 20).run()


def test_the_comparison_can_fail() -> None:
    """Hosts that do not ask for what they lack do not get to know all others in that time."""

    def deaf(core: LightMember) -> None:
        for ear in ("_on_digest", "_on_push"):
            setattr(core, ear, lambda *_: None)

    swarm = Light(1, 6, deaf)
    with pytest.raises(AssertionError):
        swarm.run(limit=20.0)
